"""Produce requests with records of transactions: verified by the coordinator, appended in order (KIP-890).

The first records of a transaction in a partition are appended only after the coordinator has confirmed it
(`transaction_verification`). Meanwhile, later requests of the same producer wait: their records follow in sequence.
A producer is a transactional id and a producer id: nobody waits for others that name his producer id.

All calls are made on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple

from millstream_kafka.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..runtime.request_memory import RequestMemory
from .partition import Partition
from .transaction_verification import TransactionVerifier, verify

ADDS_SINCE = 12
"""The first version of Produce that adds partitions to the transaction."""
ABORTABLE_SINCE = 11
"""The first version that allows TRANSACTION_ABORTABLE."""
NOT_ADDED = "Partition was not added to the transaction"
GUARD_LOST = ApiError(ErrorCode.INVALID_TXN_STATE, "The transaction ended while the records were verified")
_UNKNOWN_YET = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors after which old clients would look for another leader; NOT_ENOUGH_REPLICAS makes all of them retry."""

Refused = Mapping[TopicPartition, ApiError]


class RequestingProducer(NamedTuple):
    """The sender of a request with records of a transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    """Of Produce."""


def transactional_header(records: object) -> BatchHeader | None:
    """The header of the first batch of a partition, if it is transactional."""
    if not isinstance(records, memoryview) or len(records) < HEADER_SIZE:
        return None
    header = read_header(records)
    return header if header.magic == MAGIC and header.is_transactional else None


class TransactionalAppends:
    """The order of the producers' requests."""

    def __init__(self, memory: RequestMemory, verifier: TransactionVerifier) -> None:
        self._memory = memory
        self.verifier = verifier
        self._turns: dict[tuple[str, int], asyncio.Future[None]] = {}
        """For each producer with waiting requests: ends when the last one has been appended."""

    def is_waiting(self, transactional_id: str, producer_id: int) -> bool:
        """Whether requests of the producer wait, so that the next must, too."""
        return (transactional_id, producer_id) in self._turns

    def in_turn(
        self,
        producer: RequestingProducer,
        unverified: Callable[[], Mapping[Partition, int]],
        append: Callable[[Refused], Any],
        size: int,
    ) -> asyncio.Task[Any]:
        """Append records after those of earlier requests, and once they are verified; returns the answer.

        ``unverified`` returns the partitions that need verification at that time, and their first sequences. ``append``
        gets the refused partitions. ``size`` is that of the copied records.
        """
        who = producer.transactional_id, producer.producer_id
        previous = self._turns.get(who)
        turn = self._turns[who] = asyncio.get_running_loop().create_future()
        self._memory.hold(size)

        async def appended() -> Any:
            try:
                if previous is not None:
                    await asyncio.wait([previous])
                answer = append(await self._verified(producer, unverified()))
            finally:
                self._memory.free(size)
                turn.set_result(None)
                if self._turns.get(who) is turn:
                    del self._turns[who]
            return await answer if isawaitable(answer) else answer

        return asyncio.create_task(appended(), name="transactional append")

    async def _verified(self, producer: RequestingProducer, unverified: Mapping[Partition, int]) -> Refused:
        """The partitions without an open transaction. The others' guards allow the append, which follows at once."""
        if not unverified:
            return {}
        adds = producer.version >= ADDS_SINCE
        refused = {}
        for partition, guard, code in await verify(
            self.verifier,
            producer.transactional_id,
            producer.producer_id,
            producer.epoch,
            unverified,
            adds=adds,
        ):
            error = refusal(code, producer.version)
            if error is None:
                try:
                    partition.log.producers.verifications.verified(guard)
                except ApiError:
                    error = GUARD_LOST
            if error is not None:
                refused[partition.topic, partition.index] = error
        return refused


def refusal(code: ErrorCode, version: int) -> ApiError | None:
    """The error of Produce for that of the coordinator; None for NONE."""
    if code is ErrorCode.NONE:
        return None
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.INVALID_TXN_STATE:
        return ApiError(code, NOT_ADDED)
    if code in _UNKNOWN_YET or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_SINCE):
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name}",
        )
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return ApiError(code)
