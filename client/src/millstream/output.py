"""Output of commands: tables or lines for people, JSON for programs (``--output json``).

JSON is one line on stdout; its field names are in camelCase, as in the custom resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from millstream.options import Settings

Row = tuple[Any, ...]


def show(settings: Settings, found: Any, head: tuple[str, ...], rows: Sequence[Row]) -> None:
    """``found`` (plain data) as JSON, or the table."""
    if settings.output == "json":
        show_json(found)
    else:
        show_table(head, rows)


def tell(settings: Settings, done: dict[str, Any], *lines: str) -> None:
    """Report a command's effect: lines for people, or an object."""
    if settings.output == "json":
        show_json(done)
    else:
        for line in lines:
            click.echo(printable(line))


def show_json(found: Any) -> None:
    click.echo(json.dumps(_camel(found), ensure_ascii=False))


def printable(text: str) -> str:
    """Escapes control characters: names come from clients, and clients may be hostile."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def show_table(head: tuple[str, ...], rows: Sequence[Row]) -> None:
    """Numbers are aligned to the right; None shows as "-"."""
    from rich.console import Console  # some commands print no table
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(head):
        number = bool(rows) and all(isinstance(row[index], int | None) for row in rows)
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*("-" if cell is None else printable(str(cell)) for cell in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000  # a pipe has no width: lines are not cut
    console.print(table)


def ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


# Mappings with names as keys, not fields.
_NAMED = ("config", "offsets")


def _camel(found: Any) -> Any:
    if isinstance(found, dict):
        return {_camel_name(name): item if name in _NAMED else _camel(item) for name, item in found.items()}
    if isinstance(found, list | tuple):
        return [_camel(item) for item in found]
    return found


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
