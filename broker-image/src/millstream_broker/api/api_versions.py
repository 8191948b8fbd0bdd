"""ApiVersions: the APIs that this broker serves, and their versions.

The response to an unknown version is UNSUPPORTED_VERSION with the list, in v0, so that the client can retry
(KIP-511). The broker announces no features: without `transaction.version` clients use classic transactions.
"""

from __future__ import annotations

import re

from millstream_kafka.protocol import api_versions
from millstream_kafka.protocol.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from millstream_kafka.protocol.errors import ErrorCode

from ..handlers import Handlers, RequestContext, handler

SOFTWARE_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handler(api_versions.API)
def handle(handlers: Handlers, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    known = api_versions.API.serves(context.version)
    if known and context.version >= SOFTWARE_SINCE:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(key, *handlers[key].api.versions) for key in sorted(handlers)],
    )
