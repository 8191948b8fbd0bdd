"""A producer of transactions in one topic, through the brokers' coordinator."""

from __future__ import annotations

from confluent_kafka import Producer

PATIENCE_S = 60.0


class TransactionalWriter:
    """``begin`` returns once the records are in the log; ``commit`` and ``abort`` once the transaction has ended."""

    def __init__(self, bootstrap: str, topic: str, name: str = "", *, timeout_ms: int = 60_000) -> None:
        """``name`` tells the writers of a topic apart."""
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": topic + name,
                "transaction.timeout.ms": timeout_ms,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, *values: bytes, partition: int = 0, timestamp: int = 0) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value, partition=partition, timestamp=timestamp)
        assert self._producer.flush(PATIENCE_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)
