"""SaslAuthenticate: one step of an exchange (`security.authentication`)."""

from __future__ import annotations

from millstream_kafka.protocol import sasl_authenticate
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

from ..network.handlers import RequestContext, handler


@handler(sasl_authenticate.API)
async def handle(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    try:
        answer = await context.authentication.step(request.auth_bytes)
    except ApiError as error:
        return SaslAuthenticateResponse(error.code, error.message)
    return SaslAuthenticateResponse(0, None, answer)
