"""SaslHandshake: no listener asks for SASL, so there is nothing to shake hands about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import sasl_handshake
from ..protocol.errors import ErrorCode
from ..protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(sasl_handshake.API)
def handle(broker: Broker, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, [])
