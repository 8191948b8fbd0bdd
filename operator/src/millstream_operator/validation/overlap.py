"""Whether topic patterns match a common name: exact for the usual syntax, "perhaps" where it is undecided; pure.

Each list of patterns becomes a nondeterministic automaton (Thompson's construction). All of them run side by side over
the characters that a name may have, the shortest names first, until all agree or no new state is left. A pattern of
unknown syntax (see pattern_syntax.py) counts as including every name, or excluding none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .pattern_syntax import NAME_CHARACTERS, Edge, Either, InTurn, Node, One, Repeated, UnknownSyntax, parse

MAX_NAME = 249
MOST_STATES = 30_000
"""Largest number of states of an automaton."""
MOST_VISITED = 20_000
"""Largest number of states that a search visits."""
MOST_STEPS = 1_000_000
"""Largest number of states and edges that a comparison follows in all: less than a second and some MB."""
INTERNAL = "__.*"
"""Topics that no worker mirrors."""


class Names(NamedTuple):
    """The names that ``include`` matches and ``exclude`` does not, with ``prefix`` prepended."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    prefix: str = ""


class Shared(NamedTuple):
    """A common name; None if it is undecided, because of ``why``."""

    name: str | None
    why: str = ""


class _TooLarge(Exception):
    """An automaton or a search exceeds its limit."""


class _Steps:
    """What a comparison has left of its steps."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooLarge


@functools.lru_cache(maxsize=1024)
def shared(wanted: frozenset[Names]) -> Shared | None:
    """A name common to all of these; None if there is none."""
    unknown: dict[str, None] = {}
    runs = []
    steps = _Steps()
    try:
        for names in sorted(wanted):
            include, exclude = _Automaton(steps), _Automaton(steps)
            if odd := include.add(names.include):
                include.add((".*",))
            unknown.update(dict.fromkeys((*odd, *exclude.add((*names.exclude, INTERNAL)))))
            runs.append((include, exclude, names.prefix))
        name = _search(runs)
    except _TooLarge:
        return Shared(None, "the patterns are too large to be compared")
    if name is None:
        return None
    if unknown:
        return Shared(None, f"{', '.join(unknown)} cannot be compared with other patterns")
    return Shared(name)


def _search(runs: Sequence[tuple[_Automaton, _Automaton, str]]) -> str | None:
    """The shortest name that each first automaton matches and no second one does."""
    automatons = [one for include, exclude, _ in runs for one in (include, exclude)]
    start = tuple(one.after(prefix) for include, exclude, prefix in runs for one in (include, exclude))
    longest = MAX_NAME - max(len(prefix) for _, _, prefix in runs)
    ways, seen = [(start, "")], {start}
    for states, name in ways:  # grows during the loop
        ends = [one.ends(state) for one, state in zip(automatons, states, strict=True)]
        if name and all(ends[::2]) and not any(ends[1::2]):
            return name
        if len(name) >= longest:
            continue
        moves = [one.moves(state) for one, state in zip(automatons, states, strict=True)]
        for char in sorted(frozenset.intersection(*map(frozenset, moves[::2])), key=NAME_CHARACTERS.index):
            following = tuple(move.get(char, _NOWHERE) for move in moves)
            if following not in seen:
                if len(seen) >= MOST_VISITED:
                    raise _TooLarge
                seen.add(following)
                ways.append((following, name + char))
    return None


States = frozenset[int]
_NOWHERE: States = frozenset()
_FIRST, _LAST = 0, 1


@dataclass(slots=True)
class _Automaton:
    """``edges`` are transitions by state and character; ``skips`` are empty ones, anywhere or at an edge of a name."""

    steps: _Steps
    edges: list[list[tuple[frozenset[str], int]]] = field(default_factory=lambda: [[], []])
    skips: list[list[tuple[str, int]]] = field(default_factory=lambda: [[], []])
    _moves: dict[States, dict[str, States]] = field(default_factory=dict)

    def add(self, patterns: Sequence[str]) -> list[str]:
        """Also match any of these; returns those of unknown syntax."""
        unknown = []
        for pattern in patterns:
            try:
                node = parse(pattern)
            except UnknownSyntax:
                unknown.append(pattern)
                continue
            self._skip(self._build(node, _FIRST), _LAST)
        return unknown

    def after(self, text: str) -> States:
        states = self._closure([_FIRST], "^")
        for char in text:
            states = self.moves(states).get(char, _NOWHERE)
        return states

    def ends(self, states: States) -> bool:
        """Whether the characters that led here match."""
        return _LAST in self._closure(states, "$")

    def moves(self, states: States) -> dict[str, States]:
        """The states after each possible character."""
        if (known := self._moves.get(states)) is None:
            found: dict[str, set[int]] = {}
            for state in states:
                for characters, to in self.edges[state]:
                    self.steps.take(len(characters))
                    for char in characters:
                        found.setdefault(char, set()).add(to)
            closures = {ends: self._closure(ends) for ends in set(map(frozenset, found.values()))}
            known = self._moves[states] = {char: closures[frozenset(ends)] for char, ends in found.items()}
        return known

    def _closure(self, states: Iterable[int], at: str = "") -> States:
        found = set(states)
        left = list(found)
        while left:
            for where, to in self.skips[left.pop()]:
                if where in ("", at) and to not in found:
                    found.add(to)
                    left.append(to)
        self.steps.take(len(found))
        return frozenset(found)

    def _build(self, node: Node, begin: int) -> int:
        """Append a part to a state; returns the state after the part."""
        match node:
            case One(characters):
                end = self._state()
                self.edges[begin].append((characters, end))
            case Edge(where):
                end = self._state()
                self._skip(begin, end, where)
            case InTurn(parts):
                end = begin
                for part in parts:
                    end = self._build(part, end)
            case Either(parts):
                end = self._state()
                for part in parts:
                    self._skip(self._build(part, self._after(begin)), end)
            case Repeated(part, fewest, most):
                end = self._state()
                at = self._after(begin)
                for number in range(fewest if most is None else most):
                    if number >= fewest:
                        self._skip(at, end)
                    at = self._build(part, self._after(at))
                if most is None:
                    at = again = self._after(at)
                    self._skip(self._build(part, self._after(again)), again)
                self._skip(at, end)
        return end

    def _state(self) -> int:
        if len(self.edges) >= MOST_STATES:
            raise _TooLarge
        self.edges.append([])
        self.skips.append([])
        return len(self.edges) - 1

    def _after(self, state: int) -> int:
        new = self._state()
        self._skip(state, new)
        return new

    def _skip(self, begin: int, end: int, where: str = "") -> None:
        self.skips[begin].append((where, end))
