"""A partition task: one partition of a source topic, mirrored into the target. Numbers only, no I/O.

    committed ≤ acknowledged ≤ sent (position, sequence)

``acknowledged`` advances over requests in the order they were sent, whatever the order of the responses. If one fails,
all later ones are void: the task sends nothing until the last response has arrived, then ``rewind`` returns to
``acknowledged``, and the same batches get the same numbers again.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from millstream_kafka.batch import INT32_MAX
from millstream_kafka.topic_partition import TopicPartition

from ..kafka.progress import Gap, LastBatch, Progress
from ..records.end_offsets import EndOffsets
from ..records.offset_map import OffsetMap, Span, spans_of
from ..records.rewrite import Outgoing
from .task_state import (
    AtGap,
    Findings,
    Halted,
    Recovering,
    Skip,
    State,
    failed,
    found,
    recovered,
    recovering,
    rewound,
)

HALF_OF_SEQUENCES = 1 << 30
ONE_BY_ONE_AT_ONCE = 128
"""Batches of a task in flight, each in a request of its own. Kafka serves the requests of a connection one after the
other: many more would time out together, and all be sent again."""
ONE_BY_ONE_BYTES = 1 << 20
"""A task whose batches go one by one does not fetch with more bytes in flight: Kafka would let them wait."""
FETCH_BYTES, LEAST_FETCH_BYTES = 1 << 20, 16 << 10
RECORD_TOO_LARGE, BATCH_NOT_MIRRORED, DIVERGED = "RecordTooLarge", "BatchNotMirrored", "Diverged"
"""Conditions' reasons for a task that waits for a user's action."""

MISMATCH = "the last record in the target is another one than the source's"
SOURCE_ENDS = "the target has more of it than the source"
"""Why a task compares records: those of source and target differ at the same number, or the source has fewer."""

UNKNOWN_AFTER_MS = 30_000
"""Every response of the source about a task shows its end, even one without news, which comes every second."""

Side = Literal["source", "target", ""]
"""A cluster of the mirror; empty if unknown."""


@dataclass(slots=True)
class Written:
    """Counts of records and bytes written to one topic of the target since the worker started."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class SentRequest:
    """Batches of the task in one Produce request."""

    next_offset: int
    next_sequence: int
    records: int
    size: int
    batches: int
    spans: tuple[Span, ...] = ()
    last: LastBatch | None = None
    target_offset: int | None = None
    """Set when it is acknowledged: the offset after it in the target, -1 if unknown."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class PartitionTask:
    topic: str
    partition: int
    target_topic: str
    acknowledged: Progress
    committed: Progress | None = None
    position: int = 0
    sequence: int = 0
    left_out: LastBatch | None = None
    """The last batch before ``position``, if it is not sent."""
    in_flight: deque[SentRequest] = field(default_factory=deque)
    bytes_in_flight: int = 0
    state: State = field(default_factory=Recovering)
    unreplicated_since: float = 0.0
    """Since when the target's leader has records that it does not return yet (monotonic clock); 0 if it has none."""
    refused_at: int | None = None
    """The acknowledged number at the time when the target refused the next one."""
    compared_at: float = 0.0
    """When it was last compared (seconds of the monotonic clock)."""
    is_compacted: bool = False
    """The source may take records out: before anything is sent again, read what the target has."""
    skip: Skip | None = None
    one_by_one: bool = False
    """The target accepts only one batch for each request."""
    fetch_bytes: int = FETCH_BYTES
    """How much to fetch at once; less where small batches go one by one."""
    probing: bool = True
    """Nothing was acknowledged yet since the last rewind: send one batch and wait."""
    failures: int = 0
    high_watermark: int = -1
    new_until: int = -1
    """The source's high watermark when it was first seen: a new task that has this is new no more."""
    moved_ms: int = 0
    """When the source's high watermark was first seen at its present value."""
    observed_ms: int = 0
    """When the high watermark was last seen."""
    ends: EndOffsets = field(default_factory=EndOffsets)
    caught_up_ms: int = 0
    """When the oldest record that is missing in the target was first seen; the present if none is."""
    leader: int = -1
    """The broker to fetch from: the leader, or a follower until ``replica_until``."""
    source_epoch: int = -1
    """The source's leader epoch for fetches: brokers under another epoch refuse them (KIP-320). -1 means any."""
    replica_until: float = 0.0
    """Seconds of time.monotonic; 0 if it fetches from the leader."""
    turn: int = 0
    """Under a byte limit, requests name the task with the lowest turn first."""
    error: str = ""
    side: Side = ""
    """The cluster of the last error."""
    reason: str = ""
    """The reason why ``error`` needs a user's action; empty if the task retries by itself."""
    written: Written = field(default_factory=Written)
    """The counts of its topic."""
    source: TopicPartition = field(init=False)
    target: TopicPartition = field(init=False)
    offsets: OffsetMap = field(init=False)
    origins: tuple[str, ...] = field(init=False)
    """Ids of the clusters from which the topic's records came to the source; committed with the progress."""

    def __post_init__(self) -> None:
        self.source, self.target = (self.topic, self.partition), (self.target_topic, self.partition)
        self.offsets = OffsetMap(self.acknowledged)
        self.origins = self.acknowledged.origins
        self.rewind(self.acknowledged)
        self.caught_up_ms = self.acknowledged.caught_up_ms

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def at(self) -> tuple[int, int, int, int, int]:
        """Where it sends next: while this stays equal, batches that were numbered before are still its next ones."""
        here = self.acknowledged
        return self.position, self.sequence, here.producer_id, here.producer_epoch, self.source_epoch

    @property
    def lag(self) -> int:
        """Records of the source that are not in the target; 0 while nothing is known."""
        return max(0, self.high_watermark - self.acknowledged.offset) if self.high_watermark >= 0 else 0

    def lag_seconds(self, now_ms: int) -> float:
        """The age of the oldest record that is missing, in seconds since it was first seen."""
        return max(0.0, (now_ms - self.caught_up_ms) / 1000) if self.lag else 0.0

    def is_lag_unknown(self, now_ms: int) -> bool:
        """Whether its lag is unknown: the source's end was never seen, or, if it was reached, not for a while."""
        if self.reason or self.findings.replaced or self.gap is not None:
            return False
        if not self.lag and self.has_failed and self.findings.target_missing:
            return True  # it has lost records, and finds out how many
        return not self.observed_ms or (not self.lag and now_ms - self.observed_ms > UNKNOWN_AFTER_MS)

    @property
    def findings(self) -> Findings:
        return self.state.findings

    @property
    def has_failed(self) -> bool:
        """Whether requests in flight are void."""
        return self.state.has_failed

    @property
    def gap(self) -> Gap | None:
        """The gap at which it waits for a user's decision."""
        return self.state.gap if isinstance(self.state, AtGap) else None

    @property
    def is_recovering(self) -> bool:
        """Whether a recovery has it, or it waits for a user's decision."""
        return isinstance(self.state, Recovering | AtGap)

    @property
    def has_to_act(self) -> bool:
        """Whether it has work even if the source has no news."""
        return self.skip is not None

    @property
    def is_stopped(self) -> bool:
        """Whether it needs a recovery, once nothing is in flight."""
        return isinstance(self.state, Halted | AtGap) or self.has_failed or self.findings.compare_source

    @property
    def is_idle(self) -> bool:
        """Whether everything that it has sent is acknowledged."""
        return not (self.is_recovering or self.is_stopped or self.in_flight or self.skip is not None)

    def may_fetch(self, limit: int) -> bool:
        if self.is_recovering or self.is_stopped or (self.probing and self.in_flight):
            return False
        if self.one_by_one:
            if len(self.in_flight) > ONE_BY_ONE_AT_ONCE // 2:
                return False
            limit = min(limit, ONE_BY_ONE_BYTES)
        return self.bytes_in_flight < limit

    def is_full(self, limit: int) -> bool:
        """Whether it may fetch again as soon as responses arrive, without a recovery."""
        return bool(self.in_flight) and not (self.is_stopped or self.is_recovering or self.may_fetch(limit))

    def take(self, batches: list[Outgoing]) -> list[Outgoing]:
        """As many of the batches as may be sent one by one now; the others are fetched again."""
        taken = batches[: ONE_BY_ONE_AT_ONCE - len(self.in_flight)]
        if len(taken) < len(batches):
            enough = max(LEAST_FETCH_BYTES, 2 * sum(len(batch.data) for batch in taken))
        else:
            enough = 2 * self.fetch_bytes
        self.fetch_bytes = min(enough, FETCH_BYTES)
        return taken

    def rewind(self, to: Progress) -> None:
        """Continue from this progress; only when nothing is in flight."""
        assert not self.in_flight
        self.acknowledged = to
        self.offsets.rewound(to)
        self.position, self.sequence, self.left_out = to.offset, to.sequence, None
        self.state = rewound(self.state)
        self.unreplicated_since = 0.0
        self.skip = None
        self.probing = True

    def skip_present(self, batches: list[Outgoing], position: int) -> list[Outgoing] | None:
        """Skip records that the target already has; None if the numbers do not fit (see the package's docstring)."""
        skipped = 0
        while skipped < len(batches) and self.skip is not None:
            passed = batches[skipped]
            ahead = (self.skip.to - passed.next_sequence) & INT32_MAX
            if self.skip.to == passed.base_sequence:
                self.skip = None
                break
            if ahead >= HALF_OF_SEQUENCES:
                return None
            skipped += 1
            self.position, self.sequence = passed.next_offset, passed.next_sequence
            if self.skip.to == self.sequence:  # only now: the last record tells whether these are the same
                end, self.skip = self.skip.end, None
                self.acknowledged = replace(
                    self.acknowledged,
                    offset=self.position,
                    sequence=self.sequence,
                    target_offset=max(self.acknowledged.target_offset, end),
                    last=passed.source,
                )
                self.offsets.rewound(self.acknowledged)
        if skipped == len(batches):
            self.position = position
        return batches[skipped:]

    def send(self, batches: list[Outgoing]) -> SentRequest:
        """Record that these batches are sent now, in one request."""
        last = batches[-1]
        sent = SentRequest(
            last.next_offset,
            last.next_sequence,
            sum(batch.records for batch in batches),
            sum(len(batch.data) for batch in batches),
            len(batches),
            spans_of(batches),
            last.source,
        )
        self.position, self.sequence, self.left_out = last.next_offset, last.next_sequence, None
        self.in_flight.append(sent)
        self.bytes_in_flight += sent.size
        return sent

    def moved_on(self, position: int, last: LastBatch | None) -> None:
        """Skip to ``position`` without sending, over control batches and aborted transactions; ``last`` ends there."""
        self.position, self.left_out = position, last
        is_idle = not (self.in_flight or self.has_failed) and self.skip is None
        if is_idle and position > self.acknowledged.offset:
            self.acknowledged = replace(
                self.acknowledged, offset=position, last=last or self.acknowledged.last
            )

    def succeeded(self, sent: SentRequest, base_offset: int) -> None:
        if sent not in self.in_flight:
            return
        sent.target_offset = base_offset + sent.records if base_offset >= 0 else -1
        if self.has_failed:
            self._drop(sent)
            return
        if 0 <= base_offset < self.acknowledged.target_offset:
            self.fail(f"{self}: the target's log is another one than before", sent)
            self.find(target_missing=True)
            return
        while self.in_flight and (target_offset := self.in_flight[0].target_offset) is not None:
            first = self.in_flight.popleft()
            self.bytes_in_flight -= first.size
            if target_offset >= 0:
                self.offsets.add(first.spans, target_offset - first.records)
            self.acknowledged = replace(
                self.acknowledged,
                offset=first.next_offset,
                sequence=first.next_sequence,
                target_offset=max(self.acknowledged.target_offset, target_offset),
                last=first.last or self.acknowledged.last,
            )
            self.probing = False
            self.failures = 0
            self.refused_at = None
            self.error = self.reason = ""
        self._note_lag()
        if not self.in_flight and self.position > self.acknowledged.offset:
            self.moved_on(self.position, self.left_out)

    def fail(
        self,
        error: str,
        sent: SentRequest | None = None,
        *,
        reason: str = "",
        side: Side = "target",
    ) -> None:
        """Fail the task: later requests are void, even those with responses that waited for ``sent``."""
        self.state = failed(self.state)
        self.error, self.side, self.reason = error, side, reason
        for request in [
            request for request in self.in_flight if request is sent or request.target_offset is not None
        ]:
            self._drop(request)

    def lost(self, end: int) -> None:
        """The target's log, which ends there, lacks acknowledged records."""
        before = self.acknowledged.target_offset
        how = f"its log ends at offset {end}, and ended at {before}"
        if end >= before:
            how = "its log has records of others in their place"
        self.fail(f"{self}: the target has lost records: {how}")
        self.find(target_missing=True)

    def passed(self, last: LastBatch) -> None:
        """Note the batch that ends at the acknowledged offset; only when nothing is in flight."""
        self.acknowledged = replace(self.acknowledged, last=last)

    def committed_for(self, group: str, target_offset: int) -> None:
        """Remember an offset in the target that was committed for a group."""
        self.acknowledged = self.acknowledged.with_committed(group, target_offset)

    def compare_again(self, error: str = "") -> None:
        """Stop fetching, and compare with the source before it continues; responses of the target still count."""
        self.find(compare_source=True)
        if error:
            self.error, self.side, self.reason = error, "source", ""

    def find(self, **changes: Any) -> None:
        """Note what was found out, by the fields of `Findings`: it needs a recovery."""
        self.state = found(self.state, replace(self.findings, **changes))

    def start_recovery(self) -> None:
        """Only when nothing is in flight."""
        self.state = recovering(self.state)

    def end_recovery(self) -> None:
        """Run, unless something has happened meanwhile, or a user has to decide."""
        self.state = recovered(self.state)

    def stop_at(self, gap: Gap) -> None:
        """Wait for a user's decision."""
        self.state = AtGap(gap, self.findings)

    def _drop(self, sent: SentRequest) -> None:
        self.in_flight.remove(sent)
        self.bytes_in_flight -= sent.size

    def observe_end(self, high_watermark: int) -> None:
        """Note the end of the source's log.

        The source's past errors are over then, and the target's once it has all of the log.
        """
        self.observed_ms = int(time.time() * 1000)
        if self.new_until < 0:
            self.new_until = high_watermark
        if high_watermark != self.high_watermark:
            is_first = self.high_watermark < 0
            self.high_watermark, self.moved_ms = high_watermark, self.observed_ms
            # What has arrived before the worker did is as old as the progress.
            is_older = is_first and bool(self.lag)
            self.ends.observe(high_watermark, self.caught_up_ms if is_older else self.observed_ms)
        self._note_lag()
        if not self.is_stopped and (self._is_over() or not (self.lag or self.in_flight)):
            self.error = self.reason = ""
            self.failures = 0

    def _is_over(self) -> bool:
        """Whether a response of the source ends the present error."""
        return self.side == "source" and not self.reason

    def _note_lag(self) -> None:
        if self.acknowledged.is_new and 0 <= self.new_until <= self.acknowledged.offset:
            self.acknowledged = replace(self.acknowledged, is_new=False)
        if not self.lag:
            self.caught_up_ms = int(time.time() * 1000)
        elif (since := self.ends.behind_since(self.acknowledged.offset)) is not None:
            self.caught_up_ms = since

    def to_commit(self) -> Progress | None:
        """The progress to commit, or None if it is committed."""
        before, now = self.committed, self.acknowledged
        end, moved_ms = self.high_watermark, self.moved_ms
        if end < 0:
            end, moved_ms = now.source_end, now.observed_ms
        if (
            before is not None
            and (before.offset, before.sequence, before.source_end) == (now.offset, now.sequence, end)
            and (before.origins, before.last, before.target_id) == (self.origins, now.last, now.target_id)
            and (before.is_new, before.groups) == (now.is_new, now.groups)
        ):
            return None
        return replace(
            now,
            caught_up_ms=self.caught_up_ms,
            origins=self.origins,
            source_end=end,
            observed_ms=moved_ms,
        )
