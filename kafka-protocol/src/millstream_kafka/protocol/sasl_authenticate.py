"""SaslAuthenticate (key 36): one step of a SASL exchange (KIP-152); brokers accept it only from each other.

v1 adds the session's lifetime, after which a client has to authenticate again (KIP-368); v2 is flexible.
"""

from __future__ import annotations

from .api import Api
from .schema import Bytes, Struct, bytes_, int16, int64, string


class SaslAuthenticateRequest(Struct):
    auth_bytes: Bytes = bytes_()


class SaslAuthenticateResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    auth_bytes: Bytes = bytes_()
    session_lifetime_ms: int = int64(since=1)


API = Api(
    36,
    "SaslAuthenticate",
    (0, 2),
    flexible=2,
    request=SaslAuthenticateRequest,
    response=SaslAuthenticateResponse,
)
