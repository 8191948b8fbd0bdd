"""Asks the coordinator of a transactional id whether partitions are in its transaction, or to add them (KIP-890).

The leader of a partition asks before it opens a transaction in the log: otherwise a write that arrives after the end of
its transaction would open one that nobody ends.
"""

from __future__ import annotations

from collections.abc import Collection

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


class CoordinatorVerifier:
    """`replication.transaction_verification.TransactionVerifier`."""

    def __init__(self, replicas: Replicas, transactions: TransactionDriver, peers: Peers) -> None:
        self._replicas = replicas
        self._transactions = transactions
        self._peers = peers

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
        metadata = self._replicas.metadata
        topic = metadata.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        record = topic.partitions[self._transactions.partition_of(transactional_id)]
        leader = metadata.brokers.get(record.leader)
        if leader is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = AddPartitionsToTxnRequest(
            [
                AddPartitionsToTxnTransaction(
                    transactional_id,
                    producer_id,
                    producer_epoch,
                    not add,
                    [
                        AddPartitionsToTxnTopic(name, indexes)
                        for name, indexes in by_topic(partitions).items()
                    ],
                )
            ]
        )
        try:
            response = await self._peers.call(leader, add_partitions_to_txn.API, VERSION, request)
        except BrokerError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        if response.error_code:
            return dict.fromkeys(partitions, ErrorCode.of(response.error_code))
        found = {
            (topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
            for result in response.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        return {
            where: ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
            for where, error in ((where, found.get(where, missing)) for where in partitions)
        }
