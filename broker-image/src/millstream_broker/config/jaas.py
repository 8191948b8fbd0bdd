"""JAAS configuration: login modules, alone or in the sections of a file. `listener.name.NAME.plain.sasl.jaas.config`:

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob="other";

Errors have no value: values are passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

_BLANK = r"(?:\s|//[^\n]*(?:\n|$)|/\*.*?\*/)*"
_MODULE = re.compile(rf"{_BLANK}([\w.$-]+)", re.DOTALL)
_FLAG = re.compile(rf"{_BLANK}(?:required|requisite|sufficient|optional)(?=[\s;])", re.DOTALL | re.IGNORECASE)
_OPTION = re.compile(
    rf"""{_BLANK}(?:"((?:[^"\\]|\\.)*)"|([^\s"';=]+)){_BLANK}={_BLANK}"""
    r"""(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|([^\s"';]+))""",
    re.DOTALL,
)
_END = re.compile(rf"{_BLANK};{_BLANK}", re.DOTALL)
_SECTION = re.compile(rf"""{_BLANK}(?:"([^"\n]+)"|([\w.$-]+)){_BLANK}\{{""", re.DOTALL)
_SECTION_END = re.compile(rf"{_BLANK}\}}{_BLANK};{_BLANK}", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """The text is no login module."""


class LoginModule(NamedTuple):
    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.module})"


@lru_cache(64)
def parse_jaas(text: str) -> LoginModule:
    """Raises JaasError."""
    found, end = _module_at(text, 0)
    if end != len(text):
        raise JaasError("expected one login module, and nothing after its semicolon")
    return found


def section(text: str, name: str) -> str | None:
    """The login module in a section of a JAAS file, as text; None without such a section. Raises JaasError.

    Client {
        org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="secret";
    };
    """
    at, found = 0, None
    while (start := _SECTION.match(text, at)) is not None:
        at, modules = start.end(), []
        while (end := _SECTION_END.match(text, at)) is None:
            _, after = _module_at(text, at)
            modules.append(text[at:after])
            at = after
        at = end.end()
        if (start[1] or start[2]) == name:
            if len(modules) != 1:
                raise JaasError(f"has {len(modules)} login modules: expected 1")
            found = modules[0].strip()
    if text[at:].strip():
        raise JaasError(
            "the file cannot be read: expected sections, NAME { MODULE required OPTION=VALUE …; };"
        )
    return found


def _module_at(text: str, at: int) -> tuple[LoginModule, int]:
    """A login module, and where it ends. Raises JaasError."""
    form = 'expected MODULE required OPTION="VALUE" …; with a semicolon at the end'
    module = _MODULE.match(text, at)
    flag = _FLAG.match(text, module.end()) if module is not None else None
    if module is None or flag is None:
        raise JaasError(form)
    options: dict[str, str] = {}
    at = flag.end()
    while (end := _END.match(text, at)) is None:
        option = _OPTION.match(text, at)
        if option is None:
            raise JaasError(f"{form}; it cannot be read after {len(options)} options")
        quoted_name, plain_name, quoted, single, plain = option.groups()
        name = plain_name if quoted_name is None else _unescaped(quoted_name)
        value = quoted if quoted is not None else single
        options[name] = plain if value is None else _unescaped(value)
        at = option.end()
    return LoginModule(module[1], options), end.end()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
