"""AddPartitionsToTxn: partitions become part of a transaction, all of them or none.

Producers name one transaction (up to v3). Brokers name several, and may only verify (v4, KIP-890); they have authorised
their clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.protocol import add_partitions_to_txn
from millstream_kafka.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..runtime.steps import portions
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..topic_rules.internal_topics import is_internal
from ..transactions.driver import TransactionDriver
from ..transactions.messages import SERVER_VERSION

WRITE = AclOperation.WRITE
AT_ONCE = 100
"""Transactions of a request that are handled at the same time."""
FENCED_SINCE = 2
"""The first version with PRODUCER_FENCED."""

Errors = Mapping[TopicPartition, ErrorCode]


@handler(
    add_partitions_to_txn.API,
    rights=[
        Right(WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id, up to version 3"),
        Right(WRITE, ResourceType.TOPIC, "each topic, up to version 3"),
        Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "the cluster, from version 4 on"),
    ],
)
async def handle(
    authorizer: Authorizer,
    transactions: TransactionDriver,
    replicas: Replicas,
    context: RequestContext,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse:
    session = context.session
    if context.version >= add_partitions_to_txn.BATCHED_SINCE:
        if session.peer_broker is None:
            authorizer.check(session, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        results: list[AddPartitionsToTxnResult] = []
        for some in portions(request.transactions, AT_ONCE):  # their writes wait together
            results += await asyncio.gather(*(_result(transactions, replicas, each) for each in some))
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    partitions = await _partitions(request.topics)
    refused: Errors
    if not authorizer.allows(session, WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        refused = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        allowed = {
            name
            for name in {name for name, _ in partitions}
            if not is_internal(name) and authorizer.allows(session, WRITE, ResourceType.TOPIC, name)
        }
        refused = _unknown(replicas, partitions, allowed)
    if not refused:
        error = await transactions.add_partitions(
            request.transactional_id, (request.producer_id, request.producer_epoch), partitions, 0
        )
        if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_SINCE:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        refused = dict.fromkeys(partitions, error)
    return AddPartitionsToTxnResponse(results_by_topic=_results(refused))


async def _result(
    transactions: TransactionDriver, replicas: Replicas, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    partitions = await _partitions(transaction.topics)
    errors = _unknown(replicas, partitions) or await _handled(transactions, transaction, partitions)
    return AddPartitionsToTxnResult(transaction.transactional_id, _results(errors))


async def _handled(
    transactions: TransactionDriver,
    transaction: AddPartitionsToTxnTransaction,
    partitions: list[TopicPartition],
) -> Errors:
    producer = transaction.producer_id, transaction.producer_epoch
    if transaction.verify_only:
        return transactions.verify_partitions(transaction.transactional_id, producer, partitions)
    error = await transactions.add_partitions(
        transaction.transactional_id, producer, partitions, SERVER_VERSION
    )
    return dict.fromkeys(partitions, error)


async def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    every = ((topic.name, index) for topic in topics for index in topic.partitions)
    return [topic_partition async for topic_partition in cooperatively(every)]


def _unknown(
    replicas: Replicas, partitions: Iterable[TopicPartition], allowed: Iterable[str] | None = None
) -> dict[TopicPartition, ErrorCode]:
    """The errors of all partitions if one does not exist, or is not allowed; empty if each may be added."""
    topics, errors = replicas.metadata.topics, dict[TopicPartition, ErrorCode]()
    for name, index in partitions:
        record = topics.get(name)
        if allowed is not None and name not in allowed:
            errors[name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif record is None or not 0 <= index < len(record.partitions):
            errors[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not errors:
        return errors
    return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | errors


def _results(errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (name, index), error in errors.items():
        by_topic.setdefault(name, []).append(AddPartitionsToTxnPartitionResult(index, error))
    return [AddPartitionsToTxnTopicResult(name, partitions) for name, partitions in by_topic.items()]
