"""Maps source offsets to target offsets; numbers only, no I/O.

A task's records keep their order in the target, where other writers' records may lie between them. A *span* is a range
in which neither side has anything else: there, translating is one addition. A topic with one source and no holes is one
span, however long. A task remembers its last spans; earlier offsets are looked up in the logs (aggregate/lookup.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from millstream_kafka.batch import advance_sequence

from ..kafka.progress import Progress
from .rewrite import Outgoing

SPANS = 1024
"""Spans per task; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Span:
    """Records that are consecutive in the source and in the target."""

    offset: int
    next_offset: int
    sequence: int
    target_offset: int = -1

    @property
    def records(self) -> int:
        return self.next_offset - self.offset

    def followed_by(self, other: Span) -> bool:
        """Whether both together are one span."""
        return other.offset == self.next_offset and (
            other.target_offset == self.target_offset + self.records or other.target_offset < 0
        )

    def with_more(self, other: Span) -> Span:
        return replace(self, next_offset=other.next_offset)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The record at ``offset`` has the number ``sequence``; earlier records lie before ``target_offset``."""

    offset: int
    sequence: int
    target_offset: int


def spans_of(batches: Iterable[Outgoing]) -> tuple[Span, ...]:
    """The spans of batches that are sent together; their target offsets are still unknown."""
    spans: list[Span] = []
    for batch in batches:
        sequence = batch.base_sequence
        for run in batch.runs or (range(batch.next_offset - batch.records, batch.next_offset),):
            span = Span(run.start, run.stop, sequence)
            sequence = advance_sequence(sequence, len(run))
            if spans and spans[-1].followed_by(span):
                spans[-1] = spans[-1].with_more(span)
            else:
                spans.append(span)
    return tuple(spans)


class OffsetMap:
    """The last spans of one task."""

    def __init__(self, progress: Progress, limit: int = SPANS) -> None:
        self._limit = limit
        self._spans: deque[Span] = deque()
        self.start = self._end = _anchor(progress)
        self._producer = (progress.producer_id, progress.producer_epoch)

    def __len__(self) -> int:
        return len(self._spans)

    def rewound(self, to: Progress) -> None:
        """Forget all spans, unless the task continues at their end."""
        producer = (to.producer_id, to.producer_epoch)
        if producer != self._producer or to.sequence != self._end.sequence:
            self._spans.clear()
            self._producer = producer
            self.start = self._end = _anchor(to)

    def add(self, spans: Iterable[Span], target_offset: int) -> None:
        """Add acknowledged spans; the first begins at ``target_offset``."""
        for span in spans:
            self._add(replace(span, target_offset=target_offset))
            target_offset += span.records

    def _add(self, span: Span) -> None:
        is_next = span.sequence == self._end.sequence
        if not is_next:  # another worker sent records between them
            self._spans.clear()
        first, is_first = self._spans[0] if self._spans else None, not self._spans
        if self._spans and self._spans[-1].followed_by(span):
            self._spans[-1] = self._spans[-1].with_more(span)
        else:
            self._spans.append(span)
        if len(self._spans) > self._limit:
            self._spans.popleft()
        if self._spans[0] is not first:
            first = self._spans[0]
            begins = self.start.offset if is_first and is_next else first.offset  # no record lies between
            self.start = Anchor(begins, first.sequence, first.target_offset)
        number = advance_sequence(span.sequence, span.records)
        self._end = Anchor(span.next_offset, number, span.target_offset + span.records)

    def find(self, offset: int) -> int | None:
        """The target's offset between the task's records before ``offset`` and those from it on.

        None if the spans do not reach back so far."""
        if not self._spans or offset < self.start.offset:
            return None
        if offset >= self._end.offset:
            return self._end.target_offset
        at = bisect_right(self._spans, offset, key=lambda span: span.offset) - 1
        if at < 0:
            return self._spans[0].target_offset
        span = self._spans[at]
        return span.target_offset + min(offset - span.offset, span.records)


def _anchor(progress: Progress) -> Anchor:
    return Anchor(progress.offset, progress.sequence, progress.target_offset)
