"""TxnOffsetCommit: store a group's positions as part of a producer's transaction.

The group's partition of __consumer_offsets must be in the transaction: producers add it before, and from v5 on the
request does (KIP-890).
"""

from __future__ import annotations

from uuid import UUID

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import txn_offset_commit
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from ..coordinator.effects import TransactionalProducer
from ..groups.driver import GroupDriver
from ..groups.errors import offset_error
from ..groups.messages import Commit, OffsetToCommit, TransactionalCommit
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..replication.transaction_verification import verify
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right, on_group
from ..topic_rules.internal_topics import OFFSETS_TOPIC
from ..transactions.verifier import CoordinatorVerifier

READ, TOPIC = AclOperation.READ, ResourceType.TOPIC
LOADING_SINCE = 2
"""The first version with COORDINATOR_LOAD_IN_PROGRESS."""
ABORTABLE_SINCE = 4
"""The first version with TRANSACTION_ABORTABLE."""
NO_SEQUENCE = -1

Errors = dict[tuple[str, int], ErrorCode]


def _response(request: TxnOffsetCommitRequest, errors: Errors) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(
                        each.partition_index, errors[topic.name, each.partition_index]
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _refused(request: TxnOffsetCommitRequest, error: ApiError) -> TxnOffsetCommitResponse:
    every = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    return _response(request, dict.fromkeys(every, error.code))


@handler(
    txn_offset_commit.API,
    rights=[
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id", "transactional_id"),
        on_group(READ),
        Right(READ, TOPIC, "each topic"),
    ],
    refused=_refused,
)
async def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    replicas: Replicas,
    verifier: CoordinatorVerifier,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse:
    known: list[OffsetToCommit] = []
    errors: Errors = {}
    ids: dict[str, UUID | ErrorCode] = {}
    async for topic, each in cooperatively(
        (entry, each) for entry in request.topics for each in entry.partitions
    ):
        record = replicas.latest_image.topics.get(topic.name)
        if topic.name not in ids:
            ids[topic.name] = (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if not authorizer.allows(context.session, READ, TOPIC, topic.name)
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if record is None
                else record.topic_id
            )
        found = ids[topic.name]
        if isinstance(found, ErrorCode):
            errors[topic.name, each.partition_index] = found
        elif record is None or not 0 <= each.partition_index < len(record.partitions):
            errors[topic.name, each.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            known.append(
                OffsetToCommit(
                    topic.name,
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    found,
                )
            )
    if known:
        errors |= await _commit(groups, replicas, verifier, context.version, request, known)
    if context.version < LOADING_SINCE:
        loading, other = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE
        errors = {
            topic_partition: other if error is loading else error for topic_partition, error in errors.items()
        }
    return _response(request, errors)


async def _commit(
    groups: GroupDriver,
    replicas: Replicas,
    verifier: CoordinatorVerifier,
    version: int,
    request: TxnOffsetCommitRequest,
    known: list[OffsetToCommit],
) -> Errors:
    try:
        producer = await _verified(groups, replicas, verifier, version, request)
    except ApiError as error:
        return dict.fromkeys(((each.topic, each.partition) for each in known), error.code)
    commit = Commit(
        request.group_id, known, request.member_id, request.generation_id, request.group_instance_id
    )
    return dict(await groups.commit_in_transaction(TransactionalCommit(commit, producer)))


async def _verified(
    groups: GroupDriver,
    replicas: Replicas,
    verifier: CoordinatorVerifier,
    version: int,
    request: TxnOffsetCommitRequest,
) -> TransactionalProducer:
    """The producer, whose open transaction has the group's partition. Raises ApiError."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    topic_partition = OFFSETS_TOPIC, groups.partition_of(request.group_id)
    try:
        partition = replicas.partition(*topic_partition)
    except ApiError:
        raise ApiError(ErrorCode.NOT_COORDINATOR) from None
    if partition.log.producers.is_open(producer_id, epoch):
        return TransactionalProducer(producer_id, epoch)
    adds = version >= txn_offset_commit.ADDS_SINCE
    ((_, guard, error),) = await verify(
        verifier, request.transactional_id, producer_id, epoch, {partition: NO_SEQUENCE}, adds=adds
    )
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        error = ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.NETWORK_EXCEPTION:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error:
        raise ApiError(offset_error(error))
    return TransactionalProducer(producer_id, epoch, guard)
