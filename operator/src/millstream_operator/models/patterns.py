"""Regular expressions that users write, in RE2's syntax: matching takes time in proportion to the text.

Python's own regular expressions take exponential time for some patterns, which would stop the operator for everybody.
https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

from collections.abc import Iterable

import re2

_QUIET = re2.Options()
_QUIET.log_errors = False


def refusal(pattern: str) -> str:
    """Why a pattern is not valid; empty if it is."""
    try:
        re2.compile(pattern, _QUIET)
    except re2.error as error:
        said = error.args[0]
        return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return ""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of these valid patterns matches the whole name."""
    return any(re2.fullmatch(pattern, name, _QUIET) for pattern in patterns)
