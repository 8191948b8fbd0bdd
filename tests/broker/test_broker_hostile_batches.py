"""Batches made by hand by one client harm neither other clients nor the partition they are written to."""

from __future__ import annotations

import struct
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from crc32c import crc32c

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually, log_bytes
from millstream_harness.wire import Wire, record
from millstream_kafka.batch import (
    HEADER,
    HEADER_SIZE,
    Record,
    build_batch,
    iter_batches,
    read_header,
    read_records,
)
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import create_topics, incremental_alter_configs, list_offsets
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
INT32_MAX = 2**31 - 1


@pytest.fixture
def broker(start_broker: StartBroker) -> InProcessBroker:
    return start_broker({"log.cleaner.backoff.ms": "20", "log.cleaner.min.cleanable.ratio": "0.01"})


@pytest.fixture
def wire(broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as wire:
        yield wire


def create(wire: Wire, topic: str, partitions: int = 1, **config: str) -> None:
    configs = [
        create_topics.CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()
    ]
    wanted = create_topics.CreatableTopic(topic, partitions, 1, [], configs)
    answer = wire.call(create_topics.API, 7, create_topics.CreateTopicsRequest([wanted], 60_000, False))
    assert answer.topics[0].error_code == 0


def alter(wire: Wire, name: str, kind: int = 2, **config: str | None) -> None:
    """Set keys of a topic, or of a broker (``kind`` 4); None removes one."""
    configs = [
        incremental_alter_configs.AlterableConfig(key.replace("_", "."), int(value is None), value)
        for key, value in config.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    answer = wire.call(
        incremental_alter_configs.API,
        1,
        incremental_alter_configs.IncrementalAlterConfigsRequest([resource]),
    )
    assert answer.responses[0].error_code == 0


def resealed(batch: bytes | bytearray, **changes: int) -> bytes:
    data = bytearray(batch)
    HEADER.pack_into(data, 0, *read_header(batch)._replace(**changes))
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


def descending(size: int) -> bytes:
    """Two records whose offset deltas are 1 and 0, of ``size`` bytes each."""
    now = int(time.time() * 1000)
    second, first = (
        build_batch([Record(b"k", bytes(size), now, (), offset)], last_offset=1) for offset in (0, 1)
    )
    batch = first + second[HEADER_SIZE:]
    return resealed(batch, batch_length=len(batch) - 12, record_count=2)


def stored(wire: Wire, topic: str) -> dict[bytes | None, bytes | None]:
    """The last value of each key."""
    found: dict[bytes | None, bytes | None] = {}
    offset, end = 0, wire.end_offset(topic)
    while offset < end:
        data = wire.fetch(topic, offset).records
        if not data:
            break
        for position, header in iter_batches(data):
            for one in read_records(data[position : position + header.size]):
                found[one.key] = one.value
            offset = header.next_offset
    return found


def uncleanable(broker: InProcessBroker) -> float:
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("millstream_uncleanable_partitions "):
                return float(line.split()[1])
    raise AssertionError("no such metric")


@pytest.mark.parametrize("size", [10, 5000], ids=["at once", "in the thread"])
@pytest.mark.parametrize(
    "config",
    [
        {"compression_type": "gzip"},
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": "9000000000000"},
    ],
    ids=["recompressed", "compacted", "bounded timestamps"],
)
def test_a_bad_batch_fails_alone(
    broker: InProcessBroker, wire: Wire, config: dict[str, str], size: int
) -> None:
    create(wire, "attacked", **config)
    create(wire, "other", **config)
    for _ in range(2):
        answer = wire.produce("attacked", descending(size))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert "offset" in str(answer.error_message)
    for topic in ("attacked", "other"):
        for offset in range(2):
            good = wire.produce(topic, [record(bytes(size), key=b"k")])
            assert (good.error_code, good.base_offset) == (0, offset)
    assert broker.stop() == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_limit_of_decompressed_records(wire: Wire, codec: Compression) -> None:
    """Each batch is sent three times: the second and third take the shortcut."""
    create(wire, "limited", max_decompressed_message_bytes="5000")
    create(wire, "unlimited")
    small, large = (
        build_batch([record(b"v"), record(bytes(size))], compression=codec) for size in (4000, 100_000)
    )
    for _ in range(3):
        assert wire.produce("unlimited", large).error_code == 0
        assert wire.produce("limited", small).error_code == 0
    for _ in range(3):
        answer = wire.produce("limited", large)
        if codec is Compression.NONE:
            assert answer.error_code == 0
        else:
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert "exceeds the configured maximum record size of 5000." in str(answer.error_message)
    assert wire.produce("limited", small).base_offset == (12 if codec is Compression.NONE else 6)


def test_limit_of_decompressed_records_is_changed_while_the_broker_runs(wire: Wire) -> None:
    """The broker's own, too; look-ups of stored records then fail, and lookups of others do not."""
    create(wire, "topic")
    large = build_batch([record(bytes(100_000), timestamp=1000)], compression=Compression.ZSTD)
    assert wire.produce("topic", large).error_code == 0
    for kind, name in ((2, "topic"), (4, "")):
        alter(wire, name, kind=kind, max_decompressed_message_bytes="5000")
        assert wire.produce("topic", large).error_code == ErrorCode.INVALID_RECORD
        assert found_at(wire, "topic", 1000) == (ErrorCode.INVALID_RECORD, -1)
        assert found_at(wire, "topic", 2**62) == (0, -1)
        alter(wire, name, kind=kind, max_decompressed_message_bytes="200000")
        assert wire.produce("topic", large).error_code == 0
        assert found_at(wire, "topic", 1000) == (0, 0)
        alter(wire, name, kind=kind, max_decompressed_message_bytes=None)


def found_at(wire: Wire, topic: str, timestamp: int) -> tuple[int, int]:
    """The error and the offset that a look-up by time returns."""
    asked = list_offsets.ListOffsetsTopic(topic, [list_offsets.ListOffsetsPartition(0, -1, timestamp)])
    answer = wire.call(list_offsets.API, 7, list_offsets.ListOffsetsRequest(-1, 0, [asked]))
    (found,) = answer.topics[0].partitions
    return found.error_code, found.offset


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_cannot_claim_more_records_than_it_has(wire: Wire, codec: Compression) -> None:
    create(wire, "claimed")
    batch = build_batch([record("v")], compression=codec)
    assert wire.produce("claimed", batch).base_offset == 0
    for _ in range(3):  # the second and third take the shortcut
        answer = wire.produce(
            "claimed", resealed(batch, record_count=INT32_MAX, last_offset_delta=INT32_MAX - 1)
        )
        assert answer.error_code == ErrorCode.INVALID_RECORD
    assert wire.end_offset("claimed") == 1
    many = build_batch([Record(None, None, 1)] * 20_000, compression=codec)
    assert wire.produce("claimed", many).base_offset == 1
    assert wire.end_offset("claimed") == 20_001


def test_a_log_that_cannot_be_compacted_leaves_the_others_their_turn(
    broker: InProcessBroker, wire: Wire
) -> None:
    """One log has records that cannot be read, another keeps its tombstones for ever."""
    create(wire, "bad", segment_bytes="2000")
    for _ in range(20):
        assert wire.produce("bad", descending(100)).error_code == 0  # such topics' records are not read
    alter(wire, "bad", cleanup_policy="compact")
    eventually(lambda: uncleanable(broker), lambda count: count == 1, "the bad log is reported")
    create(
        wire, "for-ever", cleanup_policy="compact", segment_bytes="2000", delete_retention_ms=str(2**63 - 1)
    )
    create(wire, "good", cleanup_policy="compact", segment_bytes="2000")
    for topic in ("for-ever", "good"):
        assert wire.produce(topic, [Record(b"deleted", None, 1)]).error_code == 0
        for number in range(60):
            value = b"%d " % number + b"x" * 100
            assert wire.produce(topic, [record(value, key=b"k%d" % (number % 3))]).error_code == 0
    for topic in ("for-ever", "good"):

        def size(topic: str = topic) -> float:
            return log_bytes(broker.data / f"{topic}-0")

        eventually(size, lambda size: size < 5000, f"{topic} is compacted")
        assert stored(wire, topic) == {
            **{b"k%d" % (number % 3): b"%d " % number + b"x" * 100 for number in range(57, 60)},
            b"deleted": None,
        }
    assert uncleanable(broker) == 1
    assert "bad-0 is no longer compacted: batch at offset 0" in broker.said()
    assert broker.stop() == 0
    broker.start()
    eventually(lambda: uncleanable(broker), lambda count: count == 1, "the bad log is reported again")


def test_it_stops_in_order_while_it_makes_thousands_of_partitions(broker: InProcessBroker) -> None:
    with Wire(broker.bootstrap) as wire:
        wanted = create_topics.CreatableTopic("many", 3000, 1, [], [])
        wire.send(create_topics.API, 7, create_topics.CreateTopicsRequest([wanted], 60_000, False))
        eventually(lambda: len(list(broker.data.glob("many-*"))), lambda count: count > 50, "it has begun")
        assert broker.stop() == 0
    assert "Traceback" not in broker.said()
    assert (broker.data / ".kafka_cleanshutdown").exists()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        eventually(
            lambda: wire.produce("many", [record("v")], partition=2999).error_code,
            lambda code: code == 0,
            "the last partition is led; a busy broker serves before it leads all of them",
        )


def test_compaction_goes_on_while_partitions_are_made(broker: InProcessBroker, wire: Wire) -> None:
    create(wire, "latest", cleanup_policy="compact", segment_bytes="2000")
    for round_number in range(3):
        create(wire, f"many-{round_number}", 800, cleanup_policy="compact")
        for number in range(60):
            assert wire.produce("latest", [record(b"x" * 100, key=b"k%d" % (number % 3))]).error_code == 0
        eventually(
            lambda: log_bytes(broker.data / "latest-0"),
            lambda size: size < 5000,
            "it is compacted",
        )
    assert "Traceback" not in broker.said()
