"""Transactions that a mirror's replica has copied without their end: a promoted partition aborts them.

Their coordinator is in the source's cluster and sends no marker here, so they would hold back the last stable offset
for ever. The leader appends the markers when the promotion reaches it. While it cannot (too few in-sync replicas), it
tries again with each change of ISR or leadership. A leader that takes over, or starts, after a promotion that was noted
in `millstream.mirror.promoted` finds the end of the source's records by their leader epochs, which are far
below its own.

Invariant: a transaction that began after the promotion is left alone; its coordinator may have committed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from time import time

from millstream_kafka.control_batch import EndTransactionMarker, build_marker
from millstream_kafka.protocol.errors import ApiError

from ..log.log import Log
from ..topic_rules.mirrored_topics import EPOCHS_ABOVE

AT_ONCE = 100
"""Markers that one step appends."""

log = logging.getLogger(__name__)


def end_of_source(epochs: Sequence[tuple[int, int]], leader_epoch: int, log_end: int) -> int:
    """The end of the source's records in a promoted log, by its leader epochs and their first offsets; 0: none."""
    for (epoch, _), (later, offset) in pairwise([*epochs, (leader_epoch, log_end)]):
        if later >= epoch + EPOCHS_ABOVE:
            return offset
    return 0


class SourceTransactions:
    __slots__ = ("_append", "_end", "_log")

    def __init__(self, of: Log, append: Callable[[bytearray, int], object]) -> None:
        """``append`` appends a marker, at a time in milliseconds; it raises ApiError."""
        self._log = of
        self._append = append
        self._end = 0
        """Transactions that began before this offset have to be aborted; 0 when none has to."""

    def promoted(self, end: int) -> None:
        """The source's records end at this offset."""
        if self._log.producers.transactions.open:
            self._end = end
            self.retry()

    def retry(self) -> None:
        """The partition may have become able to append."""
        if self._end:
            asyncio.get_running_loop().call_soon(self._abort)

    def _abort(self) -> None:
        producers, end, now_ms = self._log.producers, self._end, int(time() * 1000)
        of_source = [producer_id for first, producer_id in producers.transactions.open.items() if first < end]
        for producer_id in islice(of_source, AT_ONCE):
            producer = producers.by_id[producer_id]
            marker = build_marker(
                EndTransactionMarker(committed=False, coordinator_epoch=max(producer.coordinator_epoch, 0)),
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                timestamp=now_ms,
            )
            try:
                self._append(bytearray(marker), now_ms)
            except ApiError as error:
                log.warning(
                    "%s: cannot abort %d transactions of its former source yet: %s",
                    self._log.segments.path,
                    len(of_source),
                    error.message,
                )
                return
        if len(of_source) > AT_ONCE:
            self.retry()
        else:
            self._end = 0
