r"""Regular expressions of administrators, matched in a time that grows with the length of the id and no more.

Kafka uses RE2, whose patterns match in linear time; those of Python's `re` may take forever, and stop the whole broker.
This is the part of RE2's syntax that ids need: literals, ``.``, ``[a-z]``, ``\d \w \s`` and their opposites, groups,
``|``, ``* + ?``, ``{2,5}``, and the anchors ``^ $`` at the beginning and the end. A pattern is a set of states, and
matching follows all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_STATES = 2500
MOST_REPEATS = 1000
MOST_GROUPS = 50
MOST_CACHED = 2000

Accepts = Callable[[str], bool]
Fragment = tuple[int, int]
"""The first and the last state of a part of the pattern."""

_CLASSES: dict[str, Accepts] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c.isascii() and (c.isalnum() or c == "_"),
    "s": lambda c: c in " \t\n\r\f",
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "v": "\v"}
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class PatternError(ValueError):
    """The pattern is not valid, or larger than this broker accepts."""


class IdPattern:
    """A pattern that matches whole ids."""

    def __init__(self, pattern: str) -> None:
        """Raises PatternError."""
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._steps: list[tuple[Accepts, int] | None] = []
        """Of each state: what it accepts, and the state that follows."""
        self._jumps: list[list[int]] = []
        """Of each state: those that are reached without a character."""
        start, self._end = self._alternatives()
        if self._at < len(pattern):
            raise PatternError(f"unexpected {pattern[self._at]!r} at {self._at}")
        self._start = self._closure({start})
        self._cache: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        states = self._start
        for character in text:
            states = self._follow(states, character)
            if not states:
                return False
        return self._end in states

    def _follow(self, states: frozenset[int], character: str) -> frozenset[int]:
        found = self._cache.get((states, character))
        if found is None:
            reached = {
                step[1] for state in states if (step := self._steps[state]) is not None and step[0](character)
            }
            found = self._closure(reached)
            if len(self._cache) < MOST_CACHED:
                self._cache[states, character] = found
        return found

    def _closure(self, states: set[int]) -> frozenset[int]:
        waiting = list(states)
        while waiting:
            for state in self._jumps[waiting.pop()]:
                if state not in states:
                    states.add(state)
                    waiting.append(state)
        return frozenset(states)

    # ---- states

    def _state(self) -> int:
        if len(self._jumps) >= MOST_STATES:
            raise PatternError("the pattern is too large")
        self._steps.append(None)
        self._jumps.append([])
        return len(self._jumps) - 1

    def _one(self, accepts: Accepts) -> Fragment:
        first, last = self._state(), self._state()
        self._steps[first] = accepts, last
        return first, last

    def _empty(self) -> Fragment:
        state = self._state()
        return state, state

    def _joined(self, first: Fragment, second: Fragment) -> Fragment:
        self._jumps[first[1]].append(second[0])
        return first[0], second[1]

    def _repeated(self, build: Callable[[], Fragment], least: int, most: int | None) -> Fragment:
        whole = self._empty()
        for _ in range(least):
            whole = self._joined(whole, build())
        if most is None:
            first, last = build()
            loop = self._state()
            self._jumps[loop].append(first)
            self._jumps[last].append(loop)
            return self._joined(whole, (loop, loop))
        end = self._state()
        for _ in range(most - least):
            self._jumps[whole[1]].append(end)
            whole = self._joined(whole, build())
        self._jumps[whole[1]].append(end)
        return whole[0], end

    # ---- syntax

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        found = self._peek()
        if not found:
            raise PatternError("the pattern ends too early")
        self._at += 1
        return found

    def _alternatives(self) -> Fragment:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        first, last = self._state(), self._state()
        for branch in branches:
            self._jumps[first].append(branch[0])
            self._jumps[branch[1]].append(last)
        return first, last

    def _sequence(self) -> Fragment:
        whole = self._empty()
        while self._peek() not in ("", "|", ")"):
            whole = self._joined(whole, self._quantified())
        return whole

    def _quantified(self) -> Fragment:
        begin = self._at
        states = len(self._jumps)
        atom = self._atom()
        after = self._at
        quantifier = self._quantifier()
        if quantifier is None:
            return atom
        resume = self._at
        del self._steps[states:], self._jumps[states:]  # it is built again, as often as it may occur

        def build() -> Fragment:
            self._at = begin
            fragment = self._atom()
            assert self._at == after
            return fragment

        repeated = self._repeated(build, *quantifier)
        self._at = resume
        if self._quantifier() is not None:
            raise PatternError(f"a second quantifier at {resume}")
        return repeated

    def _quantifier(self) -> tuple[int, int | None] | None:
        begin = self._at
        character = self._peek()
        if character in _QUANTIFIERS and character:
            self._at += 1
            found = _QUANTIFIERS[character]
        elif character == "{":
            end = self._pattern.find("}", begin)
            low, comma, high = self._pattern[begin + 1 : max(end, begin)].partition(",")
            if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
                return None  # a literal
            most = int(high) if high else None if comma else int(low)
            if int(low) > MOST_REPEATS or (most is not None and not int(low) <= most <= MOST_REPEATS):
                raise PatternError(f"{{{low}{comma}{high}}} at {begin}: from 0 to {MOST_REPEATS}, in order")
            self._at = end + 1
            found = int(low), most
        else:
            return None
        if self._peek() == "?":
            self._at += 1  # not greedy: the same for whole ids
        return found

    def _atom(self) -> Fragment:
        at, character = self._at, self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._one(self._set())
            case ".":
                return self._one(lambda c: c != "\n")
            case "\\":
                return self._one(self._escape())
            case "*" | "+" | "?":
                raise PatternError(f"nothing to repeat at {at}")
            case "^" if at == 0:
                return self._empty()
            case "$" if self._at == len(self._pattern):
                return self._empty()
            case "^" | "$":
                raise PatternError(f"{character!r} at {at}: only at the beginning or the end")
            case _:
                return self._one(lambda c: c == character)

    def _group(self) -> Fragment:
        self._depth += 1
        if self._depth > MOST_GROUPS:
            raise PatternError("too many groups within one another")
        if self._peek() == "?":
            self._at += 1
            if self._next() != ":":
                raise PatternError(f"the kind of group at {self._at} is not known")
        inner = self._alternatives()
        if self._next() != ")":
            raise PatternError("a group has no end")
        self._depth -= 1
        return inner

    def _escape(self) -> Accepts:
        character = self._next()
        if character.lower() in _CLASSES:
            accepts = _CLASSES[character.lower()]
            return accepts if character.islower() else lambda c: not accepts(c)
        if character in _CONTROLS:
            control = _CONTROLS[character]
            return lambda c: c == control
        if character.isalnum():
            raise PatternError(f"the escape \\{character} is not known")
        return lambda c: c == character

    def _set(self) -> Accepts:
        negated = self._peek() == "^"
        self._at += negated
        parts: list[Accepts] = []
        while self._peek() != "]" or not parts:
            first = self._next()
            if first == "\\":
                escaped = self._peek()
                accepts = self._escape()
                if escaped.lower() in _CLASSES:
                    parts.append(accepts)
                    continue
                first = _CONTROLS.get(escaped, escaped)
            last = first
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._next()
                if last == "\\":
                    escaped = self._next()
                    last = _CONTROLS.get(escaped, escaped)
                if last < first:
                    raise PatternError(f"the range {first}-{last} is empty")
            parts.append(lambda c, first=first, last=last: first <= c <= last)  # type: ignore[misc]
        self._at += 1
        return lambda c: any(part(c) for part in parts) is not negated
