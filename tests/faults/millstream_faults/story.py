"""What happened to a record: all that the history and the brokers' logs say of it, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .checker import Violation
from .history import (
    Acknowledged,
    Committed,
    CommitUnknown,
    Event,
    Failed,
    FoundCommitted,
    Led,
    Read,
    Struck,
    Trouble,
)

AROUND_S = 8.0
MOST_LINES = 40


def tell(
    violation: Violation, events: Iterable[Event], logs: Mapping[int, Path], topic: str, began: float
) -> str:
    """The story of what a violation is about; times are seconds since ``began``."""
    told: list[tuple[float, str]] = []
    background: list[tuple[float, float, str]] = []
    for event in events:
        match event:
            case Struck(at, _, text, until):
                background.append((at, until, f"fault: {text}, until {until - began:.2f}"))
            case Led(at, who, partition, leader, epoch, isr) if partition == violation.partition:
                text = f"partition {partition}: leader {leader}, epoch {epoch}, ISR {isr} (says {who})"
                background.append((at, at, text))
            case _ if concerns(violation, event):
                told.append((event.at, describe(event, began)))
    if violation.at is not None:
        told = [(at, text) for at, text in told if abs(at - violation.at) <= AROUND_S]
    first = min((at for at, _ in told), default=0.0) - AROUND_S
    last = max((at for at, _ in told), default=0.0) + AROUND_S
    if told:
        told += [(at, text) for at, until, text in background if at <= last and until >= first]
    lines = [f"{violation.kind}: partition {violation.partition}: {violation.text}"]
    lines += [f"  {at - began:9.3f}  {text}" for at, text in _shortened(sorted(told))]
    if violation.partition is not None:
        for broker, path in logs.items():
            lines += [
                f"  broker {broker}: {line}" for line in mentions(path, f"{topic}-{violation.partition}")
            ]
    return "\n".join(lines)


def concerns(violation: Violation, event: Event) -> bool:
    """Whether an event is about the record, the offset or the position that a violation names."""
    if isinstance(event, Trouble):
        return event.text in violation.text
    if isinstance(event, Struck | Led) or event.partition != violation.partition:
        return False
    if isinstance(event, Committed | CommitUnknown | FoundCommitted):
        return violation.kind in ("commit", "skipped")
    if isinstance(event, Read | Acknowledged) and event.offset == violation.offset:
        return True
    writer = event.writer if isinstance(event, Read) else event.who
    return violation.number is not None and (writer, event.number) == (violation.writer, violation.number)


def describe(event: Event, began: float) -> str:
    match event:
        case Acknowledged(_, who, partition, number, offset, sent):
            return f"{who} {number} acknowledged at {partition}:{offset}, sent at {sent - began:.3f}"
        case Failed(_, who, partition, number, error):
            return f"{who} {number} given up in {partition}: {error}"
        case Read(_, who, partition, offset, writer, number):
            return f"{who} read {partition}:{offset}: {writer} {number}"
        case Committed(_, who, partition, offset):
            return f"{who} committed {partition}:{offset}"
        case CommitUnknown(_, who, partition, offset):
            return f"{who} tried to commit {partition}:{offset} and was not told"
        case FoundCommitted(_, who, partition, offset, asked):
            return f"{who} was told that {partition}:{offset} is committed, asked at {asked - began:.3f}"
        case Trouble(_, who, text):
            return f"{who}: {text}"
    return str(event)


def mentions(path: Path, name: str) -> list[str]:
    """The last lines of a broker's log that name a partition."""
    if not path.exists():
        return []
    return [line for line in path.read_text(errors="replace").splitlines() if name in line][-MOST_LINES:]


def _shortened(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    if len(lines) <= 2 * MOST_LINES:
        return list(lines)
    left = len(lines) - 2 * MOST_LINES
    return [*lines[:MOST_LINES], (lines[MOST_LINES][0], f"({left} more)"), *lines[-MOST_LINES:]]
