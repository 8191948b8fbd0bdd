"""A leader's view of its followers: which replicas are in sync, and how far the high watermark may advance.

Events in (a follower fetched, the log grew, a write of the ISR ended), decisions out (the high watermark, an ISR to
write). No clock and no input or output: the caller passes milliseconds.

- A follower's *log end* is the offset it fetches from: it has everything before. It is *caught up* as long as that is
  the leader's log end, or, while records pour in, at the time of its previous fetch if it has now reached the log end
  of that time (Kafka's rule).
- The ISR is the one in coordination. During a write of the ISR nobody knows which of the two is stored:
  then both count (the *maximal* ISR, KIP-497). There is one such write at a time; it carries the version it replaces.
- The *high watermark* is the smallest log end in the maximal ISR. It advances only while the stored ISR has
  min.insync.replicas members (KIP-966), and never moves back. It also waits for followers that keep up and are about to
  join: under load they would otherwise chase it endlessly.
- A replica that leaves an ISR, which then has too few members, is kept in `elr`: the high watermark stands still from
  then on, so such replicas still have every acknowledged record. It does not move again before a state without them is
  stored.
- A follower leaves the ISR if it was not caught up for `max_lag_ms`, or if it fetches below the high watermark, because
  it has then lost records. It joins if it keeps up and its log end has reached the high watermark and the start of the
  leader's epoch.
- A new leader epoch begins with no knowledge but the log.

So each record below the high watermark is in the log of every member of the stored ISR, whichever that is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination import PartitionRecord

UNKNOWN = -1


def eligible_leaders(record: PartitionRecord, isr: Collection[int], min_isr: int) -> tuple[int, ...]:
    """The `elr` for a new ISR: the other replicas that have every acknowledged record."""
    if len(isr) >= min(min_isr, len(record.replicas)):
        return ()
    had_all = {*record.isr, *record.elr}
    return tuple(replica for replica in record.replicas if replica in had_all and replica not in isr)


class ReplicaState:
    """A leader's knowledge of one follower."""

    __slots__ = ("caught_up_ms", "fetched_ms", "leader_end", "log_end", "log_start")

    def __init__(self, caught_up_ms: int) -> None:
        self.log_end = self.log_start = UNKNOWN
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = UNKNOWN
        self.leader_end = UNKNOWN
        """The leader's log end at the last fetch."""

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.leader_end != UNKNOWN and offset >= self.leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end = offset
        self.leader_end = leader_end
        self.fetched_ms = now_ms


