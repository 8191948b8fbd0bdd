"""SaslHandshake (key 17): a client chooses a SASL mechanism (KIP-43); brokers accept it only from each other.

Never flexible. After v1 the exchange goes through SaslAuthenticate; after v0 it is bare frames.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, string


class SaslHandshakeRequest(Struct):
    mechanism: str = string()


class SaslHandshakeResponse(Struct):
    error_code: int = int16()
    mechanisms: list[str] = array("string")


API = Api(
    17, "SaslHandshake", (0, 1), flexible=None, request=SaslHandshakeRequest, response=SaslHandshakeResponse
)
