"""What a command shows: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

NUMBERS = (int, float)


def as_json(value: Any) -> str:
    """A dataclass, or a list of them, on one line; names in camelCase as in the resources."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(key): _plain(item) for key, item in asdict(value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def table(rows: Sequence[Any], empty: str) -> None:
    """Dataclasses of one type as rows, their fields as columns; ``empty`` is said where there are none."""
    if not rows:
        click.echo(empty)
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    names = [field.name for field in fields(rows[0])]
    for name in names:
        number = isinstance(getattr(rows[0], name), NUMBERS)
        shown.add_column(
            name.replace("_", " ").upper(), justify="right" if number else "left", overflow="fold"
        )
    for row in rows:
        shown.add_row(*(_cell(getattr(row, name)) for name in names))
    console = Console()
    # a pipe has no width of its own: lines must not break there
    console.print(shown, width=None if console.is_terminal else 400)


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
