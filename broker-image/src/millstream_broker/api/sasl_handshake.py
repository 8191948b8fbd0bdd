"""SaslHandshake: the start of a broker's authentication (`inter_broker`); no listener requires SASL of clients."""

from __future__ import annotations

from millstream_kafka.protocol import sasl_handshake
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

from ..network.handlers import RequestContext, handler
from ..security.inter_broker import MECHANISM


@handler(sasl_handshake.API)
def handle(
    inter_broker_listener: str, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    is_for_brokers = context.listener_name == inter_broker_listener
    if request.mechanism != MECHANISM or not is_for_brokers:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, [])
    context.authenticator.begin()
    return SaslHandshakeResponse(ErrorCode.NONE, [MECHANISM])
