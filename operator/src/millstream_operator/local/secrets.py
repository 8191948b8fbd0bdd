"""Secrets of the manifests: values for MirrorMakers and Users, kept in files that only the user can read.

DATA/mirrors/NAME/secrets/SECRET/KEY   a value that the MirrorMaker names; workers read it again for each connection
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..models.mirror import SecretKey

Values = Mapping[str, bytes]
Secrets = Mapping[tuple[str, str], Values]
"""The values of each Secret, by its namespace and name."""


def values_of(document: Mapping[str, Any]) -> Values:
    """The values of a Secret's manifest. Raises ValueError, with a message without values."""
    found: dict[str, bytes] = {}
    for field in ("data", "stringData"):  # the latter wins, as on Kubernetes
        values = document.get(field) or {}
        if not isinstance(values, dict):
            raise ValueError(f"{field}: must be an object of texts")
        for key, value in values.items():
            if not isinstance(value, str):
                raise ValueError(f"{field}.{key}: must be a text; put it in quotes")
            found[key] = value.encode() if field == "stringData" else _decoded(f"{field}.{key}", value)
    return found


def _decoded(path: str, value: str) -> bytes:
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{path}: is not base64; stringData takes plain text") from None


def write(folder: Path, namespace: str, keys: Iterable[SecretKey], secrets: Secrets) -> None:
    """Write those keys to files SECRET/KEY. If no manifest has the Secret now, its files stay. OSError."""
    for key in keys:
        if (values := secrets.get((namespace, key.name))) is None:
            continue
        file = folder / key.name / key.key
        if (value := values.get(key.key)) is None:
            file.unlink(missing_ok=True)
            continue
        for parent in (folder, file.parent):
            parent.mkdir(mode=0o700, exist_ok=True)
        if not file.exists() or file.read_bytes() != value:
            replace_file(file, value)


def replace_file(file: Path, content: bytes) -> None:
    """Replace the file of a key by one that only the user can read, in one step. OSError."""
    aside = file.with_name(f"..{file.name}")  # no key has this name
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    aside.replace(file)
