"""The same batches sent to Millstream and to Apache Kafka: the same refusals, and the same logs after compaction."""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from crc32c import crc32c

from millstream_harness.broker import BrokerProcess
from millstream_harness.java import run_kafka_tool
from millstream_harness.kafka import KafkaProcess
from millstream_harness.wire import Wire, produce_request
from millstream_kafka.batch import (
    CONTROL,
    CRC_OFFSET,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    build_batch,
    iter_batches,
    read_header,
    read_records,
)
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import create_topics, incremental_alter_configs, produce
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

NOW = int(time.time() * 1000)
HOUR = 3_600_000
DAY = 24 * HOUR  # further ahead than a log accepts, however long the tests before these take
CONFIG = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "1100000",  # the least that Kafka takes is 1 MiB
    "log.flush.offset.checkpoint.interval.ms": "100",
}
PATIENCE_S = 60.0


@dataclass
class Both:
    ours: BrokerProcess
    kafka: KafkaProcess
    wires: tuple[Wire, Wire]

    def create(self, topic: str, config: Mapping[str, str]) -> None:
        configs = [create_topics.CreatableTopicConfig(*item) for item in config.items()]
        request = create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(topic, 1, 1, [], configs)], 10_000, False
        )
        for wire in self.wires:
            assert wire.call(create_topics.API, 7, request).topics[0].error_code == 0

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        api = incremental_alter_configs
        configs = [api.AlterableConfig(name, 0, value) for name, value in config.items()]
        request = api.IncrementalAlterConfigsRequest([api.AlterConfigsResource(2, topic, configs)], False)
        for wire in self.wires:
            assert wire.call(api.API, 1, request).responses[0].error_code == 0

    def produce(self, topic: str, batch: bytes, version: int = 9) -> list[produce.PartitionProduceResponse]:
        """Millstream's response and Kafka's."""
        return [_produce(wire, topic, batch, version) for wire in self.wires]


def _produce(wire: Wire, topic: str, batch: bytes, version: int) -> produce.PartitionProduceResponse:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        wire.send(produce.API, version, produce_request(topic, batch))
        answer: produce.PartitionProduceResponse = wire.receive().responses[0].partition_responses[0]
        # Kafka reports a topic as created before its leader knows it.
        if answer.error_code not in (3, 6) or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("beside")
    with (
        BrokerProcess(folder / "ours", CONFIG) as ours,
        KafkaProcess(folder / "kafka", CONFIG) as kafka,
        Wire(ours.bootstrap) as first,
        Wire(kafka.bootstrap) as second,
    ):
        yield Both(ours, kafka, (first, second))


# -- refusals ---------------------------------------------------------------------------------------------------


def record(timestamp: int = NOW, *, key: bytes | None = b"k", value: bytes = b"v") -> Record:
    return Record(key, value, timestamp)


def resealed(batch: bytes, **changes: int) -> bytes:
    """The batch with changed header fields and a correct CRC."""
    data = bytearray(batch)
    HEADER.pack_into(data, 0, *read_header(batch)._replace(**changes))
    struct.pack_into(">I", data, CRC_OFFSET, crc32c(data[CRC_START:]))
    return bytes(data)


def of_body(body: bytes, count: int = 1, codec: Compression = Compression.NONE) -> bytes:
    """A batch with arbitrary bytes as records."""
    return resealed(
        GOOD[:HEADER_SIZE] + body,
        batch_length=HEADER_SIZE - 12 + len(body),
        attributes=codec,
        record_count=count,
        last_offset_delta=count - 1,
    )


def old_format(magic: int) -> bytes:
    message = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"")
    message += struct.pack(">i1si1s", 1, b"k", 1, b"v")
    return struct.pack(">qiI", 0, len(message) + 4, zlib.crc32(message)) + message


GOOD = build_batch([record()] * 3)
COMPACT = {"cleanup.policy": "compact"}
SMALL = {"max.message.bytes": "1000"}
PAST = {"message.timestamp.before.max.ms": str(HOUR)}

