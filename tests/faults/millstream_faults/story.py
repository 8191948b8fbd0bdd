"""The story of a record: everything that the history and the brokers' logs say about it, in the order of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .history import (
    NEVER,
    Acknowledged,
    Committed,
    CommitUnknown,
    ConfigAltered,
    Discarded,
    Event,
    Failed,
    FoundCommitted,
    GroupDeleted,
    Held,
    Led,
    Read,
    RecordsDeleted,
    Struck,
    TopicCreated,
    TopicDeleted,
    TopicLost,
    Transacted,
    Trouble,
)
from .topics import Lives
from .violations import Violation

AROUND_S = 8.0
MOST_LINES = 40
POSITIONS = ("commit", "skipped", "position", "inherited")
"""Violations of positions."""


def tell(violation: Violation, events: Sequence[Event], logs: Mapping[int, Path], began: float) -> str:
    """The story of a violation's record, offset or position; times are seconds since ``began``."""
    lives = Lives(events)
    name = lives.name(violation.topic)
    told: list[tuple[float, str]] = []
    background: list[tuple[float, float, str]] = []
    for event in events:
        match event:
            case Struck(at, _, text, until):
                background.append((at, until, f"fault: {text}, until {until - began:.2f}"))
            case TopicCreated(at, _, topic, called, asked, _) if called == name:
                background.append((at, at, f"{called} is {topic}, requested at {asked - began:.3f}"))
            case TopicDeleted(at, _, topic, asked) if lives.name(topic) == name:
                text = f"{name} {topic}: deletion requested, the name was free at {at - began:.3f}"
                background.append((asked, at, text))
            case TopicLost(at, _, topic, asked) if lives.name(topic) == name:
                text = f"{name} {topic}: a restored tree does not know it, its successor exists at {at - began:.3f}"
                background.append((asked, at, text))
            case RecordsDeleted(at, _, topic, partition, offset, asked) if _is_at(violation, event):
                text = f"{name} {topic}: DeleteRecords of {partition} before {offset} requested"
                background.append((asked, asked, f"{text}, answered at {at - began:.3f}"))
            case ConfigAltered(at, _, topic, key, value, asked) if topic == violation.topic:
                background.append((asked, at, f"{name} {topic}: {key}={value}"))
            case Led(at, who, partition, leader, epoch, isr) if _is_at(violation, event):
                text = f"partition {partition}: leader {leader}, epoch {epoch}, ISR {isr} (says {who})"
                background.append((at, at, text))
            case _ if concerns(violation, event, lives):
                told.append((event.at, describe(event, began)))
    if violation.at is not None:
        told = [(at, text) for at, text in told if abs(at - violation.at) <= AROUND_S]
    first = min((at for at, _ in told), default=0.0) - AROUND_S
    last = max((at for at, _ in told), default=0.0) + AROUND_S
    if told:
        told += [(at, text) for at, until, text in background if at <= last and until >= first]
    where = f"{name} ({violation.topic}) " if violation.topic else ""
    lines = [f"{violation.kind}: {where}partition {violation.partition}: {violation.text}"]
    lines += [f"  {at - began:9.3f}  {text}" for at, text in _shortened(sorted(told))]
    if violation.partition is not None:
        for broker, path in logs.items():
            said = mentions(path, f"{name}-{violation.partition}")
            lines += [f"  broker {broker}: {line}" for line in said]
    return "\n".join(lines)


def _is_at(violation: Violation, event: Led | RecordsDeleted) -> bool:
    return (event.topic, event.partition) == (violation.topic, violation.partition)


def concerns(violation: Violation, event: Event, lives: Lives) -> bool:
    """Whether an event concerns the violation's record, offset or position.

    A record may concern two topics of one name.
    """
    match event:
        case Trouble():
            return event.text in violation.text
        case GroupDeleted():
            return violation.kind in POSITIONS
        case Transacted(appends=appends):
            return [violation.topic, violation.writer, violation.partition, violation.number] in appends
        case Committed() | CommitUnknown() | FoundCommitted():
            return violation.kind in POSITIONS and _is_of_name(violation, event, lives)
        case Read() | Acknowledged() | Failed() if _is_of_name(violation, event, lives):
            writer = event.writer if isinstance(event, Read) else event.who
            if violation.number is not None and (writer, event.number) == (
                violation.writer,
                violation.number,
            ):
                return True
            at_offset = not isinstance(event, Failed) and event.offset == violation.offset
            return at_offset and event.topic == violation.topic
    return False


def _is_of_name(
    violation: Violation,
    event: Read | Acknowledged | Failed | Committed | CommitUnknown | FoundCommitted,
    lives: Lives,
) -> bool:
    return event.partition == violation.partition and lives.name(event.topic) == lives.name(violation.topic)


def describe(event: Event, began: float) -> str:
    where = (
        f"{event.topic} "
        if not isinstance(event, Trouble | GroupDeleted | Struck | Held | Discarded | Transacted)
        and event.topic
        else ""
    )
    match event:
        case Acknowledged(_, who, partition, number, offset, sent):
            return f"{who} {number} acknowledged at {where}{partition}:{offset}, sent at {sent - began:.3f}"
        case Failed(_, who, partition, number, error):
            return f"{who} {number} given up in {where}{partition}: {error}"
        case Read(_, who, partition, offset, writer, number):
            return f"{who} read {where}{partition}:{offset}: {writer} {number}"
        case Committed(_, who, partition, offset):
            return f"{who} committed {where}{partition}:{offset}"
        case CommitUnknown(_, who, partition, offset):
            return f"{who} tried to commit {where}{partition}:{offset}, without an answer"
        case FoundCommitted(_, who, partition, offset, asked):
            return f"{who} found {where}{partition}:{offset} committed, asked at {asked - began:.3f}"
        case GroupDeleted(_, _, asked):
            return f"the group of the positions was deleted, requested at {asked - began:.3f}"
        case Transacted(_, who, number, outcome, asked, appends):
            commit = "never" if asked == NEVER else f"at {asked - began:.3f}"
            return f"{who}: transaction {number} of {len(appends)} values is {outcome}, commit requested {commit}"
        case Trouble(_, who, text):
            return f"{who}: {text}"
    return str(event)


def mentions(path: Path, name: str) -> list[str]:
    """The last lines of a broker's log that mention a partition."""
    if not path.exists():
        return []
    return [line for line in path.read_text(errors="replace").splitlines() if name in line][-MOST_LINES:]


def _shortened(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    if len(lines) <= 2 * MOST_LINES:
        return list(lines)
    left = len(lines) - 2 * MOST_LINES
    return [*lines[:MOST_LINES], (lines[MOST_LINES][0], f"({left} more)"), *lines[-MOST_LINES:]]
