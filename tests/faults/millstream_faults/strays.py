"""The promise of strays: none is deleted by itself.

stray      a broker no longer has a stray, nor its partition's log again, although nobody deleted the topic, moved the
           partition or removed the broker's data

Topics that a restored tree does not know are not deleted: their logs stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from .history import Discarded, Event, Held, Struck, TopicDeleted
from .topics import Lives
from .violations import Violation

MOVING = ("move", "restore older ZooKeeper")
"""Faults that move replicas: first words. A replica that was moved away is deleted, and its strays with it."""


def check_strays(events: Iterable[Event], lives: Lives) -> list[Violation]:
    """The strays that vanished between two looks at a broker's disks."""
    ordered = sorted(
        (event for event in events if isinstance(event, Held | Discarded | Struck | TopicDeleted)),
        key=lambda event: event.at,
    )
    deleted = [event for event in ordered if isinstance(event, TopicDeleted)]
    moved = [event for event in ordered if isinstance(event, Struck) and event.text.startswith(MOVING)]
    before: dict[int, Held] = {}
    discarded: dict[int, float] = {}
    found: list[Violation] = []
    for event in ordered:
        match event:
            case Discarded(at, _, broker):
                discarded[broker] = at
            case Held(at, _, broker):
                last = before.get(broker)
                before[broker] = event
                if last is None or discarded.get(broker, -1.0) >= last.at:
                    continue
                if any(one.at <= at and one.until >= last.at for one in moved):
                    continue
                gone = {one.topic for one in deleted if one.asked <= at}
                found += _vanished(event, last, gone, lives)
    return found


def _vanished(now: Held, last: Held, gone: Iterable[str], lives: Lives) -> list[Violation]:
    kept = {*map(_place, now.strays), *map(_place, now.logs)}
    return [
        Violation(
            "stray",
            f"broker {now.broker} no longer has the stray of {lives.name(topic)}-{partition}",
            partition,
            at=now.at,
            topic=topic,
        )
        for topic, partition in sorted({*map(_place, last.strays)} - kept)
        if topic not in gone
    ]


def _place(listed: list[str | int]) -> tuple[str, int]:
    return str(listed[0]), int(listed[1])
