"""A writer of transactions in version 2 (KIP-890), request by request.

Each end raises the epoch, and Produce adds partitions. It does on purpose what clients do by bad luck: some batches are
still under way when their transaction is aborted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from millstream_harness.wire import produce_request, record
from millstream_kafka.batch import build_batch
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import end_txn, init_producer_id, produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .history import NEVER, Transacted, value_of
from .transacted import PER_TRANSACTION
from .transactors import (
    ABORTING,
    END_S,
    IDLING,
    MOST_VALUES,
    PAUSE_S,
    SIZE,
    TIMEOUT_MS,
    UNKNOWN_OUTCOME,
    Open,
)
from .violations import ABORTED, COMMITTED
from .worker import Worker

COORDINATOR_OF_TRANSACTIONS = 1
RETRY_S = 0.05
REFUSALS = {
    *(ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE),
    *(ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_PRODUCER_ID),
    *(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_REQUEST),
}
"""Errors after which a request is not repeated."""


class RefusedError(Exception):
    """The transaction, or the producer, cannot go on."""


class NewerTransactor(Worker):
    def run(self) -> None:
        asyncio.run(self.write())

    async def write(self) -> None:
        number = 0
        async with self.probe() as probe:
            self.client = probe.client
            await self.start()
            while self.wait(PAUSE_S):
                number += 1
                await self.transact(number)
                self.flush_now_and_then()

    # ---- requests

    async def start(self) -> None:
        """Get a producer id and epoch; at the end of the run perhaps none."""
        request = init_producer_id.InitProducerIdRequest(self.name, TIMEOUT_MS)
        while not self.ending.is_set():
            try:
                answer = await self.client.call_coordinator(
                    self.name, init_producer_id.API, request, key_type=COORDINATOR_OF_TRANSACTIONS
                )
            except (BrokerError, ApiError):
                pass
            else:
                if not answer.error_code:
                    self.producer = answer.producer_id, answer.producer_epoch
                    return
                self.client.forget_coordinator(self.name, COORDINATOR_OF_TRANSACTIONS)
            await asyncio.sleep(RETRY_S)

    async def repeated(self, ask: Callable[[], Awaitable[ErrorCode]]) -> int:
        """Ask until the answer is good; return how many requests may have been lost. Raises RefusedError."""
        deadline, lost = time.monotonic() + END_S, 0
        while time.monotonic() < deadline:
            try:
                code = await ask()
            except BrokerError:
                lost += 1
            except ApiError:
                pass
            else:
                if code in REFUSALS:
                    raise RefusedError(code.name, lost)
                if not code:
                    return lost
            await asyncio.sleep(RETRY_S)
        self.trouble(f"no good answer in {END_S:g} s")
        raise RefusedError("it takes too long", 1)

    async def produce(self, at: int, numbers: list[int], sequence: int) -> None:
        producer_id, epoch = self.producer
        batch = build_batch(
            [record(value_of(self.name, at, number, SIZE)) for number in numbers],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_request(self.topic, batch, partition=at, acks=-1, transactional_id=self.name)

        async def ask() -> ErrorCode:
            answer = await self.client.call_leader(self.topic, at, produce.BY_NAME, request)
            code = ErrorCode.of(answer.responses[0].partition_responses[0].error_code)
            if code:
                self.client.forget_leaders(self.topic)
            return ErrorCode.NONE if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER else code

        await self.repeated(ask)

    async def end(self, commits: bool) -> int:
        """Return how many requests may have been lost. Raises RefusedError."""
        request = end_txn.EndTxnRequest(self.name, *self.producer, commits)

        async def ask() -> ErrorCode:
            answer = await self.client.call_coordinator(
                self.name, end_txn.API, request, key_type=COORDINATOR_OF_TRANSACTIONS
            )
            if answer.error_code:
                self.client.forget_coordinator(self.name, COORDINATOR_OF_TRANSACTIONS)
            else:
                self.producer = answer.producer_id, answer.producer_epoch
            return ErrorCode.of(answer.error_code)

        return await self.repeated(ask)

    # ---- transactions

    async def transact(self, number: int) -> None:
        transaction = Open(number)
        self.sequences: dict[int, int] = defaultdict(int)
        drawn = random.random()
        outcome = ABORTED
        try:
            if drawn < ABORTING:
                await self.abort_early(transaction)
            else:
                await asyncio.gather(*self.fill(transaction))
                if drawn < ABORTING + IDLING:
                    await asyncio.sleep(random.choice((1.0, 1.5)) * TIMEOUT_MS / 1000)
                    await asyncio.gather(*self.fill(transaction))
                transaction.asked = time.monotonic()
                await self.end(commits=True)
                outcome = COMMITTED
        except RefusedError as refusal:
            if transaction.asked != NEVER and refusal.args[1]:
                outcome = UNKNOWN_OUTCOME  # a lost request may have committed it
            await self.start()
        self.history.add(
            Transacted(
                time.monotonic(), self.name, number, outcome, transaction.asked, transaction.appends, []
            )
        )

    async def abort_early(self, transaction: Open) -> None:
        """Abort while batches are under way: they are stored before the marker, or never."""
        late = [asyncio.ensure_future(one) for one in self.fill(transaction)]
        await asyncio.sleep(random.choice((0.0, 0.002, 0.01)))
        try:
            await self.end(commits=False)
        finally:
            await asyncio.gather(*late, return_exceptions=True)

    def fill(self, transaction: Open) -> list[Awaitable[None]]:
        """Batches of values for some partitions."""
        batches: list[Awaitable[None]] = []
        for at in random.sample(range(self.partitions), random.randint(1, 3)):
            first = transaction.number * PER_TRANSACTION + len(transaction.appends)
            numbers = list(range(first, first + random.randint(1, MOST_VALUES)))
            transaction.appends += [[self.known.id, self.name, at, number] for number in numbers]
            batches.append(self.produce(at, numbers, self.sequences[at]))
            self.sequences[at] += len(numbers)
        return batches
