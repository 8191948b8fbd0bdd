"""SaslAuthenticate without SASL: a step of an exchange between brokers. Listeners with SASL have `network.login`."""

from __future__ import annotations

from millstream_kafka.protocol import sasl_authenticate
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

from ..network.handlers import RequestContext, handler


@handler(sasl_authenticate.API, ends_with_connection=True)
async def handle(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    try:
        answer = await context.authentication.step(request.auth_bytes)
    except ApiError as error:
        return SaslAuthenticateResponse(error.code, error.message)
    return SaslAuthenticateResponse(0, "", answer.auth_bytes, answer.lifetime_ms)
