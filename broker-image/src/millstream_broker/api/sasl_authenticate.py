"""SaslAuthenticate: a broker authenticates (`inter_broker`); no listener requires SASL of clients."""

from __future__ import annotations

from millstream_kafka.protocol import sasl_authenticate
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

from ..coordination.coordination import Coordination
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas


@handler(sasl_authenticate.API)
def handle(
    replicas: Replicas, coordination: Coordination, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    try:
        answer = context.authenticator.step(coordination.secret, replicas.broker_id, request.auth_bytes)
    except ApiError as error:
        return SaslAuthenticateResponse(error.code, error.message)
    return SaslAuthenticateResponse(0, None, answer)
