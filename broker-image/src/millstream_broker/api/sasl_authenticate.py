"""SaslAuthenticate: no listener asks for SASL, so this is never the time for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import sasl_authenticate
from ..protocol.errors import ErrorCode
from ..protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(sasl_authenticate.API)
def handle(
    broker: Broker, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    message = "SaslAuthenticate request received after successful authentication"
    return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, message)
