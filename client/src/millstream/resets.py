"""New positions for a consumer group: planned within the topics' offsets, then committed.

Offsets stay within a partition's log: a target before its first record becomes the first offset, one after its
last record the end. Source of the rules: Kafka's `kafka-consumer-groups --reset-offsets`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from confluent_kafka.admin import OffsetSpec

from millstream.connection import Cluster
from millstream.errors import BadInput, Failed
from millstream.groups import commit_offsets, committed_offsets, group_states, unknown_group
from millstream.topics import list_offsets, watermarks
from millstream.words import count

Position = Literal["earliest", "latest", "offset", "datetime", "shift"]
At = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Target:
    """The target: ``number`` is the offset, the time in milliseconds since 1970, or the shift."""

    position: Position
    number: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """One partition; ``committed`` is -1 if the group has no offset there yet."""

    topic: str
    partition: int
    committed: int
    offset: int


def plan_reset(cluster: Cluster, group: str, target: Target, topics: Collection[str] = ()) -> list[Move]:
    """The moves in the given topics, or in all where the group has offsets; changes nothing.

    UnknownGroup if there is no such group and no topic is given (with topics, the group is created), Failed if
    the group has members, whose own commits would overwrite the new offsets.
    """
    state, members = group_states(cluster, [group])[group]
    if members:
        raise Failed(f"group {group} is {state}, with {count(members, 'member')}", "stop its consumers first")
    committed = committed_offsets(cluster, group)
    if topics:
        partitions = [
            (topic, number) for topic in dict.fromkeys(topics) for number in cluster.led_partitions(topic)
        ]
    elif committed:
        there = cluster.metadata().topics
        partitions = sorted(at for at in committed if at[0] in there and at[1] in there[at[0]].partitions)
        for topic in dict.fromkeys(topic for topic, _ in partitions):
            cluster.led_partitions(topic, [number for name, number in partitions if name == topic])
        if not partitions:
            raise BadInput(f"the topics where group {group} has offsets are gone", "name others in `topics`")
    elif state == "Dead":
        raise unknown_group(group)
    else:
        raise BadInput(f"group {group} has no committed offsets", "name some in `topics`")
    offsets = choose(
        partitions, target, committed, watermarks(cluster, partitions), _at(cluster, partitions, target)
    )
    return [Move(*at, max(committed.get(at, -1), -1), offset) for at, offset in sorted(offsets.items())]


def reset(cluster: Cluster, group: str, moves: Iterable[Move]) -> None:
    """Commit the planned offsets."""
    commit_offsets(cluster, group, {(move.topic, move.partition): move.offset for move in moves})


def choose(
    partitions: Iterable[At],
    target: Target,
    committed: Mapping[At, int],
    ends: Mapping[At, tuple[int, int]],
    by_time: Mapping[At, int],
) -> dict[At, int]:
    """The new offset of each partition; BadInput for a shift without a commit to shift from."""
    found = {}
    for at in partitions:
        earliest, latest = ends[at]
        match target.position:
            case "earliest":
                wanted = earliest
            case "latest":
                wanted = latest
            case "offset":
                wanted = target.number
            case "datetime":
                wanted = by_time[at] if by_time[at] >= 0 else latest  # no record is that new
            case "shift":
                if committed.get(at, -1) < 0:
                    raise BadInput(
                        f"target: {at[0]}-{at[1]} has no committed offset to shift",
                        "choose earliest, latest or an offset",
                    )
                wanted = committed[at] + target.number
        found[at] = min(max(wanted, earliest), latest)
    return found


def parse_datetime(option: str, text: str) -> int:
    """The value of an ``option``, ISO 8601, as milliseconds since 1970; UTC unless it names a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f'{option}: "{text}" is not allowed', "write ISO 8601, such as 2026-11-22T09:30:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _at(cluster: Cluster, partitions: Iterable[At], target: Target) -> dict[At, int]:
    if target.position != "datetime":
        return {}
    specs: Any = OffsetSpec  # untyped
    return list_offsets(cluster, partitions, specs.for_timestamp(target.number))
