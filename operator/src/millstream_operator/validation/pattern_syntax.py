"""Parses topic patterns, where RE2 and Python agree on their meaning: the operator uses one, the workers the other.

Supported are literals, classes, ``.``, groups, alternatives, repetitions, ``^``, ``$`` and flags. Only characters that
a topic's name may have count. https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

NAME_CHARACTERS = string.ascii_lowercase + string.digits + "-_." + string.ascii_uppercase

_ALL = frozenset(NAME_CHARACTERS)
_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_NONE: frozenset[str] = frozenset()
_DEEPEST = 50  # groups within groups
_CLASSES = {"d": _DIGITS, "D": _ALL - _DIGITS, "w": _WORD, "W": _ALL - _WORD, "s": _NONE, "S": _ALL}


class UnknownSyntax(Exception):
    """A pattern uses unsupported syntax."""


@dataclass(frozen=True, slots=True)
class One:
    """One of these characters."""

    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Edge:
    """The empty match at the beginning (``^``) or end (``$``) of a name."""

    where: str


@dataclass(frozen=True, slots=True)
class InTurn:
    parts: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Either:
    parts: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Repeated:
    """``most``: None for no limit."""

    part: Node
    fewest: int
    most: int | None


Node: TypeAlias = "One | Edge | InTurn | Either | Repeated"


def parse(pattern: str) -> Node:
    """Raises UnknownSyntax."""
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text, self._at, self._depth = pattern, 0, 0
        self._ignores_case = False

    def whole(self) -> Node:
        found = self._alternatives()
        if self._at < len(self._text):
            raise UnknownSyntax
        return found

    def _is_next(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _skip(self, text: str) -> bool:
        found = self._is_next(text)
        self._at += len(text) * found
        return found

    def _char(self) -> str:
        if self._at >= len(self._text):
            raise UnknownSyntax
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> Node:
        """Parse up to the end of the group; flags set in a group end with it."""
        before = self._ignores_case
        found = [self._in_turn()]
        while self._skip("|"):
            found.append(self._in_turn())
        self._ignores_case = before
        return found[0] if len(found) == 1 else Either(found)

    def _in_turn(self) -> Node:
        found = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            part = self._part()
            if (bounds := self._bounds()) is not None:
                part = Repeated(part, *bounds)
                if self._bounds() is not None:  # RE2 and Python differ here
                    raise UnknownSyntax
            found.append(part)
        return InTurn(found)

    def _bounds(self) -> tuple[int, int | None] | None:
        """The bounds of a repetition, if one is next: the least and the most."""
        bounds: tuple[int, int | None] | None = None
        if self._skip("*"):
            bounds = (0, None)
        elif self._skip("+"):
            bounds = (1, None)
        elif self._skip("?"):
            bounds = (0, 1)
        elif self._skip("{"):
            low, comma, high = self._until("}").partition(",")
            if not _is_number(low) or not (high == "" or _is_number(high)):
                raise UnknownSyntax
            bounds = int(low), (int(high) if high else None) if comma else int(low)
        if bounds is not None:
            self._skip("?")  # lazy: matches the same names
        return bounds

    def _until(self, end: str) -> str:
        found, last, _ = self._text[self._at :].partition(end)
        if not last:
            raise UnknownSyntax
        self._at += len(found) + len(end)
        return found

    def _part(self) -> Node:
        char = self._char()
        match char:
            case "(":
                return self._group()
            case "[":
                return One(self._class())
            case "^" | "$":
                return Edge(char)
            case ".":
                return One(_ALL)
            case "\\":
                if self._skip("A"):
                    return Edge("^")
                return One(self._escaped())
            case "*" | "+" | "?" | "{":
                raise UnknownSyntax
        return One(self._folded(char))

    def _group(self) -> Node:
        before = self._ignores_case
        if self._skip("?P<"):
            self._until(">")
        elif self._skip("?") and not self._flags():
            return InTurn(())  # the flags apply until the end of the enclosing group
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnknownSyntax
        found = self._alternatives()
        if not self._skip(")"):
            raise UnknownSyntax
        self._depth -= 1
        self._ignores_case = before
        return found

    def _flags(self) -> bool:
        """Parse FLAGS: or FLAGS); returns whether a group follows. Names have one line, so only i matters."""
        on = True
        while (char := self._char()) not in ":)":
            if char == "i":
                self._ignores_case = on
            elif char == "-":
                on = False
            elif char not in "ms":
                raise UnknownSyntax
        return char == ":"

    def _class(self) -> frozenset[str]:
        negated = self._skip("^")
        found: set[str] = set()
        first = True
        while first or not self._skip("]"):
            first = False
            if self._is_next("["):  # [:alpha:] or, to Python, something of the future
                raise UnknownSyntax
            char = self._char()
            if char == "\\":
                if self._at < len(self._text) and self._text[self._at] in _CLASSES:
                    found |= self._escaped()
                    if self._is_next("-") and not self._is_next("-]"):
                        raise UnknownSyntax
                    continue
                char = self._literal()
            if self._is_next("-") and not self._is_next("-]"):
                self._at += 1
                last = self._char()
                if last == "\\":
                    last = self._literal()
                if last == "[" or (self._ignores_case and not (char + last).isascii()):
                    raise UnknownSyntax
                found.update(*(self._folded(one) for one in map(chr, range(128)) if char <= one <= last))
            else:
                found |= self._folded(char)
        return _ALL - found if negated else frozenset(found)

    def _escaped(self) -> frozenset[str]:
        if self._at < len(self._text) and self._text[self._at] in _CLASSES:
            return _CLASSES[self._char()]
        return self._folded(self._literal())

    def _literal(self) -> str:
        char = self._char()
        if not char.isascii() or char.isalnum():
            raise UnknownSyntax
        return char

    def _folded(self, char: str) -> frozenset[str]:
        """The characters of a name that this one matches."""
        if not self._ignores_case:
            return _ALL & {char}
        if not char.isascii():  # some fold to letters of ASCII
            raise UnknownSyntax
        return _ALL & {char.lower(), char.upper()}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5
