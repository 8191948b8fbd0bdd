"""Recovery times, the story of a record, and logs on disks, from hand-made histories."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream_faults.history import (
    TOMBSTONE,
    Acknowledged,
    Event,
    Led,
    Read,
    Struck,
    TopicCreated,
    TopicDeleted,
    Trouble,
)
from millstream_faults.hostile import REFUSED, changed, renumbered
from millstream_faults.probe import Probe
from millstream_faults.replicas import BadLogError, batches, copies, entries
from millstream_faults.report import recoveries, summary, timeline
from millstream_faults.story import tell
from millstream_faults.violations import Batch, Entry, Violation
from millstream_harness.broker import BrokerProcess
from millstream_harness.ledger import Load
from millstream_harness.scenario import unique
from millstream_harness.wire import Wire, record
from millstream_kafka.batch import Record, build_batch, crc_matches, read_header, read_records
from millstream_kafka.protocol.errors import ApiError

pytestmark = pytest.mark.process

EVENTS: list[Event] = [
    Acknowledged(101.0, "w", 0, 0, 0, 100.9),
    Acknowledged(101.0, "w", 1, 0, 0, 100.9),
    Struck(102.0, "lab", "kill leader: broker 1", 104.0),
    Acknowledged(103.0, "w", 0, 1, 1, 101.9),  # sent before the fault: no proof
    Acknowledged(103.5, "w", 0, 2, 2, 102.1),
    Acknowledged(106.0, "w", 1, 1, 1, 102.1),
    Acknowledged(106.1, "w", 1, 2, 2, 105.9),
    Led(102.5, "broker 2", 0, 2, 7, [2, 3]),
    Read(103.6, "reader#1", 0, 2, "w", 2),
    Struck(107.0, "lab", "full disk: broker 2", 108.0),
]


def test_recovery_is_when_the_last_partition_acknowledges_what_was_sent_after() -> None:
    killed, full = recoveries(EVENTS)
    assert (killed.kind, killed.seconds) == ("kill leader", 4.0)
    assert (full.kind, full.seconds) == ("full disk", None)


def test_summary_and_timeline(tmp_path: Path) -> None:
    text = summary(EVENTS, [Violation("lost", "w 9 is nowhere")], {"disks": "no root"}, 10.0)
    for said in (
        "2 faults in 10 s; 6 records acknowledged, 1 read",
        "4.00    4.00",
        "never",
        "left out: disks: no root",
        "violations: 1\n  lost: 1",
    ):
        assert said in text
    timeline(EVENTS, 100.0, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_story_of_a_record(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("INFO faults-0: leads from epoch 7\nINFO faults-1: something else\n")
    violation = Violation("lost", "w 2 was acknowledged at 2, is nowhere", 0, 2, "w", 2)
    story = tell(violation, EVENTS, {2: log}, 100.0)
    assert story.splitlines() == [
        "lost: partition 0: w 2 was acknowledged at 2, is nowhere",
        "      2.000  fault: kill leader: broker 1, until 4.00",
        "      2.500  partition 0: leader 2, epoch 7, ISR [2, 3] (says broker 2)",
        "      3.500  w 2 acknowledged at 0:2, sent at 2.100",
        "      3.600  reader#1 read 0:2: w 2",
        "      7.000  fault: full disk: broker 2, until 8.00",
        "  broker 2: INFO faults-0: leads from epoch 7",
    ]
    trouble = Trouble(105.0, "reader", "truncated")
    assert "5.000" in tell(Violation("trouble", "reader: truncated"), [trouble], {}, 100.0)


def test_the_story_names_the_topic_that_it_means(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("INFO anew-0: leads from epoch 0\n")
    events: list[Event] = [
        TopicCreated(101.0, "a", "old", "anew", 100.5, False),
        Acknowledged(102.0, "w", 0, 2, 7, 101.9, "old"),
        TopicDeleted(104.0, "a", "old", 103.0),
        TopicCreated(104.0, "a", "new", "anew", 103.5, False),
        Acknowledged(105.0, "w", 0, 9, 7, 104.9, "new"),
        Read(106.0, "reader#1", 0, 0, "w", 2, "new", 105.9),
    ]
    violation = Violation("resurrected", "w 2 is back", 0, 0, "w", 2, None, "new")
    assert tell(violation, events, {2: log}, 100.0).splitlines() == [
        "resurrected: anew (new) partition 0: w 2 is back",
        "      1.000  anew is old, requested at 0.500",
        "      2.000  w 2 acknowledged at old 0:7, sent at 1.900",
        "      3.000  anew old: deletion requested, the name was free at 4.000",
        "      4.000  anew is new, requested at 3.500",
        "      6.000  reader#1 read new 0:0: w 2",
        "  broker 2: INFO anew-0: leads from epoch 0",
    ]


def test_logs_are_read_as_they_are_on_the_disk(tmp_path: Path) -> None:
    topic = unique("disk")
    with BrokerProcess(tmp_path, {"log.segment.bytes": "2000"}) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create(topic)
            wire.produce(topic, [record("w:0:0:", b"k"), record("w:0:1:xx")])
            wire.produce(topic, [Record(b"k", None, 1, ((TOMBSTONE, b"w:0:2:"),)), record("what?")])
        with Load(broker.bootstrap, topic, name="more", pause_s=0.01) as load:
            load.until(50)
        identity = asyncio.run(identity_of(broker.bootstrap, topic))
        broker.stop()
    folder = broker.data / f"{topic}-0"
    found = entries(folder)
    assert found[:2] == [Entry(0, "w", 0, 0, "k"), Entry(1, "w", 0, 1)]
    assert found[2:4] == [Entry(2, "w", 0, 2, "k"), Entry(3, "?", -1, -1)]
    assert [entry.offset for entry in found] == list(range(4 + load.ledger.count))
    assert len(list(folder.glob("*.log"))) > 1
    ((place, copy),) = copies({1: broker.folder}, {topic: identity})[1].items()
    assert place == (identity, 0)
    assert [batch.base_offset for batch in copy.batches][:3] == [0, 2, 4]
    assert copy.batches == [batch for batch, _ in batches(folder)]
    assert isinstance(copy.batches[0], Batch)
    assert copy.start == 0
    with pytest.raises(BadLogError, match=f"belongs to {identity}, {topic} is another"):
        copies({1: broker.folder}, {topic: "another"})


async def identity_of(bootstrap: str, topic: str) -> str:
    async with Probe(bootstrap, "test") as probe:
        known = await probe.topic(topic)
        assert known is not None
        return known.id


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_the_hostile_client_sends_to_others_topics_is_refused(
    number: int, shared_broker: BrokerProcess
) -> None:
    topic = unique("hostile")
    with Wire(shared_broker.bootstrap) as wire:
        wire.create(topic)
        answer = wire.produce(topic, changed(build_batch([record("a"), record("b")]), REFUSED[number]))
        assert answer.error_code
        assert wire.end_offset(topic) == 0


def test_records_that_are_out_of_order() -> None:
    batch = renumbered([0, 1], 3000)
    assert crc_matches(batch)
    assert read_header(batch).record_count == 2
    assert [record.offset for record in read_records(batch)] == [0, 1]
    with pytest.raises(ApiError):
        list(read_records(renumbered([1, 0], 3000)))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data + b"\0" * 5, "5 bytes are left, which is no batch"),
        (lambda data: data[:-1], "no batch, or one that is torn"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "the CRC is wrong"),
    ],
)
def test_a_log_that_is_damaged(
    damage: object, said: str, tmp_path: Path, shared_broker: BrokerProcess
) -> None:
    topic = unique("damaged")
    with Wire(shared_broker.bootstrap) as wire:
        wire.create(topic)
        wire.produce(topic, [record("a")])
    data = (shared_broker.data / f"{topic}-0" / "00000000000000000000.log").read_bytes()
    assert callable(damage)
    (tmp_path / "0.log").write_bytes(damage(data))
    with pytest.raises(BadLogError, match=said):
        list(batches(tmp_path))
