"""The faults of rounds, one each: which kind, when and for how long, drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class Lasting(Enum):
    """A kind of fault: its name, and the shortest and longest time until it is undone, in s."""

    def __init__(self, text: str, shortest: float, longest: float) -> None:
        self.text = text
        self.shortest = shortest
        self.longest = longest


K = TypeVar("K", bound=Lasting)


@dataclass(frozen=True, slots=True)
class Fault(Generic[K]):
    """``moment`` is a fraction of a round's usual time; a faster round ends before a late fault."""

    kind: K
    moment: float
    seconds: float


def draw(seed: int, kinds: Sequence[K]) -> Iterator[Fault[K]]:
    """One fault a round, endlessly; each kind comes once before any repeats."""
    drawn = random.Random(seed)
    deck: list[K] = []
    while True:
        if not deck:
            deck = list(kinds)
            drawn.shuffle(deck)
        kind = deck.pop()
        yield Fault(
            kind, round(drawn.uniform(0.0, 1.0), 3), round(drawn.uniform(kind.shortest, kind.longest), 2)
        )
