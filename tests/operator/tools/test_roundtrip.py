"""`helm test` against a real broker."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest

from millstream_harness.in_process_broker import InProcessBroker
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


@pytest.mark.parametrize(
    ("bootstrap", "problem"), [("127.0.0.1:1", "127.0.0.1:1: Connect"), ("east", "'east' is not HOST:PORT")]
)
def test_address_without_a_broker_is_reported(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, problem: str
) -> None:
    monkeypatch.setattr(roundtrip, "START_TIMEOUT_S", 0.0)
    with pytest.raises(SystemExit, match=problem):
        run(monkeypatch, bootstrap)
