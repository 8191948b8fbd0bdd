"""ListTransactions: there are none. The response names states that Kafka does not have, to expose typos."""

from __future__ import annotations

from millstream_kafka.protocol import list_transactions
from millstream_kafka.protocol.list_transactions import ListTransactionsRequest, ListTransactionsResponse

from ..network.handlers import RequestContext, handler

STATES = {
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
}


@handler(list_transactions.API)
def handle(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        unknown_state_filters=[state for state in request.state_filters if state not in STATES]
    )
