"""`ssl.principal.mapping.rules` (KIP-371): how the subject of a client's certificate becomes its principal's name.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?),.*$/$1@example/,DEFAULT

The first rule whose pattern matches the whole subject applies; L and U change the result to lower and upper case.
DEFAULT is the subject itself. If no rule matches, the client is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...config.config_types import ConfigError

KEY = "ssl.principal.mapping.rules"

Rule = Callable[[str], str | None]

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d+)|(\$)", re.DOTALL)


class NoRuleError(ValueError):
    """No rule matches a subject."""


class PrincipalMapping:
    """The rules of a listener."""

    def __init__(self, rules: str) -> None:
        """Raises ConfigError."""
        self._rules = _parse(rules)

    def name(self, subject: str) -> str:
        """Raises NoRuleError."""
        for rule in self._rules:
            if (found := rule(subject)) is not None:
                return found
        raise NoRuleError(f"no rule of {KEY} matches {subject}")


def _parse(text: str) -> Sequence[Rule]:
    rules, position = list[Rule](), 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise _invalid(
                text,
                f"expected RULE:PATTERN/REPLACEMENT/, the same with L or U, or DEFAULT at {text[position:]}",
            )
        position = found.end()
        rules.append(str if found[1] else _rule(text, found[2], found[3], found[4]))
    return rules or [str]


def _rule(text: str, pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise _invalid(text, f"{pattern} is not a regular expression: {error}") from None

    def reference(found: re.Match[str], groups: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        number = found[2] or ""
        while number and int(number) > compiled.groups:
            number = number[:-1]  # as in Java: $12 is group 1 and a 2, if there is no group 12
        if not number:
            return found[0]
        return (groups[int(number)] or "") + (found[2] or "")[len(number) :]

    def apply(subject: str) -> str | None:
        groups = compiled.fullmatch(subject)
        if groups is None:
            return None
        name = _REFERENCE.sub(lambda found: reference(found, groups), replacement)
        return name.lower() if case == "L" else name.upper() if case == "U" else name

    return apply


def _invalid(text: str, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {text} for configuration {KEY}: {why}", KEY)