class Isr:
    """The ISR of one partition, while this broker leads it."""

    __slots__ = (
        "_alive",
        "_epoch_start",
        "_log_end",
        "_settled",
        "broker_id",
        "followers",
        "high_watermark",
        "max_lag_ms",
        "min_isr",
        "pending",
        "record",
    )

    def __init__(
        self,
        broker_id: int,
        record: PartitionRecord,
        *,
        log_end: int,
        high_watermark: int,
        min_isr: int,
        max_lag_ms: int,
        alive: Collection[int],
        now_ms: int,
    ) -> None:
        """``log_end`` is the leader's at the takeover; ``high_watermark`` the last it knew, as a follower or before."""
        self.broker_id = broker_id
        self.min_isr = min_isr
        self.max_lag_ms = max_lag_ms
        self.high_watermark = min(high_watermark, log_end)
        self._alive = frozenset(alive)
        self._begin(record, log_end, now_ms)

    def _begin(self, record: PartitionRecord, log_end: int, now_ms: int) -> None:
        self.record = record
        self.pending: PartitionRecord | None = None
        self._settled = True
        self._log_end = self._epoch_start = log_end
        self.followers = {
            replica: ReplicaState(now_ms if replica in record.isr else UNKNOWN)
            for replica in record.replicas
            if replica != self.broker_id
        }

    # State

    @property
    def maximal(self) -> frozenset[int]:
        """The stored ISR, and the one being written."""
        stored = frozenset(self.record.isr)
        return stored if self.pending is None else stored.union(self.pending.isr)

    @property
    def is_under_min(self) -> bool:
        return len(self.record.isr) < min(self.min_isr, len(self.record.replicas))

    def max_lag(self) -> int:
        """The largest number of records that any follower still has to fetch."""
        ends = [max(follower.log_end, 0) for follower in self.followers.values()]
        return max(0, self._log_end - min(ends, default=self._log_end))

    # Events

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark covers everything acknowledged before this epoch; otherwise it may lag."""
        return self.high_watermark >= self._epoch_start

    def low_watermark(self, log_start: int) -> int:
        """The largest log start among the leader, whose log starts there, and all live followers."""
        starts = [
            follower.log_start for replica, follower in self.followers.items() if replica in self._alive
        ]
        return min(log_start, *starts) if starts else log_start

    def fetched(self, replica: int, offset: int, log_end: int, now_ms: int, log_start: int = UNKNOWN) -> None:
        """A follower requests records from `offset` on; `log_end` is the leader's.

        Raises ApiError, with nothing changed: OFFSET_OUT_OF_RANGE if the leader has nothing before that offset, so that
        no follower is credited with records that the leader lacks; UNKNOWN_LEADER_EPOCH for a broker that is no
        replica.
        """
        if not 0 <= offset <= log_end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if (follower := self.followers.get(replica)) is None:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        self._log_end = log_end
        lost = offset < self.high_watermark and not UNKNOWN < follower.log_end <= offset
        follower.fetched(offset, log_end, now_ms)
        follower.log_start = log_start
        if lost:
            follower.caught_up_ms = UNKNOWN

    def advance(self, log_end: int, now_ms: int, own_end: int | None = None) -> int:
        """Move the high watermark as far as it may go, and return it.

        `own_end` is the end of the leader's own log, or less if the flush policy holds it back.
        """
        if log_end > self._log_end:
            for follower in self.followers.values():
                if follower.log_end == self._log_end:  # until now there was nothing to fetch
                    follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            self._log_end = log_end
        if self.is_under_min or self.record.elr:
            return self.high_watermark
        to = log_end if own_end is None else own_end
        maximal = self.maximal
        for replica, follower in self.followers.items():
            if follower.log_end < to and (replica in maximal or self._is_joining(replica, follower, now_ms)):
                to = follower.log_end
        self.high_watermark = max(self.high_watermark, to)
        return self.high_watermark

    def update(self, record: PartitionRecord, log_end: int, now_ms: int) -> bool:
        """Take coordination's record; returns whether it is newer. Not for a record with another leader."""
        known = self.record
        if record.leader_epoch > known.leader_epoch:
            self._begin(record, log_end, now_ms)
            return True
        if record.leader_epoch < known.leader_epoch or record.version <= known.version:
            if record.leader_epoch == known.leader_epoch and record.version == known.version:
                self.record = record  # replicas are written apart from the state
                self._keep_followers()
            return False
        self.record = record
        self.pending = None  # it was conditional on a replaced version
        self._keep_followers()
        return True

    def _keep_followers(self) -> None:
        """Replicas may come and go within an epoch (reassignment)."""
        self.followers = {
            replica: self.followers.get(replica) or ReplicaState(UNKNOWN)
            for replica in self.record.replicas
            if replica != self.broker_id
        }

    def set_alive(self, alive: Collection[int]) -> None:
        """Set the registered brokers: no others join an ISR."""
        self._alive = frozenset(alive)

    def truncated(self, log_end: int, now_ms: int) -> None:
        """The leader's log was truncated there, perhaps below the high watermark: followers must truncate theirs, too.

        Until they fetch again nothing is known about them. They have as much time for it as after an election.
        """
        self.high_watermark = min(self.high_watermark, log_end)
        self._log_end = self._epoch_start = log_end
        for replica, follower in self.followers.items():
            follower.log_end = follower.leader_end = UNKNOWN
            if replica in self.maximal:
                follower.caught_up_ms = now_ms

    @property
    def all_are_level(self) -> bool:
        """Whether each replica that may be the next leader has exactly the leader's log."""
        may_lead = self.maximal.union(self.record.elr)
        return all(
            follower.log_end == self._log_end
            for replica, follower in self.followers.items()
            if replica in may_lead
        )

    # The ISR

    def propose(self, now_ms: int) -> PartitionRecord | None:
        """The ISR to write now, if any; it is `pending` until one of the three methods below is called.

        A write with an unknown outcome is proposed again unchanged.
        """
        if self.pending is not None:
            if self._settled:
                return None
        else:
            isr = self._wanted(now_ms)
            elr = tuple(
                replica
                for replica in eligible_leaders(self.record, isr, self.min_isr)
                if replica not in self.followers or not self._has_lost_records(self.followers[replica])
            )
            if set(isr) == set(self.record.isr) and set(elr) == set(self.record.elr):
                return None
            self.pending = replace(self.record, isr=isr, elr=elr)
        self._settled = True
        return self.pending

    def written(self, record: PartitionRecord) -> bool:
        """The write succeeded; returns whether the record is news."""
        return self._outcome(record)

    def conflicted(self, stored: PartitionRecord) -> bool:
        """The write failed because of the stored record; take it if it is of this epoch. Another arrives later."""
        return self._outcome(stored)

    def unknown(self) -> None:
        """The write's outcome is unknown: it must be repeated."""
        self._settled = False

    def _outcome(self, record: PartitionRecord) -> bool:
        if record.leader_epoch != self.record.leader_epoch or record.leader != self.broker_id:
            return False
        return self.update(record, self._log_end, 0)

    def _wanted(self, now_ms: int) -> tuple[int, ...]:
        """The desired ISR, in the order of the replicas."""
        stored = self.record.isr
        wanted = []
        for replica in self.record.replicas:
            follower = self.followers.get(replica)
            if follower is None:
                keep = replica == self.broker_id
            elif replica in stored:
                keep = not self._has_fallen_behind(follower, now_ms)
            else:
                keep = self._may_join(replica, follower, now_ms)
            if keep:
                wanted.append(replica)
        return tuple(wanted)

    def _has_fallen_behind(self, follower: ReplicaState, now_ms: int) -> bool:
        return self._has_lost_records(follower) or not self._is_caught_up(follower, now_ms)

    def _has_lost_records(self, follower: ReplicaState) -> bool:
        """Whether a member of the ISR, now or at the last advance of the high watermark, fetches below it."""
        return UNKNOWN < follower.log_end < self.high_watermark

    def _is_caught_up(self, follower: ReplicaState, now_ms: int) -> bool:
        if follower.log_end == self._log_end:
            return True
        return follower.caught_up_ms != UNKNOWN and now_ms - follower.caught_up_ms <= self.max_lag_ms

    def _may_join(self, replica: int, follower: ReplicaState, now_ms: int) -> bool:
        start = max(self.high_watermark, self._epoch_start)
        return follower.log_end >= start and self._is_joining(replica, follower, now_ms)

    def _is_joining(self, replica: int, follower: ReplicaState, now_ms: int) -> bool:
        return replica in self._alive and follower.log_end != UNKNOWN and self._is_caught_up(follower, now_ms)
