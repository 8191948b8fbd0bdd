"""SaslHandshake without SASL: a broker chooses the mechanism for brokers. Listeners with SASL have `network.login`."""

from __future__ import annotations

from millstream_kafka.protocol import sasl_handshake
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

from ..network.handlers import RequestContext, handler


@handler(sasl_handshake.API)
def handle(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    try:
        return SaslHandshakeResponse(ErrorCode.NONE, context.authentication.begin(request.mechanism))
    except ApiError as error:
        return SaslHandshakeResponse(error.code, context.authentication.mechanisms)
