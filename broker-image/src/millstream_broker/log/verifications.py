"""Verification that a transaction is open at its coordinator before its first record is written (KIP-890).

A record of a transaction that has already ended (a late request) would open a transaction that nobody ends, and hold
back all readers of committed records for ever. So before the first record of a transaction, the leader asks the
coordinator. A marker may arrive meanwhile, which makes the answer worthless. That is what the guard is for: it exists
from the question to the append, and a marker of the same producer removes it, whatever its epoch.
"""

from __future__ import annotations

from millstream_kafka.protocol.errors import ApiError, ErrorCode

MOST = 100_000
"""Largest number of guards in a log; beyond it, one of the producer that asked first is dropped, and must be asked for
again."""


class VerificationGuard:
    """For a producer's first records of a transaction in this log."""

    __slots__ = ("bumps_epoch", "epoch", "is_verified", "lowest_sequence", "producer_id")

    def __init__(self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        """Of the requests that wait for the answer; -1 for a coordinator's."""
        self.bumps_epoch = bumps_epoch
        """Whether each transaction has an epoch of its own (transaction.version 2)."""
        self.is_verified = False


class Verifications:
    """The guards of one log.

    A producer has one for each epoch that it was asked about: anybody may ask about any producer and epoch, and must
    not remove a guard with that.
    """

    __slots__ = ("_by_producer", "_count")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[int, VerificationGuard]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, producer_id: int, epoch: int) -> VerificationGuard | None:
        guards = self._by_producer.get(producer_id)
        return None if guards is None else guards.get(epoch)

    def begin(self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool) -> VerificationGuard:
        """The guard for a question to the coordinator. Requests of the same epoch that wait together share it."""
        guard = self.find(producer_id, epoch)
        if guard is None:
            guard = VerificationGuard(producer_id, epoch, sequence, bumps_epoch=bumps_epoch)
            self._by_producer.setdefault(producer_id, {})[epoch] = guard
            self._count += 1
            if self._count > MOST:
                self._drop_oldest()
        else:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
            guard.bumps_epoch = guard.bumps_epoch and bumps_epoch
        return guard

    def _drop_oldest(self) -> None:
        producer_id, guards = next(iter(self._by_producer.items()))
        del guards[next(iter(guards))]
        self._count -= 1
        if not guards:
            del self._by_producer[producer_id]

    def verified(self, guard: VerificationGuard) -> None:
        """The coordinator has the partition in an open transaction. INVALID_TXN_STATE if it has ended meanwhile."""
        if self.find(guard.producer_id, guard.epoch) is not guard:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {guard.producer_id}: the transaction of epoch {guard.epoch} has ended meanwhile",
            )
        guard.is_verified = True

    def check(self, producer_id: int, epoch: int) -> VerificationGuard:
        """The guard of records that begin a transaction. ApiError INVALID_TXN_STATE if they were not verified."""
        guard = self.find(producer_id, epoch)
        if guard is None or not guard.is_verified:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id}, epoch {epoch}: the records are not part of an open transaction",
            )
        return guard

    def end(self, producer_id: int) -> None:
        """The producer's transaction is open in this log, or has ended: no guard is needed."""
        if (guards := self._by_producer.pop(producer_id, None)) is not None:
            self._count -= len(guards)
