"""Topics that disappear between two states a broker follows: ids decide, because a name may stay."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.manager import LogManager
from millstream_broker.replication.manager import _deleted
from millstream_harness.replica import led_by, replicating, state, topic


def test_which_topics_are_gone() -> None:
    kept, deleted, made_anew = (topic(name) for name in ("kept", "deleted", "made-anew"))
    grown = replace(kept, partitions=(led_by(1), led_by(1)))
    before = state(kept, deleted, made_anew)
    after = state(grown, topic("made-anew"), topic("new"))
    assert _deleted(before, after) == {one.name: one.topic_id for one in (deleted, made_anew)}
    assert _deleted(state(), after) == {}, "what a broker knows first tells of no deletion"


async def test_a_deletion_that_fails_does_not_keep_a_broker_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: LogManager) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LogManager, "remove_deleted", fail)
    async with replicating(tmp_path) as world:
        await world.told(state(topic()))
        await world.told(state())
    assert "deletions failed" in caplog.text
