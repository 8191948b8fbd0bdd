"""`helm test` against a real broker."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import NewTopic, Refusal
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.tools import roundtrip

pytestmark = pytest.mark.process


def run(monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> None:
    monkeypatch.setattr(sys, "argv", ["roundtrip", bootstrap])
    roundtrip.main()


def test_record_returns_and_its_topic_is_deleted(
    empty_broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, empty_broker.bootstrap)
    assert f"a record went through {empty_broker.bootstrap} in " in capsys.readouterr().out
    with closing(KafkaAdmin(empty_broker.bootstrap)) as admin:
        assert admin.topic_names() == []


def test_change_of_controller_is_waited_for(
    empty_broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As right after the start of a cluster: the broker that is asked is not the controller any more."""
    create, requests = AdminClient.create_topics, 0

    async def refuse_once(admin: AdminClient, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        nonlocal requests
        requests += 1
        if requests == 1:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return await create(admin, topics)

    monkeypatch.setattr(AdminClient, "create_topics", refuse_once)
    run(monkeypatch, empty_broker.bootstrap)
    assert "a record went through" in capsys.readouterr().out
    assert requests == 2


@pytest.mark.parametrize(
    ("bootstrap", "problem"), [("127.0.0.1:1", "127.0.0.1:1: Connect"), ("east", "'east' is not HOST:PORT")]
)
def test_address_without_a_broker_is_reported(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, problem: str
) -> None:
    monkeypatch.setattr(roundtrip, "START_TIMEOUT_S", 0.0)
    with pytest.raises(SystemExit, match=problem):
        run(monkeypatch, bootstrap)