CASES: dict[str, tuple[dict[str, str], bytes]] = {
    "good": ({}, GOOD),
    "base offset": ({}, resealed(GOOD, base_offset=5)),
    "wrong CRC": ({}, GOOD[:17] + b"\0\0\0\1" + GOOD[21:]),
    "no bytes": ({}, b""),
    "a part of a header": ({}, GOOD[:30]),
    "a part of a batch": ({}, GOOD[:-3]),
    "a length that cannot be": ({}, resealed(GOOD, batch_length=10)),
    "no records": ({}, resealed(GOOD, record_count=0)),
    "fewer records than offsets": ({}, resealed(GOOD, record_count=2)),
    "no offsets": ({}, resealed(GOOD, last_offset_delta=-1)),
    "control batch": ({}, resealed(GOOD, attributes=CONTROL)),
    "transactional": (
        {},
        resealed(GOOD, attributes=TRANSACTIONAL, producer_id=4, producer_epoch=0, base_sequence=0),
    ),
    "format 3": ({}, resealed(GOOD, magic=3)),
    "format 1": ({}, old_format(1)),
    "format 0": ({}, old_format(0)),
    "no sequence": ({}, resealed(GOOD, producer_id=5, producer_epoch=0)),
    "too large": (SMALL, build_batch([record(value=bytes(2000))])),
    "too large as stored": (
        {**SMALL, "compression.type": "uncompressed"},
        build_batch([record(value=bytes(5000))], compression=Compression.ZSTD),
    ),
    "small only as stored": ({**SMALL, "compression.type": "zstd"}, build_batch([record(value=bytes(5000))])),
    "larger than a segment": (
        {"segment.bytes": str(1 << 20), "max.message.bytes": "2000000"},
        build_batch([record(value=bytes(1_100_000))]),
    ),
    "the future": ({}, build_batch([record(), record(NOW + DAY), record(), record(NOW + DAY + HOUR)])),
    "the past": (PAST, build_batch([record(), record(NOW - 2 * HOUR), record(), record(NOW - 3 * HOUR)])),
    "the past, compressed": (
        PAST,
        build_batch([record(), record(NOW - 2 * HOUR)], compression=Compression.LZ4),
    ),
    "no timestamp": (PAST, build_batch([record(-1), record()])),
    "the future, but the broker stamps": (
        {"message.timestamp.type": "LogAppendTime"},
        build_batch([record(NOW + DAY)]),
    ),
    "stamped already": (
        {"message.timestamp.type": "LogAppendTime"},
        resealed(GOOD, attributes=LOG_APPEND_TIME),
    ),
    "no key": (COMPACT, build_batch([record(), *[record(key=None)] * 4, record()])),
    "no key, and the future": (COMPACT, build_batch([record(key=None), record(NOW + DAY)])),
    "records that are none": (COMPACT, of_body(b"\x7f\x01\x02")),
    "more records than said": (COMPACT, of_body(GOOD[HEADER_SIZE:], 1)),
    "fewer records than said": (COMPACT, of_body(GOOD[HEADER_SIZE:], 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_kafka_refuses_the_same(both: Both, case: str) -> None:
    config, batch = CASES[case]
    topic = case.replace(" ", "-").replace(",", "")
    both.create(topic, config)
    ours, kafka = both.produce(topic, batch)
    assert (ours.error_code, ours.base_offset) == (kafka.error_code, kafka.base_offset)
    assert (ours.log_append_time_ms == -1) == (kafka.log_append_time_ms == -1)

    def named(answer: produce.PartitionProduceResponse) -> list[tuple[int, str]]:
        return [(one.batch_index, _timeless(one.batch_index_error_message)) for one in answer.record_errors]

    assert named(ours) == named(kafka)
    if kafka.record_errors:
        assert ours.error_message == kafka.error_message


def _timeless(message: str | None) -> str:
    """The message without bounds, which depend on the time, and without Kafka's description of the record."""
    text = (message or "").partition(" within [")[0]
    return text.rpartition("). ")[2]


@pytest.mark.parametrize("codec", [c for c in Compression if c is not Compression.NONE])
def test_what_cannot_be_decompressed_is_refused(both: Both, codec: Compression) -> None:
    """Kafka refuses it, too, but with UNKNOWN_SERVER_ERROR."""
    topic = f"garbage-{codec.name}"
    both.create(topic, {"compression.type": "uncompressed"})
    ours, kafka = both.produce(topic, of_body(b"garbage", codec=codec))
    assert (ours.error_code, kafka.error_code) == (
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_requests_are_refused(both: Both, version: int) -> None:
    """They are advertised (see `protocol.produce`) and cannot be decoded: both brokers close the connection."""
    body = struct.pack(">hhih4s", 0, version, 7, 4, b"wire") + struct.pack(">hii", 1, 1000, 1)
    body += struct.pack(">h3sii", 3, b"old", 1, 0) + struct.pack(">i", len(old_format(1))) + old_format(1)
    for process in (both.ours, both.kafka):
        with Wire(process.bootstrap) as wire:
            wire.socket.sendall(struct.pack(">i", len(body)) + body)
            assert wire.is_closed()


# -- idempotent producers ---------------------------------------------------------------------------------------

INT_MAX = 2**31 - 1


def sequence(epoch: int, first: int, count: int = 2, producer: int = 77) -> bytes:
    return build_batch([record()] * count, producer_id=producer, producer_epoch=epoch, base_sequence=first)


@pytest.mark.parametrize("seed", range(6))
def test_sequences_are_judged_alike(both: Both, seed: int) -> None:
    """Any order of valid batches, repetitions, gaps and epochs of two producers."""
    chance = random.Random(seed)
    topic = f"sequences-{seed}"
    both.create(topic, {})
    expected = dict.fromkeys((77, 78), 0 if seed % 2 else INT_MAX - 9)
    epochs = dict.fromkeys(expected, 0)
    sent: list[bytes] = []
    codes = set()
    for _ in range(120):
        producer, count = chance.choice((77, 78)), chance.randint(1, 4)
        match chance.randint(0, 9):
            case 0:
                wrong = expected[producer] + chance.choice((-3, -1, 1, 5)) & INT_MAX
                batch = sequence(epochs[producer], wrong, count, producer)
            case 1:
                batch = sequence(epochs[producer] + chance.choice((-1, 1)) & 0x7F, 0, count, producer)
            case 2 | 3 if sent:
                batch = sent[-min(len(sent), chance.randint(1, 12))]
            case _:
                batch = sequence(epochs[producer], expected[producer], count, producer)
        ours, kafka = both.produce(topic, batch)
        assert (ours.error_code, ours.base_offset) == (kafka.error_code, kafka.base_offset), read_header(
            batch
        )
        codes.add(ours.error_code)
        if not ours.error_code and batch not in sent:
            sent.append(batch)
            header = read_header(batch)
            epochs[header.producer_id] = header.producer_epoch
            expected[header.producer_id] = header.last_sequence + 1 & INT_MAX
    assert {ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER} <= codes


# -- compaction -------------------------------------------------------------------------------------------------


def stored(wire: Wire, topic: str) -> Iterator[tuple[BatchHeader, list[Record]]]:
    offset, end = 0, wire.end_offset(topic)
    while offset < end:
        data = wire.fetch(topic, offset).records
        assert data
        for position, header in iter_batches(data):
            yield header, list(read_records(data[position : position + header.size]))
            offset = header.next_offset


def comparable(header: BatchHeader) -> BatchHeader:
    """A log without the parts that depend on the clock, on the codec's implementation, and on the leader's epoch."""
    horizon = header.attributes & DELETE_HORIZON
    return header._replace(
        batch_length=0,
        crc=0,
        partition_leader_epoch=0,
        base_timestamp=0 if horizon else header.base_timestamp,
    )


def await_cleaned(process: BrokerProcess | KafkaProcess, topic: str, offset: int) -> None:
    """Wait until the cleaner checkpoint, which both brokers write in one format, has this offset for the topic."""
    path, deadline = Path(process.data) / "cleaner-offset-checkpoint", time.monotonic() + PATIENCE_S
    while not (path.exists() and f"{topic} 0 {offset}\n" in path.read_text()):
        assert time.monotonic() < deadline, process.said()[-3000:]
        time.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_compaction_leaves_the_same(both: Both, seed: int) -> None:
    chance = random.Random(seed)
    topic = f"compacted-{seed}"
    start = NOW - 10 * 60_000
    both.create(topic, {"cleanup.policy": "delete", "retention.ms": "-1", "segment.ms": "1000"})
    sequences = dict.fromkeys((5, 6, 7, 8), 0)
    keys = [b"k%d" % i for i in range(30)]

    def send(at: int, codec: Compression, names: list[bytes], producer: int) -> None:
        records = [
            Record(key, None if chance.random() < 0.2 else b"%d" % at * 5, start + at, (("h", b"x"),))
            for key in names
        ]
        known = {}
        if producer in sequences:
            known = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += len(records)
        answers = both.produce(topic, build_batch(records, compression=codec, **known))
        assert [answer.error_code for answer in answers] == [0, 0]

    def send_some(after: int) -> int:
        for number in range(60):
            # Producer 8 sends only at the start, and only records that others replace.
            producer = 8 if number < 3 and not after else chance.choice((-1, 5, 6, 7))
            codec, names = chance.choice(list(Compression)), chance.choices(keys, k=chance.randint(1, 6))
            send(after + number * 120, codec, names, producer)
        for key in keys:
            send(after + 8000, Compression.NONE, [key], -1)
        base = both.wires[0].end_offset(topic)
        send(after + 20_000, Compression.NONE, [b"last"], -1)  # a new segment, which is the active one
        return base

    for turn in range(2):  # the first pass stamps tombstones, the next one drops them
        active = send_some(turn * 40_000)
        compact = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        }
        both.alter(topic, compact)
        for process in (both.ours, both.kafka):
            await_cleaned(process, topic, active)
        ours, kafka = (list(stored(wire, topic)) for wire in both.wires)
        assert [batch for _, batch in ours] == [batch for _, batch in kafka]
        assert [comparable(header) for header, _ in ours] == [comparable(header) for header, _ in kafka]
        assert len(keys) < sum(len(batch) for _, batch in ours) <= len(keys) + 2 < active / 4
        assert [(h.record_count, h.attributes) for h, _ in ours if h.producer_id == 8] == [(0, 0)]
        if not turn:
            both.alter(topic, {"min.cleanable.dirty.ratio": "1"})
    files = [str(p) for p in (both.ours.data / f"{topic}-0").iterdir() if p.suffix in (".log", ".snapshot")]
    dump = run_kafka_tool("dump-log", "--deep-iteration", "--files", ",".join(sorted(files))).stdout
    assert dump.count("| offset: ") == sum(len(batch) for _, batch in ours)
    assert "isvalid: false" not in dump
    assert "ismatch" not in dump
