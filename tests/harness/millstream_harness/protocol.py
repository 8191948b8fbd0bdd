"""Every API of the protocol, and responses, for tests that play a broker."""

from __future__ import annotations

import importlib
import pkgutil

from millstream_kafka import protocol
from millstream_kafka.protocol.api import APIS as APIS

for _module in pkgutil.iter_modules(protocol.__path__):
    importlib.import_module(f"{protocol.__name__}.{_module.name}")


def encode_response_header(correlation_id: int, flexible: bool) -> bytes:
    """``flexible`` is ``Api.has_flexible_response_header(version)``."""
    return correlation_id.to_bytes(4, "big") + (b"\0" if flexible else b"")
