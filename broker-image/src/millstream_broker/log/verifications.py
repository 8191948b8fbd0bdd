"""Verification that a transaction is open at its coordinator before its first record is written (KIP-890).

A record of a transaction that has already ended (a late request) would open a transaction that nobody ends, and hold
back all readers of committed records for ever. So before the first record of a transaction, the leader asks the
coordinator. A marker may arrive meanwhile, which makes the answer worthless. That is what the guard is for: it exists
from the question to the append, and a marker of the same producer removes it.
"""

from __future__ import annotations

from millstream_kafka.protocol.errors import ApiError, ErrorCode

MOST = 100_000
"""Largest number of guards; beyond it, the oldest is dropped, and its producer must ask again."""


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
    """The guards of one log."""

    __slots__ = ("by_producer",)

    def __init__(self) -> None:
        self.by_producer: dict[int, VerificationGuard] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool) -> VerificationGuard:
        """The guard for a question to the coordinator. Requests of the same epoch that wait together share it."""
        guard = self.by_producer.get(producer_id)
        if guard is None or guard.epoch != epoch:
            guard = VerificationGuard(producer_id, epoch, sequence, bumps_epoch=bumps_epoch)
            self.by_producer.pop(producer_id, None)
            self.by_producer[producer_id] = guard
            if len(self.by_producer) > MOST:
                del self.by_producer[next(iter(self.by_producer))]
        else:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
            guard.bumps_epoch = guard.bumps_epoch and bumps_epoch
        return guard

    def verified(self, guard: VerificationGuard) -> None:
        """The coordinator has the partition in an open transaction. INVALID_TXN_STATE if it has ended meanwhile."""
        if self.by_producer.get(guard.producer_id) is not guard:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {guard.producer_id}: the transaction of epoch {guard.epoch} has ended meanwhile",
            )
        guard.is_verified = True

    def check(self, producer_id: int, epoch: int) -> VerificationGuard:
        """The guard of records that begin a transaction. ApiError INVALID_TXN_STATE if they were not verified."""
        guard = self.by_producer.get(producer_id)
        if guard is None or guard.epoch != epoch or not guard.is_verified:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id}, epoch {epoch}: the records are not part of an open transaction",
            )
        return guard

    def end(self, producer_id: int) -> None:
        """The producer's transaction is open in this log, or has ended: no guard is needed."""
        self.by_producer.pop(producer_id, None)
