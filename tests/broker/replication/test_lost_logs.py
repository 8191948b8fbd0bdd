"""Which partitions have a log to open, or had one."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream_broker.replication.lost_logs import LostLogs
from millstream_broker.replication.replicas import Replicas
from millstream_harness.replica import US, led_by, state, topic

HOMES = {Path("/one")}


@pytest.mark.parametrize(
    "why", ["no topic id", "its topic id", "a stray", "lost", "of another topic", "nothing"]
)
def test_without_a_leader_no_empty_log_is_created(why: str) -> None:
    record = topic("t", led_by(US))
    names = {"no topic id": None, "of another topic": uuid.uuid4()}
    named = SimpleNamespace(topic_id=names[why]) if why in names else None

    def strays(topic_id: uuid.UUID, index: int, homes: set[Path]) -> list[str]:
        assert (topic_id, index, homes) == (record.topic_id, 0, HOMES)
        return ["t-0.stray"] if why == "a stray" else []

    logs: Any = SimpleNamespace(
        inventory=SimpleNamespace(missing={}),
        dirs=[SimpleNamespace(path=path) for path in HOMES],
        get=lambda name, index: named,
        log_of=lambda topic_id, name, index: object() if why == "its topic id" else None,
        strays=SimpleNamespace(of=strays),
    )
    lost = LostLogs(Replicas(US, state(record)), logs)
    if why == "lost":
        lost.add(record.topic_id, 0)
    assert lost.has_log(record, 0) == (why not in ("of another topic", "nothing"))
