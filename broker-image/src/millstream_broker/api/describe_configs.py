"""DescribeConfigs: the values of topics and brokers, where each comes from, and what it means (KIP-133, KIP-226)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import Entry, Source
from ..config_keys import BROKER_KEYS
from ..configs import Resource, check_broker, unsupported
from ..metadata import check_topic_name
from ..protocol import describe_configs
from ..protocol.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ..protocol.errors import ApiError, ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(describe_configs.API)
def handle(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_describe(broker, asked, request) for asked in request.resources])


def _describe(
    broker: Broker, asked: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    wanted = asked.configuration_keys
    try:
        entries = _entries(broker, asked)
    except ApiError as error:
        return DescribeConfigsResult(error.code, error.message, asked.resource_type, asked.resource_name)
    return DescribeConfigsResult(
        ErrorCode.NONE,
        "",
        asked.resource_type,
        asked.resource_name,
        [_result(entry, asked, request) for entry in entries if not wanted or entry.key.name in wanted],
    )


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
