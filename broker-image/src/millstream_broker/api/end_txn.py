"""EndTxn: commits or aborts a transaction; responds once the outcome is stored, before its markers are written."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import end_txn
from millstream_kafka.protocol.end_txn import EndTxnRequest, EndTxnResponse
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler
from ..security.acl.rights import Right
from ..transactions.driver import TransactionDriver

FENCED_SINCE = 2
"""The first version with PRODUCER_FENCED."""


@handler(
    end_txn.API,
    rights=[
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id", "transactional_id")
    ],
)
async def handle(
    transactions: TransactionDriver, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse:
    error, producer_id, producer_epoch = await transactions.end(
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        commits=request.committed,
        raises_epoch=context.version >= end_txn.EPOCH_SINCE,
    )
    if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=error, producer_id=producer_id, producer_epoch=producer_epoch)
