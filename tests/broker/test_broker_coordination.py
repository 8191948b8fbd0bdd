"""Embedded coordination: what is written is there after a restart, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest

from millstream_broker.config import Listener
from millstream_broker.coordination import (
    BrokerRecord,
    ClusterState,
    Conflict,
    CoordinationError,
    PartitionRecord,
    TopicRecord,
    embedded,
)
from millstream_broker.coordination.embedded import FILE_NAME, EmbeddedCoordination
from millstream_broker.log.files import write_atomically
from millstream_broker.producer_ids import ProducerIds

BROKER = BrokerRecord(1, (Listener("PLAINTEXT", "localhost", 9092),))


def topic(name: str, partitions: int = 1) -> TopicRecord:
    return TopicRecord(
        name, uuid.uuid4(), (PartitionRecord((1,), 1, 0, (1,)),) * partitions, {"retention.ms": "5"}
    )


async def joined(folder: Path) -> tuple[EmbeddedCoordination, ClusterState]:
    coordination = EmbeddedCoordination(folder)
    return coordination, await coordination.join(BROKER)


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    first, before = await joined(tmp_path)
    kept, deleted = topic("kept", 2), topic("deleted")
    await first.create_topic(kept)
    await first.create_topic(deleted)
    await first.delete_topic("deleted")
    await first.add_partitions("kept", (PartitionRecord((1,), 1, 0, (1,)),))
    await first.set_topic_config("kept", {"retention.ms": "6"})
    await first.set_broker_config(None, {"log.retention.ms": "7"})
    await first.set_broker_config(1, {"log.retention.ms": "8"})
    _, after = await joined(tmp_path)
    assert (after.cluster_id, after.controller_id) == (before.cluster_id, 1)
    assert len(after.cluster_id) == 22
    assert after.brokers[1].epoch == before.brokers[1].epoch + 1
    assert after.topics.keys() == {"kept"}
    assert after.topics["kept"].topic_id == kept.topic_id
    assert after.topics["kept"].config == {"retention.ms": "6"}
    assert [one.leader_epoch for one in after.topics["kept"].partitions] == [1, 1, 1]
    assert after.deleting == {deleted.topic_id: "deleted"}
    assert after.broker_configs == {None: {"log.retention.ms": "7"}, 1: {"log.retention.ms": "8"}}


async def test_changes_are_told_after_they_are_durable(tmp_path: Path) -> None:
    coordination, _ = await joined(tmp_path)
    told: list[bool] = []
    coordination.changes = lambda state: told.append(
        set(state.topics) == set(json.loads((tmp_path / FILE_NAME).read_text())["topics"])
    )
    await asyncio.gather(*(coordination.create_topic(topic(f"t{number}")) for number in range(10)))
    assert told == [True]  # all in one write


async def test_a_partition_is_written_on_condition_of_its_version(tmp_path: Path) -> None:
    coordination, _ = await joined(tmp_path)
    await coordination.create_topic(topic("t"))
    read = coordination.state().topics["t"].partitions[0]
    written = await coordination.write_partition("t", 0, read)
    assert written.version == read.version + 1
    with pytest.raises(Conflict, match="t-0 was changed meanwhile"):
        await coordination.write_partition("t", 0, read)


async def test_what_is_not_there_or_there_already_is_a_conflict(tmp_path: Path) -> None:
    coordination, _ = await joined(tmp_path)
    await coordination.create_topic(topic("t"))
    with pytest.raises(Conflict, match="there is a topic t"):
        await coordination.create_topic(topic("t"))
    for change in (coordination.delete_topic("u"), coordination.set_topic_config("u", {})):
        with pytest.raises(Conflict, match="there is no topic u"):
            await change


async def test_a_change_that_cannot_be_written_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination, _ = await joined(tmp_path)
    before = coordination.state()
    (tmp_path / "coordination.json.tmp").mkdir()
    with pytest.raises(CoordinationError, match=r"coordination\.json: cannot be written: Is a directory"):
        await coordination.create_topic(topic("t"))
    assert coordination.state() == before
    (tmp_path / "coordination.json.tmp").rmdir()
    await coordination.create_topic(topic("t"))


async def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        coordination, _ = await joined(tmp_path)
        ids = ProducerIds(coordination)
        given += await asyncio.gather(*(ids.next() for _ in range(1500)))
    assert len(set(given)) == 4500


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "\x00"])
async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CoordinationError, match=r"coordination\.json: cannot be read"):
        EmbeddedCoordination(tmp_path)


async def test_a_file_of_the_future_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"version": 2}')
    with pytest.raises(CoordinationError, match="version 2 is not known: expected 1"):
        EmbeddedCoordination(tmp_path)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were written, in their order."""
    written: list[str] = []

    def write(path: str, data: bytes) -> None:
        written.append(path)
        write_atomically(path, data)

    monkeypatch.setattr(embedded, "write_atomically", write)
    return written


