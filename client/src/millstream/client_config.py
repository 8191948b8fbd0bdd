"""A file with a client's settings, such as those of TLS and SASL: passwords belong in no command line.

One KEY=VALUE per line, with librdkafka's keys; empty lines and lines that begin with # are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millstream.errors import BadInput

MAX_BYTES: Final = 1 << 20


def read(option: str, path: str) -> dict[str, str]:
    """The settings in the file of an ``option``. Raises BadInput."""
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
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        where = f"{option}: {path}, line {number}"
        if not (key and equals):  # the line itself may be a password
            raise BadInput(f"{where}: is not KEY=VALUE", "write lines such as security.protocol=SASL_SSL")
        if key == "bootstrap.servers":
            raise BadInput(f"{where}: {key} is not allowed", "the command's options name the address")
        if key in found:
            raise BadInput(f"{where}: {key} is given twice", "give each key once")
        found[key] = value
    return found
