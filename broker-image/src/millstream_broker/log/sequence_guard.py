"""Refuses idempotent batches that follow one which was refused with a retriable error.

A client has several batches in flight. Suppose the first is refused with a retriable error (too few replicas, a full
disk), and the reason is gone before the second arrives. The second does not follow the last batch in the log:
OUT_OF_ORDER_SEQUENCE_NUMBER would make the client raise its epoch (KIP-360) and resend what other partitions have
already stored; and a log that does not know the producer yet would accept it, so that the first could never follow. So
the second gets the first one's error, and the client resends both in order.

The guard belongs to the log and not to a leadership: the first may have met this broker while it still followed
(NOT_LEADER_OR_FOLLOWER), the second when it leads.

An entry ends when its batch arrives again, when the producer has a newer epoch, and after FORGOTTEN_S: a client that
has abandoned the batch must learn that it is missing. A monotonic clock measures that time: an entry would
end too early if the wall clock jumped ahead, too late if it was set back.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from millstream_kafka.batch import HEADER_SIZE, INT32_MAX, NO_PRODUCER, advance_sequence, read_header
from millstream_kafka.protocol.errors import ApiError

from .producer_state import ProducerStateEntry, ProducerStateManager

FORGOTTEN_S = 10.0
MOST = 1000
"""Largest number of producers; beyond it, the oldest entry is dropped."""


class Refused(NamedTuple):
    epoch: int
    sequence: int
    error: ApiError
    until: float


class SequenceGuard:
    """The guard of one log."""

    __slots__ = ("_clock", "by_producer")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self.by_producer: dict[int, Refused] = {}
        """The first batch of each producer that was refused and has not arrived again; the first to end come first."""

    def note(
        self, batches: bytes | bytearray | memoryview, error: ApiError, producers: ProducerStateManager
    ) -> None:
        """Note that the batches were refused with ``error``."""
        if not error.code.retriable or len(batches) < HEADER_SIZE:
            return
        self._forget_old()
        header = read_header(batches)
        if header.base_sequence < 0:  # a coordinator's batch, which has no order
            return
        stored = producers.by_id.get(header.producer_id)
        if header.producer_id == NO_PRODUCER or (stored is not None and stored.find(header) is not None):
            return  # of a repetition, nothing is missing: what follows may be
        known = self.by_producer.get(header.producer_id)
        if (
            known is not None
            and known.epoch == header.producer_epoch
            and known.sequence != header.base_sequence
        ):
            return  # the first one is missing
        self.by_producer.pop(header.producer_id, None)
        error = ApiError(error.code, error.message)  # without the stack, which refers to the batches
        self.by_producer[header.producer_id] = Refused(
            header.producer_epoch, header.base_sequence, error, self._clock() + FORGOTTEN_S
        )
        if len(self.by_producer) > MOST:
            del self.by_producer[next(iter(self.by_producer))]

    def check(self, batches: bytes | bytearray | memoryview, producers: ProducerStateManager) -> None:
        """Raises ApiError for batches that follow refused ones which have not arrived again."""
        self._forget_old()
        if not self.by_producer or len(batches) < HEADER_SIZE:
            return
        header = read_header(batches)
        refused = self.by_producer.get(header.producer_id)
        if refused is None or header.base_sequence < 0 or header.producer_epoch < refused.epoch:
            return
        behind = (header.base_sequence - refused.sequence) & INT32_MAX
        if header.producer_epoch == refused.epoch and behind > INT32_MAX // 2:
            return  # it precedes the refused one
        if (
            header.producer_epoch > refused.epoch
            or not behind
            or not _is_missing(refused, producers.by_id.get(header.producer_id))
        ):
            del self.by_producer[header.producer_id]
            return
        raise ApiError(refused.error.code, refused.error.message)

    def _forget_old(self) -> None:
        """End what is over, even for producers that never come back: any entry makes all appends take longer."""
        while self.by_producer:
            producer, oldest = next(iter(self.by_producer.items()))
            if oldest.until >= self._clock():
                return
            del self.by_producer[producer]


def _is_missing(refused: Refused, known: ProducerStateEntry | None) -> bool:
    """Whether the refused batch is the next one that the log would accept."""
    if known is None or known.epoch < refused.epoch:
        return True
    return known.epoch == refused.epoch and advance_sequence(known.last.last_sequence, 1) == refused.sequence
