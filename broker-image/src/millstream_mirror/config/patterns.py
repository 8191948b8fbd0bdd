"""Patterns of names, with RE2: linear time for every pattern and name, as in the operator.

https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

from typing import Any

import re2

_QUIET = re2.Options()
_QUIET.log_errors = False


class Pattern:
    """A valid pattern; raises ValueError for others."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled: Any = re2.compile(text, _QUIET)
        except re2.error as error:
            reason = error.args[0]
            raise ValueError(
                reason.decode(errors="replace") if isinstance(reason, bytes) else reason
            ) from None

    def matches(self, name: str) -> bool:
        """Whether it matches the whole name."""
        return self._compiled.fullmatch(name) is not None
