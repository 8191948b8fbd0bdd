"""AddOffsetsToTxn: a group's partition of __consumer_offsets becomes part of a transaction."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import add_offsets_to_txn
from millstream_kafka.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from millstream_kafka.protocol.errors import ErrorCode

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..security.acl.rights import Right, on_group
from ..topic_rules.internal_topics import OFFSETS_TOPIC
from ..transactions.driver import TransactionDriver

FENCED_SINCE = 2
"""The first version with PRODUCER_FENCED."""


@handler(
    add_offsets_to_txn.API,
    rights=[
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id", "transactional_id"),
        on_group(AclOperation.READ),
    ],
)
async def handle(
    transactions: TransactionDriver,
    groups: GroupDriver,
    context: RequestContext,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse:
    producer = request.producer_id, request.producer_epoch
    partition = OFFSETS_TOPIC, groups.partition_of(request.group_id)
    error = await transactions.add_partitions(request.transactional_id, producer, [partition], 0)
    if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)
