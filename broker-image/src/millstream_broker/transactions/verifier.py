"""Asks the coordinator of a transactional id whether partitions are in its transaction, or to add them (KIP-890).

The leader of a partition asks before it opens a transaction in the log: otherwise a write that arrives after the end of
its transaction would open one that nobody ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import add_partitions_to_txn
from millstream_kafka.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition, by_topic

from ..replication.replicas import Replicas
from ..topic_rules.internal_topics import TRANSACTIONS_TOPIC
from .driver import TransactionDriver
from .peers import Peers

VERSION = 5

_Answers = Mapping[str, Mapping[TopicPartition, ErrorCode]]


@dataclass(eq=False, slots=True)
class _Questions:
    """A request that is being put together."""

    by_id: dict[str, AddPartitionsToTxnTransaction] = field(default_factory=dict)
    answer: asyncio.Task[_Answers | ErrorCode] | None = None


class CoordinatorVerifier:
    """`replication.transaction_verification.TransactionVerifier`.

    Questions of one turn of the loop about transactional ids in the same partition of __transaction_state are one
    request. Those of other partitions do not wait for each other: their writes end at different times.
    """

    def __init__(self, replicas: Replicas, transactions: TransactionDriver, peers: Peers) -> None:
        self._replicas = replicas
        self._transactions = transactions
        self._peers = peers
        self._next: dict[int, _Questions] = {}
        """By partition of __transaction_state: what is asked in this turn."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """The error of each partition, or NONE; with `add`, partitions that are not in the transaction are added."""
        topics = [AddPartitionsToTxnTopic(name, indexes) for name, indexes in by_topic(partitions).items()]
        question = AddPartitionsToTxnTransaction(
            transactional_id, producer_id, producer_epoch, not add, topics
        )
        log_partition = self._transactions.partition_of(transactional_id)
        questions = self._next.get(log_partition)
        if (
            questions is None or transactional_id in questions.by_id
        ):  # an answer names the transactional id alone
            questions = self._next[log_partition] = _Questions()
            questions.answer = asyncio.create_task(
                self._ask(log_partition, questions), name="transaction verification"
            )
        questions.by_id[transactional_id] = question
        assert questions.answer is not None
        answer = await asyncio.shield(questions.answer)
        if isinstance(answer, ErrorCode):
            return dict.fromkeys(partitions, answer)
        found = answer.get(transactional_id, {})
        return {where: found.get(where, ErrorCode.UNKNOWN_SERVER_ERROR) for where in partitions}

    async def _ask(self, log_partition: int, questions: _Questions) -> _Answers | ErrorCode:
        """The answers by transactional id, or an error of all of them."""
        await asyncio.sleep(0)
        if self._next.get(log_partition) is questions:
            del self._next[log_partition]
        metadata = self._replicas.metadata
        topic = metadata.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        leader = metadata.brokers.get(topic.partitions[log_partition].leader)
        if leader is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = AddPartitionsToTxnRequest(list(questions.by_id.values()))
        try:
            response = await self._peers.call(leader, add_partitions_to_txn.API, VERSION, request)
        except BrokerError:
            return ErrorCode.NETWORK_EXCEPTION
        if response.error_code:
            return ErrorCode.of(response.error_code)
        return {
            result.transactional_id: {
                (topic.name, each.partition_index): _error(each.partition_error_code)
                for topic in result.topic_results
                for each in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }


def _error(code: int) -> ErrorCode:
    error = ErrorCode.of(code)
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
