"""Topics whose records are read before they are appended: in order, beside other work, within limits."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.log import Log
from millstream_broker.log.validator import Validated
from millstream_harness.broker import BrokerProcess
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.wire import Wire, produce_request
from millstream_kafka.batch import Record, build_batch, iter_batches, read_header, read_records
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import alter_configs, create_topics, produce
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

NOW = int(time.time() * 1000)
MIB = 1 << 20
QUEUED = 2 * MIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    config = {"queued.max.request.bytes": str(QUEUED)}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), config) as process:
        yield process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as wire:
        yield wire


def create(wire: Wire, topic: str, partitions: int = 1, **config: str) -> None:
    configs = [
        create_topics.CreatableTopicConfig(name.replace("_", "."), value) for name, value in config.items()
    ]
    wanted = create_topics.CreatableTopic(topic, partitions, 1, [], configs)
    answer = wire.call(create_topics.API, 7, create_topics.CreateTopicsRequest([wanted], 10_000, False))
    assert answer.topics[0].error_code == 0


def answer_of(wire: Wire) -> produce.PartitionProduceResponse:
    answer: produce.ProduceResponse = wire.receive()
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize(
    "config",
    [
        {"compression_type": "lz4"},
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": "1000000000"},
        {"cleanup_policy": "compact", "flush_messages": "1"},
    ],
)
def test_nothing_overtakes(wire: Wire, config: dict[str, str]) -> None:
    """Small batches are read at once; compressed ones between them, and other partitions, are not."""
    topic = "-".join(config.values()).replace(",", "")
    create(wire, topic, 3, **config)
    codecs = list(Compression)
    sequences = [0, 0, 0]
    sent = []
    for number in range(60):
        partition, count = number % 7 % 3, 1 if number % 4 else 500
        records = [Record(b"%d" % number, b"%d" % i, NOW) for i in range(count)]
        batch = build_batch(
            records,
            producer_id=9,
            producer_epoch=0,
            base_sequence=sequences[partition],
            compression=codecs[number // 2 % 5],
        )
        wire.send(produce.API, 9, produce_request(topic, batch, partition=partition))
        sent.append((partition, sequences[partition], records))
        sequences[partition] += count
    for partition, offset, _ in sent:
        answer = answer_of(wire)
        assert (answer.index, answer.error_code, answer.base_offset) == (partition, 0, offset)
    for partition in range(3):
        found: list[Record] = []
        while len(found) < sequences[partition]:
            data = wire.fetch(topic, len(found), partition=partition).records
            assert data
            for position, header in iter_batches(data):
                found += read_records(data[position : position + header.size])
        expected = [record for where, _, records in sent if where == partition for record in records]
        assert [record._replace(offset=-1) for record in found] == expected


def set_compression(wire: Wire, topic: str, value: str) -> None:
    resource = alter_configs.AlterConfigsResource(
        2, topic, [alter_configs.AlterableConfig("compression.type", value)]
    )
    answer = wire.call(alter_configs.API, 2, alter_configs.AlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == 0


def test_an_idempotent_producer_while_the_path_of_its_batches_changes(
    broker: BrokerProcess, wire: Wire
) -> None:
    """librdkafka pipelines; OUT_OF_ORDER_SEQUENCE_NUMBER would be fatal for it."""
    create(wire, "altered")
    config = {
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 1,
        "batch.num.messages": 500,
        "queue.buffering.max.messages": 1_000_000,
    }
    producer = Producer(config)
    offsets: list[tuple[bytes, int]] = []
    failed: list[object] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            offsets.append((message.value(), message.offset()))

    count = 0
    for turn in range(60):
        for _ in range(2000):
            producer.produce("altered", b"%08d" % count * 20, on_delivery=delivered)
            count += 1
        producer.poll(0)
        set_compression(wire, "altered", ("gzip", "producer")[turn % 2])
    assert producer.flush(200) == 0
    assert not failed
    assert sorted(offsets, key=lambda one: one[1]) == [(b"%08d" % n * 20, n) for n in range(count)]


def test_raw_batches_while_the_path_of_their_batches_changes(broker: BrokerProcess, wire: Wire) -> None:
    """Five connections, each with an idempotent producer of one partition that pipelines."""
    create(wire, "altered-raw", 5)
    wires = [Wire(broker.bootstrap) for _ in range(5)]
    sequences = [0] * 5
    for turn in range(40):
        set_compression(wire, "altered-raw", ("gzip", "producer")[turn % 2])
        for partition, one in enumerate(wires):
            for number in range(4):
                size = 1 if (turn + number) % 2 else 500
                batch = build_batch(
                    [Record(b"k", b"%d" % i, NOW) for i in range(size)],
                    producer_id=100 + partition,
                    producer_epoch=0,
                    base_sequence=sequences[partition],
                    compression=Compression.LZ4 if size > 1 else Compression.NONE,
                )
                one.send(produce.API, 9, produce_request("altered-raw", batch, partition=partition, acks=-1))
                sequences[partition] += size
    for partition, one in enumerate(wires):
        expected = 0
        for turn in range(40):
            for number in range(4):
                answer = answer_of(one)
                assert (answer.error_code, answer.base_offset) == (0, expected), (partition, turn, number)
                expected += 1 if (turn + number) % 2 else 500
        one.socket.close()


def test_the_broker_serves_while_a_batch_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread decompresses it again and again, until the others have been served."""
    begun, served = threading.Event(), threading.Event()
    validate = Log.validate

    def repeated(log: Log, batches: bytearray, *, now_ms: int, origin: AppendOrigin) -> Validated:
        begun.set()
        while not served.is_set():
            validate(log, bytearray(batches), now_ms=now_ms, origin=origin)
        return validate(log, batches, now_ms=now_ms, origin=origin)

    monkeypatch.setattr(Log, "validate", repeated)
    bomb = build_batch([Record(b"k", bytes(64 * MIB), NOW)], compression=Compression.ZSTD)
    assert len(bomb) < MIB
    with (
        InProcessBroker(tmp_path) as broker,
        Wire(broker.bootstrap) as wire,
        Wire(broker.bootstrap) as bomber,
    ):
        create(wire, "bombed", compression_type="gzip")
        create(wire, "others")
        bomber.send(produce.API, 9, produce_request("bombed", bomb))
        assert begun.wait(60)
        for offset in range(20):
            assert wire.produce("others", [Record(b"k", b"v", NOW)]).base_offset == offset
        assert not select.select([bomber.socket], [], [], 0)[0]
        served.set()
        assert answer_of(bomber).error_code == 0
        data = wire.fetch("bombed", 0).records
        assert data
        header = read_header(data)
        assert (header.compression, header.record_count) == (Compression.GZIP, 1)


