"""Which fault strikes which round, when and for how long: all of it drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """A fault's name, and the shortest and longest time until it is undone, in s."""

    KILL_DRIVER = ("kill driver", 0.0, 0.0)
    STALL_DRIVER = ("stall driver", 0.5, 4.0)
    KILL_EXECUTOR = ("kill executor", 0.0, 0.0)
    STALL_EXECUTOR = ("stall executor", 0.5, 4.0)
    KILL_BROKER = ("kill broker", 0.0, 4.0)
    STALL_BROKER = ("stall broker", 0.5, 4.0)
    S3_AWAY = ("S3 away", 0.5, 4.0)
    STALL_S3 = ("stall S3", 0.5, 4.0)

    def __init__(self, text: str, shortest: float, longest: float) -> None:
        self.text = text
        self.shortest = shortest
        self.longest = longest


IN_S3 = (Kind.S3_AWAY, Kind.STALL_S3)


@dataclass(frozen=True, slots=True)
class Fault:
    """``moment`` is a share of the time of an undisturbed run; a faster run ends before a late fault."""

    kind: Kind
    moment: float
    seconds: float


def draw(seed: int, kinds: Sequence[Kind]) -> Iterator[Fault]:
    """One fault a round, without end: each kind once before any comes again."""
    drawn = random.Random(seed)
    deck: list[Kind] = []
    while True:
        if not deck:
            deck = list(kinds)
            drawn.shuffle(deck)
        kind = deck.pop()
        yield Fault(
            kind, round(drawn.uniform(0.0, 1.0), 3), round(drawn.uniform(kind.shortest, kind.longest), 2)
        )
