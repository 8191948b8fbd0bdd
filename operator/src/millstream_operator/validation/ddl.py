"""The columns of Spark's DDL, such as ``carrier STRING, delays ARRAY<DOUBLE>``, as far as a manifest needs them; pure.

Spark is the judge of a schema. This finds what a typing mistake makes of it, a type that does not exist, before Spark
starts. DDL in a form that this does not know has no columns here: `Unknown`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

TYPES = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
    *(
        "FLOAT",
        "REAL",
        "DOUBLE",
        "DECIMAL",
        "DEC",
        "NUMERIC",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "TIMESTAMP_LTZ",
    ),
    *(
        "STRING",
        "CHAR",
        "CHARACTER",
        "VARCHAR",
        "BINARY",
        "VOID",
        "INTERVAL",
        "VARIANT",
        "ARRAY",
        "MAP",
        "STRUCT",
    ),
)
SHOWN = "BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p, s), DATE, TIMESTAMP, STRING, BINARY, ARRAY<…>, MAP<…>, STRUCT<…>"
_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<sign>[<>(),:])",
    re.DOTALL,
)


class WrongType(ValueError):
    """A column's type does not exist."""


class Unknown(ValueError):
    """The DDL has another form than this module knows."""


def columns(ddl: str) -> dict[str, str]:
    """The type of each column, in capitals and without what it contains. Raises WrongType, Unknown."""
    tokens = [*_tokens(ddl), ""]
    found, position = _fields(tokens, 0, "")
    if tokens[position] != "":
        raise Unknown(tokens[position])
    return found


def _tokens(ddl: str) -> Iterator[str]:
    position = 0
    while position < len(ddl):
        token = _TOKEN.match(ddl, position)
        if token is None:
            raise Unknown(ddl[position:])
        position = token.end()
        if token.lastgroup is not None:
            yield token[0]


def _fields(tokens: list[str], position: int, within: str) -> tuple[dict[str, str], int]:
    found: dict[str, str] = {}
    while True:
        name = _name(tokens[position])
        position += 2 if tokens[position + 1] == ":" else 1
        path = f"{within}.{name}" if within else name
        if name in found and not within:
            raise WrongType(f"column {path}: it is there twice")
        found[name], position = _type(tokens, position, path)
        if [token.upper() for token in tokens[position : position + 2]] == ["NOT", "NULL"]:
            position += 2
        if tokens[position].upper() == "COMMENT" and tokens[position + 1][:1] in ("'", '"'):
            position += 2
        if tokens[position] != ",":
            return found, position
        position += 1


def _name(token: str) -> str:
    if token.startswith("`"):
        return token[1:-1].replace("``", "`")
    if not re.fullmatch(r"\w+", token):
        raise Unknown(token)
    return token


def _type(tokens: list[str], position: int, path: str) -> tuple[str, int]:
    kind = tokens[position].upper()
    if not re.fullmatch(r"\w+", kind):
        raise Unknown(kind)
    if kind not in TYPES:
        near = difflib.get_close_matches(kind, TYPES, 1)
        hint = f"did you mean {near[0]}?" if near else f"allowed are {SHOWN}"
        raise WrongType(f"column {path}: {tokens[position]} is no type: {hint}")
    position += 1
    following = tokens[position]
    if kind == "INTERVAL":
        while re.fullmatch(r"(?i)YEAR|MONTH|DAY|HOUR|MINUTE|SECOND|TO", tokens[position]):
            position += 1
    elif kind == "STRUCT" and following == "<":
        position += 1
        if tokens[position] != ">":
            _, position = _fields(tokens, position, path)
        position = _after(tokens, position, ">")
    elif kind in ("ARRAY", "MAP") and following == "<":
        _, position = _type(tokens, position + 1, path)
        if kind == "MAP":
            _, position = _type(tokens, _after(tokens, position, ","), path)
        position = _after(tokens, position, ">")
    elif following == "(":
        while tokens[position] not in (")", ""):
            position += 1
        position = _after(tokens, position, ")")
    return kind, position


def _after(tokens: list[str], position: int, sign: str) -> int:
    if tokens[position] != sign:
        raise Unknown(tokens[position])
    return position + 1
