"""DescribeConfigs: the values of topics and brokers, their sources and documentation (KIP-133, KIP-226).

The description of one resource takes some KB and a fraction of a millisecond: those of many are encoded in slices. A
resource that is named more than MOST_REPEATED times is refused with INVALID_REQUEST, because half a MB of names could
produce a response of a GB.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_configs
from millstream_kafka.protocol.describe_configs import (
    CONFIG,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Encoded
from millstream_kafka.topic_owner import KEY as TOPIC_OWNER

from ..administration.configs import ConfigAdministrator, Resource
from ..config.config import ConfigSource, Entry
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.config_rights import check_configuration, rights_on_configuration

MOST_REPEATED = 10


@handler(
    describe_configs.API,
    ends_with_connection=True,
    rights=rights_on_configuration(AclOperation.DESCRIBE_CONFIGS),
)
async def handle(
    authorizer: Authorizer,
    config_administrator: ConfigAdministrator,
    context: RequestContext,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse:
    times = Counter((requested.resource_type, requested.resource_name) for requested in request.resources)
    results = []
    async for requested in cooperatively(request.resources):
        is_repeated = times[requested.resource_type, requested.resource_name] > MOST_REPEATED
        results.append(
            _describe(authorizer, config_administrator, context, requested, request, is_repeated=is_repeated)
        )
    return DescribeConfigsResponse(results=results)


def _describe(
    authorizer: Authorizer,
    config_administrator: ConfigAdministrator,
    context: RequestContext,
    requested: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    *,
    is_repeated: bool,
) -> DescribeConfigsResult:
    wanted = set(requested.configuration_keys or ())
    kind, name = requested.resource_type, requested.resource_name
    try:
        check_configuration(authorizer, context.session, AclOperation.DESCRIBE_CONFIGS, kind, name)
        if is_repeated:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"A resource may be named {MOST_REPEATED} times at most."
            )
        entries = config_administrator.describe(requested.resource_type, requested.resource_name)
    except ApiError as error:
        return DescribeConfigsResult(
            error.code, error.message, requested.resource_type, requested.resource_name
        )
    described = [
        CONFIG.encode(context.version, _result(entry, requested, request))
        for entry in entries
        if not wanted or entry.key.name in wanted
    ]
    configs: Any = Encoded(len(described), b"".join(described))
    return DescribeConfigsResult(
        ErrorCode.NONE, "", requested.resource_type, requested.resource_name, configs
    )


def _result(
    entry: Entry, requested: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    of_topic = requested.resource_type == Resource.TOPIC
    return DescribeConfigsResourceResult(
        entry.key.name,
        entry.value,
        entry.key.name == TOPIC_OWNER if of_topic else not entry.key.dynamic,
        entry.source,
        entry.source is ConfigSource.DEFAULT,
        entry.key.is_sensitive,
        [DescribeConfigsSynonym(*synonym) for synonym in entry.synonyms] if request.include_synonyms else [],
        entry.key.type,
        entry.key.doc if request.include_documentation else None,
    )
