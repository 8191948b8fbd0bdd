"""Resets of a group's positions: the outcome of a request, and the rest of a reset that has begun; pure.

A reset begins with its intent: the positions before and after, in the status. Then the positions are committed in steps
of ``STEP`` positions. Brokers store a step whole or not at all, and with it the group's mark (reset_mark.py): it names
the request and counts the steps. So after a crash the operator knows which steps were done, whatever consumers have
committed since. A reset whose first step is not done is planned again; after that it continues as recorded.

The status may be lost, or older than the group: the mark decides. A request that it lists as done is not carried out
again. A request that has begun, and whose plan is lost, is refused, because a second shift would add to the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ...kafka.records import EARLIEST, LATEST, GroupMember, Partition, TopicIdentity
from ...models import ConsumerGroup, LastReset, Reset, ResetTopic
from ...models.problem import shown
from ...models.words import count_of
from .reset_mark import ResetMark

STEP = 99  # positions; with the mark, as many as brokers store at once
MOST_POSITIONS = 10_000
MOST_NAMED = 5

Final = Literal["Done", "Refused", "Cancelled"]


@dataclass(frozen=True, slots=True)
class Refused:
    """The reset is impossible; nothing was changed. The message is for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Logs:
    """The brokers' data about the partitions of a reset.

    ``found`` has, by partition, the first offset at or after the request's time; -1 if there is none.
    """

    identities: Mapping[str, TopicIdentity]
    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    found: Mapping[Partition, int]


def running(group: ConsumerGroup) -> LastReset | None:
    """The reset that began and has not ended."""
    last = group.status.last_reset
    return last if last is not None and last.state == "Running" else None


def requested(group: ConsumerGroup) -> Reset | None:
    """The reset that has yet to begin."""
    reset, last = group.spec.reset, group.status.last_reset
    if reset is None or (last is not None and last.request_id == reset.request_id):
        return None
    return reset


def topics_of(group: ConsumerGroup, reset: Reset, committed: Mapping[Partition, int]) -> list[str]:
    """The topics of a reset."""
    if reset.offsets is not None:
        return sorted({offset.topic for offset in reset.offsets})
    if reset.topics is not None:
        return sorted(reset.topics)
    return sorted({*group.spec.topics, *(partition.topic for partition in committed)})


def when_of(reset: Reset) -> int | None:
    """The time for ListOffsets in this request; None if starts and ends suffice."""
    if reset.to == "Timestamp" and reset.timestamp is not None:
        return int(reset.timestamp.timestamp() * 1000)
    return {"Earliest": EARLIEST, "Latest": LATEST}.get(reset.to)


def plan(
    reset: Reset, topics: Sequence[str], committed: Mapping[Partition, int], logs: Logs, began: datetime
) -> LastReset | Refused:
    """The reset with its positions, ready to run. ``began`` stays when it is planned again."""
    if missing := [topic for topic in topics if topic not in logs.identities]:
        return Refused(
            f"there is no topic {shown(missing, MOST_NAMED)}: correct the request and give it another requestId"
        )
    wanted = _wanted(reset, topics, committed, logs)
    if isinstance(wanted, Refused):
        return wanted
    if not wanted:
        return Refused("there is no position to reset: the group has no committed offset in these topics")
    if len(wanted) > MOST_POSITIONS:
        return Refused(
            f"{len(wanted):,} positions are too many; at most: {MOST_POSITIONS:,}: list fewer topics in topics"
        )
    outside = [one for one, at in wanted.items() if not logs.starts[one] <= at <= logs.ends[one]]
    if outside and reset.on_out_of_range == "Refuse":
        words = [
            f"{one.topic}-{one.partition} has {logs.starts[one]} to {logs.ends[one]}, not {wanted[one]}"
            for one in sorted(outside)
        ]
        return Refused(
            f"outside the log: {shown(words, MOST_NAMED)}; onOutOfRange: Clamp takes the nearest offset"
        )
    after = {one: min(max(at, logs.starts[one]), logs.ends[one]) for one, at in wanted.items()}
    return LastReset(
        request_id=reset.request_id,
        state="Running",
        time=began,
        message=f"{count_of(len(outside), 'position')} clamped to the log: {_named(outside)}"
        if outside
        else None,
        topics=tuple(
            ResetTopic(
                topic=topic,
                topic_id=logs.identities[topic].topic_id,
                before=_row(topic, logs.identities[topic].partitions, committed),
                after=_row(topic, logs.identities[topic].partitions, after),
            )
            for topic in topics
        ),
    )


