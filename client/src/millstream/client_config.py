"""A file with a client's settings, such as those of TLS and SASL: passwords belong in no command line.

One KEY=VALUE per line, with the keys of Kafka's Java clients or of librdkafka; a line that ends with a backslash goes
on in the next, except after a password. Empty lines and lines that begin with # or ! are ignored. A profile is such a
file in the user's folder of profiles, named without its ending.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millstream import client_properties
from millstream.errors import BadInput

MAX_BYTES: Final = 1 << 20
BOOTSTRAP: Final = "bootstrap.servers"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"
ENDING: Final = ".properties"
SECRETS: Final = (".password", ".secret")
"""Endings of keys whose values may end with a backslash."""
_LINE_END: Final = re.compile(r"\r\n|[\r\n]")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """``where`` names the file in errors; ``bootstrap``: the addresses in the file, if it has any."""

    where: str = "config"
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    bootstrap: str | None = None


def load(option: str, path: str) -> ClientConfig:
    """The file of an ``option``. Raises BadInput."""
    found = _parsed(option, path)
    bootstrap = found.pop(BOOTSTRAP, (0, None))[1]
    return ClientConfig(f"{option}: {path}", {key: value for key, (_, value) in found.items()}, bootstrap)


def read(option: str, path: str) -> dict[str, str]:
    """The settings in the file of an ``option`` for an address that is given elsewhere. Raises BadInput."""
    found = _parsed(option, path)
    if BOOTSTRAP in found:
        where = f"{option}: {path}, line {found[BOOTSTRAP][0]}"
        raise BadInput(f"{where}: {BOOTSTRAP} is not allowed", "the command's options name the address")
    return {key: value for key, (_, value) in found.items()}


def profiles() -> Path:
    """The user's folder of profiles."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "millstream"


def profile(option: str, name: str) -> ClientConfig:
    """The profile of a name. Raises BadInput."""
    folder = profiles()
    there = sorted(path.name.removesuffix(ENDING) for path in folder.glob(f"*{ENDING}"))
    if name not in there:
        some = f"use {', '.join(there)}, or write" if there else "write"
        raise BadInput(
            f'{option}: there is no profile "{name}"',
            f"{some} the client's settings to {folder / f'NAME{ENDING}'}",
        )
    return load(option, str(folder / f"{name}{ENDING}"))


def _parsed(option: str, path: str) -> dict[str, tuple[int, str]]:
    """Lines and values by key."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8 text"
        raise BadInput(f"{option}: {path}: cannot be read: {why}", "name a file of KEY=VALUE lines") from None
    if len(text) > MAX_BYTES:
        raise BadInput(
            f"{option}: {path}: has more than {MAX_BYTES:,} bytes", "name a file of KEY=VALUE lines"
        )
    found: dict[str, tuple[int, str]] = {}
    for number, line in _lines(text):
        key, equals, value = (part.strip(" \t\f") for part in line.partition("="))
        where = f"{option}: {path}, line {number}"
        if not (key and equals):  # the line itself may be a password
            raise BadInput(f"{where}: is not KEY=VALUE", "write lines such as security.protocol=SASL_SSL")
        if key in found:
            raise BadInput(f"{where}: {key} is given twice", "give each key once")
        found[key] = number, _unescaped(value) if key in client_properties.ESCAPED else value
    return found


def _unescaped(value: str) -> str:
    """A value with Java's escapes: \\n, \\u0041 and the like; another character after a backslash is itself."""
    text = _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _NAMED.get(found[2], found[2]), value
    )
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers, continued ones joined, without comments."""
    found: list[tuple[int, str]] = []
    goes_on = False
    for number, line in enumerate(_LINE_END.split(text), 1):
        line = line.strip(" \t\f")
        if not goes_on and (not line or line[0] in "#!"):
            continue
        key = (found[-1][1] if goes_on else line).partition("=")[0].strip()
        ends = not key.endswith(SECRETS) and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        part = line[:-1] if ends else line
        if goes_on:
            found[-1] = found[-1][0], found[-1][1] + part
        else:
            found.append((number, part))
        goes_on = ends
    return found
