"""SaslAuthenticate: a broker shows what it is (`inter_broker`); no listener asks clients for SASL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import sasl_authenticate
from ..protocol.errors import ApiError
from ..protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(sasl_authenticate.API)
def handle(
    broker: Broker, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    try:
        answer = context.authenticator.step(broker.coordination.secret, broker.broker_id, request.auth_bytes)
    except ApiError as error:
        return SaslAuthenticateResponse(error.code, error.message)
    return SaslAuthenticateResponse(0, None, answer)
