"""Whether a listener requires SASL; otherwise its clients see only closed connections.

SaslHandshake v0 (KIP-43): the request has a mechanism's name; the response has an error code and the listener's
mechanisms. A listener without SASL responds with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

SASL_HANDSHAKE: Final = 17
ILLEGAL_SASL_STATE: Final = 34
DEFAULT_MECHANISM: Final = "GSSAPI"
"""librdkafka's default."""
NONE_ASKED: Final = b"-"
"""A mechanism that no listener has."""


def is_used(config: Mapping[str, Any]) -> bool:
    """Whether connections with librdkafka's settings use SASL."""
    return str(config.get("security.protocol", "")).lower().startswith("sasl_")


def mechanism(config: Mapping[str, Any]) -> str:
    """That of librdkafka's settings."""
    return str(config.get("sasl.mechanism", config.get("sasl.mechanisms", DEFAULT_MECHANISM)))


def handshake() -> bytes:
    """The body of a request."""
    return struct.pack(">h", len(NONE_ASKED)) + NONE_ASKED


def mechanisms(body: bytes) -> tuple[str, ...]:
    """The listener's mechanisms; none if it does not use SASL. ValueError or struct.error for another response."""
    error, count = struct.unpack_from(">hi", body)
    found, position = [], 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", body, position)
        found.append(body[position + 2 : position + 2 + length].decode())
        position += 2 + length
    if error not in (0, 33, ILLEGAL_SASL_STATE) or position != len(body):
        raise ValueError("its answer is no SaslHandshake response")
    return tuple(sorted(found))


def problem(config: Mapping[str, Any], offered: tuple[str, ...]) -> str:
    """Why a client with these settings cannot log in at a listener with these mechanisms; "" if it can."""
    secured = "ssl" in str(config.get("security.protocol", "")).lower()
    if not offered:
        plain = "SSL" if secured else "PLAINTEXT"
        return f"it does not use SASL, and the client does; set security.protocol={plain}"
    if not is_used(config):
        which = "SASL_SSL" if secured else "SASL_PLAINTEXT"
        return (
            f"it requires SASL ({', '.join(offered)}), and the client does not use it; "
            f"set security.protocol={which}, sasl.mechanism, sasl.username and sasl.password"
        )
    own = mechanism(config)
    if own.upper() not in offered:
        return f"it does not have the client's mechanism {own}; set sasl.mechanism to {' or '.join(offered)}"
    return ""