def test_too_much_when_decompressed_is_refused(wire: Wire) -> None:
    create(wire, "too-much", compression_type="gzip")
    bomb = build_batch([Record(b"k", bytes(129 * MIB), NOW)], compression=Compression.ZSTD)
    answer = wire.produce("too-much", bomb)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "too large" in str(answer.error_message)
    assert wire.produce("too-much", [Record(b"k", b"v", NOW)]).base_offset == 0


def test_what_waits_is_bounded(broker: BrokerProcess) -> None:
    """Ten clients pipeline 16 MiB each; all is appended, and little of it waits in the broker."""
    batch = build_batch(
        [Record(b"key-%d" % i, os.urandom(2000), NOW) for i in range(100)], compression=Compression.LZ4
    )
    count = 16 * MIB // len(batch)
    with Wire(broker.bootstrap) as wire:
        create(wire, "much", 10, cleanup_policy="compact", segment_bytes=str(100 * MIB))
    wires = [Wire(broker.bootstrap) for _ in range(10)]
    unsent = {}
    for partition, one in enumerate(wires):
        request = produce_request("much", batch, partition=partition)
        unsent[one] = memoryview(b"".join(one.frame(produce.API, 9, request) for _ in range(count)))
        one.socket.setblocking(False)
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak restarts at what is resident now
    before = _peak(broker)
    answered = dict.fromkeys(wires, 0)
    deadline = time.monotonic() + 200
    while any(answers < count for answers in answered.values()):
        assert time.monotonic() < deadline
        by_socket = {one.socket: one for one in wires}
        readable, writable, _ = select.select(
            by_socket, [one.socket for one, rest in unsent.items() if rest], [], 1
        )
        for socket in writable:
            unsent[by_socket[socket]] = unsent[by_socket[socket]][socket.send(unsent[by_socket[socket]]) :]
        for socket in readable:
            one = by_socket[socket]
            socket.setblocking(True)
            answer = answer_of(one)
            socket.setblocking(False)
            assert (answer.error_code, answer.base_offset) == (0, 100 * answered[one])
            answered[one] += 1
    for one in wires:
        one.socket.close()
    # The waiting bytes, two receive buffers per connection, and what the allocator keeps.
    growth = _peak(broker) - before
    print(f"grew by {growth / MIB:.1f} MiB")
    assert growth < QUEUED + 10 * 2 * 256 * 1024 + 16 * MIB


def _peak(broker: BrokerProcess) -> int:
    """Peak resident memory in bytes."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def test_without_acknowledgement_a_refusal_closes_the_connection(wire: Wire) -> None:
    create(wire, "keyed", cleanup_policy="compact")
    keyless = build_batch([Record(None, b"v", NOW)], compression=Compression.GZIP)
    wire.send(produce.API, 9, produce_request("keyed", build_batch([Record(b"k", b"v", NOW)]), acks=0))
    wire.send(produce.API, 9, produce_request("keyed", keyless, acks=0))
    assert wire.is_closed()