async def test_changes_that_wait_are_written_at_once(tmp_path: Path, writes: list[str]) -> None:
    """One write for what comes together, each with its own outcome; what comes meanwhile waits for the next."""
    coordination, _ = await joined(tmp_path)
    await coordination.create_topic(topic("old"))
    del writes[:]
    outcomes = await asyncio.gather(
        *(coordination.create_topic(topic(f"t{number % 50}")) for number in range(100)),
        coordination.delete_topic("old"),
        coordination.create_topic(topic("old")),
        coordination.delete_topic("none"),
        coordination.set_broker_config(1, {"log.retention.ms": "8"}),
        *(coordination.allocate_producer_ids() for _ in range(3)),
        return_exceptions=True,
    )
    assert len(writes) == 1
    assert [outcome is None for outcome in outcomes[:104]] == [
        *([True] * 50),
        *([False] * 50),
        True,
        True,
        False,
        True,
    ]
    assert all(isinstance(outcome, Conflict) for outcome in (*outcomes[50:100], outcomes[102]))
    ids = [one for block in outcomes[104:] for one in block]  # type: ignore[union-attr]
    assert len(set(ids)) == len(ids) == 3000
    _, after = await joined(tmp_path)
    assert after.topics.keys() == {"old", *(f"t{number}" for number in range(50))}
    assert len(after.deleting) == 1


async def test_of_a_write_that_fails_nothing_has_happened(tmp_path: Path, writes: list[str]) -> None:
    coordination, _ = await joined(tmp_path)
    await coordination.create_topic(topic("kept"))
    (tmp_path / f"{FILE_NAME}.tmp").mkdir()
    outcomes = await asyncio.gather(
        coordination.create_topic(topic("t")),
        coordination.delete_topic("kept"),
        coordination.delete_topic("none"),
        return_exceptions=True,
    )
    assert ["cannot be written" in str(outcome) for outcome in outcomes] == [True, True, False]
    assert coordination.state().topics.keys() == {"kept"}
    (tmp_path / f"{FILE_NAME}.tmp").rmdir()
    await coordination.create_topic(topic("t"))
    assert (await joined(tmp_path))[1].topics.keys() == {"kept", "t"}


async def test_what_is_handed_out_never_changes(tmp_path: Path) -> None:
    coordination, before = await joined(tmp_path)
    await coordination.create_topic(topic("t"))
    after = coordination.state()
    await coordination.delete_topic("t")
    assert (before.topics.keys(), after.topics.keys(), dict(after.deleting)) == (set(), {"t"}, {})
    assert after.broker_configs is coordination.state().broker_configs


async def test_a_change_that_no_file_can_hold_keeps_nobody_waiting(tmp_path: Path) -> None:
    coordination, _ = await joined(tmp_path)
    odd = topic("odd")
    async with asyncio.timeout(20):
        with pytest.raises(CoordinationError, match="cannot be written"):
            await coordination.set_broker_config(None, {"retention.ms": object()})  # type: ignore[dict-item]
        await coordination.create_topic(odd)
    assert list(coordination.state().topics) == [odd.name]
