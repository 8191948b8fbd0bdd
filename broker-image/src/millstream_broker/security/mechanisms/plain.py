"""PLAIN (RFC 4616): user name and password, of users in the listener's JAAS configuration.

The client's message is `[authorization id] NUL user NUL password`. As in Kafka, the configuration has an option
`user_NAME="PASSWORD"` for each user, and may change while the broker runs.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Bytes

from ...config.jaas import JaasError, parse_jaas
from ...config.sasl_keys import USER
from ..authentication import Identity, Step

_NOBODY = "\0"
"""No client can send this password: it would end there."""


class PlainAuthenticator:
    """The mechanism, for all connections of a listener."""

    def __init__(self, jaas: Callable[[], str | None]) -> None:
        """`jaas` returns the present configuration."""
        self._jaas = jaas

    def begin(self) -> PlainAuthenticator:
        return self

    def guesses(self, auth_bytes: Bytes) -> str:
        parts = str(auth_bytes, "utf-8", "replace").split("\0", 3)
        return parts[1] if len(parts) == 3 else ""

    async def step(self, auth_bytes: Bytes) -> Step:
        parts = str(auth_bytes, "utf-8", "replace").split("\0")
        if len(parts) != 3:
            raise _refused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}")
        authorized, user, password = parts
        if not user:
            raise _refused("Authentication failed: username not specified")
        if not password:
            raise _refused("Authentication failed: password not specified")
        expected = self._users().get(USER + user, _NOBODY)
        if not hmac.compare_digest(_fixed(password), _fixed(expected)):
            raise _refused("Authentication failed: Invalid username or password")
        if authorized not in ("", user):
            raise _refused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return Step(b"", Identity(f"User:{user}"))

    def _users(self) -> Mapping[str, str]:
        try:
            return parse_jaas(self._jaas() or "").options
        except JaasError:
            return {}


def _fixed(password: str) -> bytes:
    """The password's digest: to compare digests takes the same time for any two passwords."""
    return hmac.digest(_KEY, password.encode("utf-8", "surrogatepass"), "sha256")


_KEY = b"compared"


def _refused(message: str) -> ApiError:
    return ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
