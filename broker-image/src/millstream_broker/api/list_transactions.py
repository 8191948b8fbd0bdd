"""ListTransactions: the transactional ids that this broker coordinates, by state, producer id, duration and pattern.

The duration is the time since the last transaction began, so ids without an open one are listed as well, as in Kafka.
"""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import list_transactions
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..transactions.checks import state_named
from ..transactions.driver import TransactionDriver
from ..transactions.id_pattern import IdPattern, PatternError


@handler(
    list_transactions.API,
    ends_with_connection=True,
    rights=[
        Right(
            AclOperation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            "each transactional id",
            without="the transactional id is left out",
        )
    ],
)
def handle(
    authorizer: Authorizer,
    transactions: TransactionDriver,
    context: RequestContext,
    request: ListTransactionsRequest,
) -> Steps[ListTransactionsResponse]:
    if transactions.loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        pattern = IdPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states = {name: state_named(name) for name in request.state_filters}
    producer_ids, duration_ms = frozenset(request.producer_id_filters), request.duration_filter
    found = []
    for transactional_id, metadata in transactions.all():
        yield
        if states and metadata.state not in states.values():
            continue
        if producer_ids and metadata.producer_id not in producer_ids:
            continue
        if duration_ms >= 0 and transactions.wall_clock - metadata.start_timestamp <= duration_ms:
            continue
        if pattern is not None and not pattern.matches(transactional_id):
            continue
        if authorizer.permits(
            context.session, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            found.append(TransactionState(transactional_id, metadata.producer_id, metadata.state.label))
    unknown = [name for name, state in states.items() if state is None]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
