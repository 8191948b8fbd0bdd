"""DescribeTransactions: the state of transactional ids; of one that ends, the partitions that have no marker yet."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import describe_transactions
from millstream_kafka.protocol.describe_transactions import (
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import by_topic

from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..transactions.driver import TransactionDriver

DESCRIBE = AclOperation.DESCRIBE


@handler(
    describe_transactions.API,
    ends_with_connection=True,
    rights=[
        Right(DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each transactional id"),
        Right(DESCRIBE, ResourceType.TOPIC, "each topic", without="the topic is left out"),
    ],
)
def handle(
    authorizer: Authorizer,
    transactions: TransactionDriver,
    context: RequestContext,
    request: DescribeTransactionsRequest,
) -> Steps[DescribeTransactionsResponse]:
    states = []
    for transactional_id in request.transactional_ids:
        states.append(_of(authorizer, transactions, context, transactional_id))
        yield
    return DescribeTransactionsResponse(transaction_states=states)


def _of(
    authorizer: Authorizer, transactions: TransactionDriver, context: RequestContext, transactional_id: str
) -> DescribedTransactionState:
    if not authorizer.allows(context.session, DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return DescribedTransactionState(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id=transactional_id
        )
    description = transactions.describe(transactional_id)
    metadata = description.metadata
    if metadata is None:
        return DescribedTransactionState(description.error, transactional_id=transactional_id)
    return DescribedTransactionState(
        ErrorCode.NONE,
        transactional_id,
        metadata.state.label,
        metadata.timeout_ms,
        metadata.start_timestamp,
        metadata.producer_id,
        metadata.producer_epoch,
        [
            TopicData(name, indexes)
            for name, indexes in by_topic(sorted(metadata.partitions)).items()
            if authorizer.permits(context.session, DESCRIBE, ResourceType.TOPIC, name)
        ],
    )
