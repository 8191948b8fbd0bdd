"""DescribeConfigs: the values of topics and brokers, where each comes from, and what it means (KIP-133, KIP-226).

What is said of one resource takes some KB and a fraction of a millisecond: of many it is encoded in slices. A resource
that is named more than MOST_REPEATED times is refused with INVALID_REQUEST, for half a MB of names would make an answer
of a GB.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..config import Entry, Source
from ..config_keys import BROKER_KEYS
from ..configs import Resource, check_broker, unsupported
from ..metadata import check_topic_name
from ..protocol import describe_configs
from ..protocol.describe_configs import (
    CONFIG,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.schema import Encoded
from ..slices import turns
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


MOST_REPEATED = 10
WITHOUT_CONFIGURATION = {Resource.BROKER_LOGGER, Resource.CLIENT_METRICS, Resource.GROUP}
"""What has some in Kafka and has none here."""


@handler(describe_configs.API)
async def handle(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    times = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
    results = []
    async for asked in turns(request.resources):
        is_repeated = times[asked.resource_type, asked.resource_name] > MOST_REPEATED
        results.append(_describe(broker, asked, request, context.version, is_repeated=is_repeated))
    return DescribeConfigsResponse(results=results)


def _describe(
    broker: Broker,
    asked: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    version: int,
    *,
    is_repeated: bool,
) -> DescribeConfigsResult:
    wanted = set(asked.configuration_keys or ())
    try:
        if is_repeated:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"A resource may be named {MOST_REPEATED} times at most."
            )
        entries = _entries(broker, asked)
    except ApiError as error:
        return DescribeConfigsResult(error.code, error.message, asked.resource_type, asked.resource_name)
    described = [
        CONFIG.encode(version, _result(entry, asked, request))
        for entry in entries
        if not wanted or entry.key.name in wanted
    ]
    configs: Any = Encoded(len(described), b"".join(described))
    return DescribeConfigsResult(ErrorCode.NONE, "", asked.resource_type, asked.resource_name, configs)


def _entries(broker: Broker, asked: DescribeConfigsResource) -> list[Entry]:
    if asked.resource_type == Resource.TOPIC:
        check_topic_name(asked.resource_name)
        return broker.configs.of(broker.metadata.topic(asked.resource_name)).describe()
    if asked.resource_type == Resource.BROKER:
        if asked.resource_name:
            check_broker(broker, asked.resource_name, "Broker", " or empty string")
            return broker.config.describe()
        given = broker.metadata.state.broker_configs.get(None, {})
        source = Source.DYNAMIC_CLUSTER
        return [
            Entry(BROKER_KEYS[name], value, source, ((name, value, source),))
            for name, value in given.items()
            if name in BROKER_KEYS
        ]
    if asked.resource_type == Resource.BROKER_LOGGER:
        check_broker(broker, asked.resource_name, "Broker")
    if asked.resource_type in WITHOUT_CONFIGURATION:
        return []
    raise unsupported(asked.resource_type)


def _result(
    entry: Entry, asked: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    of_topic = asked.resource_type == Resource.TOPIC
    return DescribeConfigsResourceResult(
        entry.key.name,
        entry.value,
        not of_topic and not entry.key.dynamic,
        entry.source,
        entry.source is Source.DEFAULT,
        False,
        [DescribeConfigsSynonym(*synonym) for synonym in entry.synonyms] if request.include_synonyms else [],
        entry.key.type,
        entry.key.doc if request.include_documentation else None,
    )