def _wanted(
    reset: Reset, topics: Sequence[str], committed: Mapping[Partition, int], logs: Logs
) -> dict[Partition, int] | Refused:
    if reset.offsets is not None:
        wanted = {Partition(offset.topic, offset.partition): offset.offset for offset in reset.offsets}
        if unknown := sorted(wanted.keys() - logs.ends.keys()):
            counts = {one.topic: logs.identities[one.topic].partitions for one in unknown}
            words = [
                f"{one.topic} has {counts[one.topic]} partitions, and no {one.partition}" for one in unknown
            ]
            return Refused(f"offsets: {shown(words, MOST_NAMED)}")
        if len(wanted) < len(reset.offsets):
            return Refused("offsets: a partition is there twice")
        return wanted
    if reset.shift is not None:
        return {
            one: at + reset.shift for one, at in committed.items() if one in logs.ends and one.topic in topics
        }
    return {one: logs.ends[one] if at < 0 else at for one, at in logs.found.items() if one.topic in topics}


def positions(last: LastReset) -> dict[Partition, int]:
    """The positions that a reset sets, in the order of their commits."""
    return {
        Partition(topic.topic, index): offset
        for topic in last.topics
        for index, offset in enumerate(topic.after)
        if offset >= 0
    }


def steps(last: LastReset) -> list[dict[Partition, int]]:
    """The commits of a reset."""
    found = list(positions(last).items())
    return [dict(found[start : start + STEP]) for start in range(0, len(found), STEP)]


def known_end(request_id: str, began: datetime | None, mark: ResetMark, now: datetime) -> LastReset | None:
    """The end of a request by the group's mark alone; None if it may run.

    ``began`` is when the status has it begin; None if the status does not know it.
    """
    if began is not None and mark.steps_of(request_id, began):
        return None
    if mark.has_done(request_id):
        words = "done before, as the group's own data record: the resource's status was lost, or is older"
        return LastReset(request_id=request_id, state="Done", time=now, message=words)
    if mark.has_begun(request_id):
        return LastReset(
            request_id=request_id,
            state="Refused",
            time=now,
            message=f"it began before and set up to {count_of(STEP * mark.step, 'position')}, but the resource's"
            " status, which had the others, was lost: check the positions and give the request another requestId",
        )
    return None


def ended(last: LastReset, state: Final, now: datetime, replaced: Sequence[str] = ()) -> LastReset:
    """A reset that is done or cancelled. ``replaced``: topics that were replaced meanwhile."""
    words = [last.message] if last.message else []
    if replaced:
        words.append(
            f"no position was set in {shown(sorted(replaced), MOST_NAMED)}, deleted and created again meanwhile"
        )
    topics = tuple(topic for topic in last.topics if topic.topic not in replaced)
    return LastReset(
        request_id=last.request_id, state=state, time=now, message="; ".join(words) or None, topics=topics
    )


def waiting_words(members: Sequence[GroupMember]) -> str:
    """The cause for which a reset waits, and what to do."""
    named = shown([f"{member.client_id} ({member.host})" for member in members], MOST_NAMED)
    return f"waiting until the group has no members: stop {named or 'its consumers'}"


def done_words(last: LastReset) -> str:
    """The results of a reset."""
    words = f"request {last.request_id}: {count_of(len(positions(last)), 'position')} set"
    if last.message and not last.topics:
        return f"request {last.request_id}: {last.message}"
    return f"{words}; {last.message}" if last.message else words


def _named(partitions: Sequence[Partition]) -> str:
    return shown([f"{partition.topic}-{partition.partition}" for partition in sorted(partitions)], MOST_NAMED)


def _row(topic: str, partitions: int, offsets: Mapping[Partition, int]) -> tuple[int, ...]:
    return tuple(offsets.get(Partition(topic, index), -1) for index in range(partitions))
