"""Handlers declare their parts by the types of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from millstream_broker import api
from millstream_broker.api.parts import Parts, bind
from millstream_broker.groups.driver import GroupDriver
from millstream_broker.network import handlers
from millstream_broker.network.handlers import REGISTERED, RequestContext, handler
from millstream_broker.replication.replicas import Replicas
from millstream_broker.runtime.stats import Stats
from millstream_broker.security.audit.trail import AuditTrail
from millstream_kafka.protocol import heartbeat, list_groups
from millstream_kafka.protocol.heartbeat import HeartbeatRequest
from millstream_kafka.protocol.list_groups import ListGroupsRequest, ListGroupsResponse


class Elsewhere:
    """No part of a broker."""


class Given:
    """A broker whose parts are the names of the attributes."""

    def __getattr__(self, name: str) -> str:
        return name


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[int, handlers.Registration]:
    registered: dict[int, handlers.Registration] = {}
    monkeypatch.setattr(handlers, "REGISTERED", registered)
    monkeypatch.setattr("millstream_broker.api.parts.REGISTERED", registered)
    return registered


def test_a_handler_gets_its_parts_by_type(registered: dict[int, handlers.Registration]) -> None:
    @handler(list_groups.API)
    def handle(
        anything: Stats, of_it: GroupDriver, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        assert (anything, of_it) == ("stats", "groups")
        return ListGroupsResponse(throttle_time_ms=7)

    parts: Any = Given()
    bound: Any = bind(parts, AuditTrail())[list_groups.API.key]
    assert bound.handle(None, None) == ListGroupsResponse(throttle_time_ms=7)


def test_a_part_that_no_broker_has_is_refused(registered: dict[int, handlers.Registration]) -> None:
    @handler(list_groups.API)
    def handle(
        elsewhere: Elsewhere, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        raise NotImplementedError

    parts: Any = Given()
    with pytest.raises(TypeError, match=r"test_handlers takes .*Elsewhere.*, which is no part of the broker"):
        bind(parts, AuditTrail())


def of_another_api(context: RequestContext, request: HeartbeatRequest) -> None: ...


def without_context(request: ListGroupsRequest, stats: Stats) -> None: ...


@pytest.mark.parametrize("function", [of_another_api, without_context])
def test_other_parameters_are_refused(
    registered: dict[int, handlers.Registration], function: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match="expected RequestContext and ListGroupsRequest"):
        handler(list_groups.API)(function)
    assert registered == {}


def test_a_run_takes_the_parts_of_one_request(registered: dict[int, handlers.Registration]) -> None:
    def run(replicas: Replicas, context: RequestContext, request: HeartbeatRequest, run: Any) -> None: ...

    def handle(stats: Stats, context: RequestContext, request: HeartbeatRequest) -> None: ...

    with pytest.raises(TypeError, match="a run takes other parts than one request"):
        handler(heartbeat.API, run=run)(handle)


def test_each_part_has_a_type_of_its_own() -> None:
    types = list(get_type_hints(Parts).values())
    assert len(set(types)) == len(types)


def test_each_part_is_taken_by_a_handler() -> None:
    api.load()
    taken = {kind for registration in REGISTERED.values() for kind in registration.needs}
    assert taken == set(get_type_hints(Parts).values())
