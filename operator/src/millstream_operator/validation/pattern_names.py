"""The names that patterns select, as access rules can say it: whole names and beginnings; pure.

Rules know no regular expressions. So rules cover at least what a pattern selects: `orders` is that name, `orders[.].*`
are names that begin so, and a pattern of unknown beginning or syntax is every name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .pattern_syntax import NAME_CHARACTERS, Edge, Either, InTurn, Node, One, Repeated, UnknownSyntax, parse

MOST = 32
"""Largest number of names or beginnings of one pattern; one with more has a shorter beginning."""


class Covered(NamedTuple):
    """One name, or with ``is_prefix`` all that begin so."""

    text: str
    is_prefix: bool

    def covers(self, other: Covered) -> bool:
        return self == other or (self.is_prefix and other.text.startswith(self.text))


EVERY = Covered("", True)
ANY = One(frozenset(NAME_CHARACTERS))
ANYTHING = Repeated(ANY, 0, None)


def covered(patterns: Iterable[str]) -> frozenset[Covered]:
    """At least the names that one of the patterns matches, by as few names and beginnings as possible."""
    found = {each for pattern in patterns for each in _of(pattern)}
    found.discard(Covered("", False))  # no topic or group has this name
    return frozenset(
        each for each in found if not any(other != each and other.covers(each) for other in found)
    )


def exactly(patterns: Iterable[str]) -> frozenset[Covered]:
    """At most the names that one of the patterns matches: of those patterns that are names and beginnings."""
    return frozenset(each for pattern in patterns if (each := _exactly(pattern)) is not None and each.text)


def _of(pattern: str) -> frozenset[Covered]:
    try:
        return _beginnings(parse(pattern))
    except UnknownSyntax:
        return frozenset({EVERY})


def _exactly(pattern: str) -> Covered | None:
    """The name of `name`, the beginning of `name.*`; None for other patterns. A `.` that any character matches stands
    for itself, as most users mean it."""
    try:
        node = parse(pattern)
    except UnknownSyntax:
        return None
    parts = list(node.parts) if isinstance(node, InTurn) else []
    parts = parts[1:] if parts[:1] == [Edge("^")] else parts
    parts = parts[:-1] if parts[-1:] == [Edge("$")] else parts
    is_prefix = bool(parts) and parts[-1] == ANYTHING
    text = ""
    for part in parts[:-1] if is_prefix else parts:
        if not isinstance(part, One) or (len(part.characters) != 1 and part != ANY):
            return None
        text += "." if part == ANY else min(part.characters)
    return Covered(text, is_prefix)


def _beginnings(node: Node) -> frozenset[Covered]:
    match node:
        case One(characters):
            found = frozenset(Covered(char, False) for char in characters)
        case Edge():
            found = frozenset({Covered("", False)})
        case Either(parts):
            found = frozenset(each for part in parts for each in _beginnings(part))
        case Repeated(part, fewest, most):
            found = _repeated(part, fewest, most)
        case InTurn(parts):
            found = frozenset({Covered("", False)})
            for part in parts:
                if not any(not each.is_prefix for each in found):
                    break
                longer = _followed(found, _beginnings(part))
                if len(longer) > MOST:
                    return frozenset(Covered(each.text, True) for each in found)
                found = longer
    return found if len(found) <= MOST else frozenset({EVERY})


def _followed(names: frozenset[Covered], by: frozenset[Covered]) -> frozenset[Covered]:
    begun = {each for each in names if each.is_prefix}
    whole = {Covered(one.text + two.text, two.is_prefix) for one in names - begun for two in by}
    return frozenset(begun | whole)


def _repeated(part: Node, fewest: int, most: int | None) -> frozenset[Covered]:
    if most == 0:
        return frozenset({Covered("", False)})
    once = _beginnings(part)
    if most == 1:
        return once if fewest else once | {Covered("", False)}
    return frozenset(Covered(each.text, True) for each in once) if fewest else frozenset({EVERY})
