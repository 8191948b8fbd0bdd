"""Clients that hold resources: idle ones, slow readers, senders of half a request. Memory stays bounded.

Each test prints its measurements (`pytest -s`); docs/limits.md has the figures. Bounds are several times the measured
values, and far below what the broker would use if it kept whatever clients request or send.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.process import cpu_s, forget_peak, open_files, peak_mb, resident_mb
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, fetch_request, produce_request, record
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import api_versions, fetch, metadata, produce
from millstream_kafka.protocol.header import RequestHeader, encode_request_header

pytestmark = pytest.mark.soak

StartBrokerProcess = Callable[..., BrokerProcess]
MIB = 1 << 20


class Impatient(BrokerProcess):
    """A broker that frees memory after a second."""

    @property
    def command(self) -> list[str]:
        program = "import sys; from millstream_broker import main; "
        program += "from millstream_broker.runtime import request_memory as it; it.STALLED_S = 1.0; "
        return [sys.executable, "-c", program + "sys.exit(main.main())", *super().command[1:]]


@contextlib.contextmanager
def connections(broker: BrokerProcess, count: int) -> Iterator[list[socket.socket]]:
    host, port = broker.bootstrap.split(":")
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(count)
        ]


def ask(broker: BrokerProcess) -> None:
    """Another client gets a response."""
    with Wire(broker.bootstrap) as wire:
        assert wire.call(api_versions.API, 3, api_versions.ApiVersionsRequest("a", "b")).error_code == 0


def warm_up(broker: BrokerProcess, topic: str) -> None:
    """Load everything that first requests load, lest it count as growth."""
    with Wire(broker.bootstrap) as wire:
        wire.create(topic)
        for _ in range(3):
            wire.produce(topic, [record(b"x" * 900_000)])
        wire.fetch(topic, 0)


def pour(sock: socket.socket, data: bytes) -> int:
    """Send until the other side accepts nothing for a moment; return the number of bytes sent."""
    sock.settimeout(0.1)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(data):
            sent += sock.send(data[sent : sent + 65536])
    return sent


def told(what: str, broker: BrokerProcess, before: float) -> float:
    grown = resident_mb(broker.pid) - before
    print(f"{what}: {grown:+.1f} MB on {before:.1f} MB")
    return grown


def test_a_thousand_connections_that_never_speak(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process()
    warm_up(broker, "quiet")
    before, files = resident_mb(broker.pid), open_files(broker.pid)
    with connections(broker, 1000):
        eventually(lambda: open_files(broker.pid), lambda count: count >= files + 990, "connections accepted")
        ask(broker)
        assert told("1000 silent connections", broker, before) < 10
        begun, used = time.monotonic(), cpu_s(broker.pid)
        time.sleep(1)  # measure a second of doing nothing, or longer on a busy machine
        assert cpu_s(broker.pid) - used < 0.2 * (time.monotonic() - begun)
    eventually(lambda: open_files(broker.pid), lambda count: count <= files + 10, "connections closed")


def test_a_thousand_connections_that_fell_silent(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process()
    warm_up(broker, "quiet")
    before = resident_mb(broker.pid)
    with contextlib.ExitStack() as opened:
        wires = [opened.enter_context(Wire(broker.bootstrap)) for _ in range(1000)]
        for wire in wires:
            wire.call(api_versions.API, 3, api_versions.ApiVersionsRequest("a", "b"))
            wire.produce("quiet", [record("a")])
            wire.send(fetch.API, 12, fetch_request("quiet", wire.end_offset("quiet"), wait_ms=600_000))
        ask(broker)
        assert told("1000 connections in a long poll", broker, before) < 25


def test_slow_readers_of_records(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process()
    warm_up(broker, "large")
    with Wire(broker.bootstrap) as wire:
        for _ in range(60):
            assert wire.produce("large", [record(b"x" * 1_000_000)]).error_code == 0
    before, files = resident_mb(broker.pid), open_files(broker.pid)
    with contextlib.ExitStack() as opened:
        wires = [opened.enter_context(Wire(broker.bootstrap)) for _ in range(100)]
        for wire in wires:
            for _ in range(10):
                wire.send(fetch.API, 12, fetch_request("large", 0))
        ask(broker)
        assert told("100 slow readers asking for 50 GB", broker, before) < 10
        assert open_files(broker.pid) < files + 100 + 20
        with Wire(broker.bootstrap) as wire:
            assert wire.produce("large", [record(b"y")]).error_code == 0
            assert len(wire.fetch("large", 0).records or b"") > 40_000_000
        # The slow client gets all its data once it reads.
        for _ in range(10):
            data = wires[0].receive().responses[0].partitions[0]
            assert len(data.records) > 40_000_000


def test_slow_readers_of_metadata(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process()
    with Wire(broker.bootstrap) as wire:
        wire.create(*(f"topic-{number}" for number in range(200)))
        request = wire.frame(metadata.API, 12, metadata.MetadataRequest(None))
    before = resident_mb(broker.pid)
    with connections(broker, 10) as many:
        poured = sum(pour(one, request * (8 * MIB // len(request))) for one in many)
        ask(broker)
        assert poured < 10 * 8 * MIB, "the broker went on reading"
        assert told("10 clients that ask for metadata and do not read it", broker, before) < 30


def test_one_client_with_many_requests_does_not_keep_the_others_waiting(
    start_broker_process: StartBrokerProcess,
) -> None:
    broker = start_broker_process()
    with Wire(broker.bootstrap) as greedy:
        greedy.create(*(f"topic-{number}" for number in range(20)))
        requests = greedy.frame(metadata.API, 12, metadata.MetadataRequest(None)) * 1000
        sent = received = 0
        are_served = threading.Event()

        def send() -> None:
            """Have thousands of requests under way until the others are served: they cannot wait for the end of it."""
            nonlocal sent
            while not are_served.is_set():
                if sent - received < 20_000:
                    sent += 1000
                    greedy.socket.sendall(requests)
                else:
                    time.sleep(0.001)

        def drain() -> None:
            nonlocal received
            with contextlib.suppress(EOFError):
                while True:
                    greedy.receive_frame()
                    received += 1

        sending, draining = threading.Thread(target=send), threading.Thread(target=drain)
        sending.start()
        draining.start()
        try:
            eventually(lambda: received, bool, "it is being served")
            ask(broker)
            are_served.set()
            sending.join()
            eventually(lambda: received, lambda count: count == sent, "it is served to the end")
        finally:
            are_served.set()
            greedy.socket.shutdown(socket.SHUT_RDWR)
            sending.join()
            draining.join()


def test_a_poll_without_end_by_a_client_that_has_gone(start_broker_process: StartBrokerProcess) -> None:
    """It has sent further requests, so the broker does not notice its end during the poll."""
    broker = start_broker_process({"connections.max.idle.ms": "1000"})
    warm_up(broker, "left")
    files = open_files(broker.pid)
    for _ in range(20):
        with Wire(broker.bootstrap) as wire:
            forever = wire.frame(fetch.API, 12, fetch_request("left", 3, wait_ms=2**31 - 1))
            wire.socket.sendall(forever + wire.frame(metadata.API, 12, metadata.MetadataRequest(None)) * 10)
    eventually(lambda: open_files(broker.pid), lambda count: count <= files, "connections closed")


def test_half_a_frame_and_silence(tmp_path: Path) -> None:
    config = {"queued.max.request.bytes": str(16 * MIB)}
    with Impatient(tmp_path, config) as broker:
        warm_up(broker, "halves")
        before = resident_mb(broker.pid)
        with Wire(broker.bootstrap) as wire:
            frame = wire.frame(
                produce.API, 9, produce_request("halves", build_batch([record(b"x" * 1_000_000)]))
            )
        with connections(broker, 100) as many:
            for one in many:
                pour(one, frame[: len(frame) // 2])
            ask(broker)
            assert told("100 half requests of 1 MB, 16 MiB allowed", broker, before) < 17 + 100 * 0.3
            # A client whose request comes in pieces is served; stalled ones lose their places.
            with Wire(broker.bootstrap) as wire:
                for _ in range(5):
                    assert wire.produce("halves", [record(b"y" * 1_000_000)]).error_code == 0
            eventually(
                broker.said,
                lambda said: "cut off while others waited 1 s for its room" in said,
                "it says so",
            )
        ask(broker)
        assert "Traceback" not in broker.said()


def test_the_beginning_of_huge_requests(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process()
    warm_up(broker, "huge")
    before = resident_mb(broker.pid)
    begin = struct.pack(">ihhi", 100_000_000, 0, 9, 1)
    with connections(broker, 200) as many:
        for one in many:
            one.sendall(begin + b"\0" * 10_000)
        ask(broker)
        assert told("200 beginnings of requests of 100 MB", broker, before) < 15
        with Wire(broker.bootstrap) as wire:
            assert wire.produce("huge", [record("a")]).error_code == 0, "whole frames need no room"


def test_a_size_byte_by_byte(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process()
    with connections(broker, 2) as (allowed, refused):
        for byte in struct.pack(">ih", 100_000_000, 0):
            allowed.sendall(bytes((byte,)))
        for byte in struct.pack(">ih", 100_000_000, 3):
            refused.sendall(bytes((byte,)))
        assert refused.recv(1) == b""
        allowed.settimeout(0.2)
        with pytest.raises(TimeoutError):
            allowed.recv(1)
    assert (
        "a request of 100000000 bytes (API 3): only Produce and MirrorAppend may exceed 8388608"
        in broker.said()
    )


def metadata_of_empty_names(count: int) -> bytes:
    head = encode_request_header(RequestHeader(3, 1, 1, "amplifier"))
    body = head + struct.pack(">i", count) + b"\0\0" * count
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (50_000_000, "only Produce and MirrorAppend may exceed 8388608"),
        (
            4_000_000,
            "MetadataRequest version 1: topics has 4000000 elements, which makes too many in the message",
        ),
        (
            200_001,
            "MetadataRequest version 1: topics has 200001 elements, which makes too many in the message",
        ),
        (200_000, None),
    ],
)
def test_a_request_does_not_cost_many_times_its_size(
    start_broker_process: StartBrokerProcess, count: int, said: str | None
) -> None:
    broker = start_broker_process()
    warm_up(broker, "amplified")
    forget_peak(broker.pid)
    before = peak_mb(broker.pid)
    with connections(broker, 1) as (one,):
        one.settimeout(60)
        with contextlib.suppress(ConnectionError):
            one.sendall(metadata_of_empty_names(count))
        with contextlib.suppress(ConnectionError):
            assert bool(one.recv(1)) is (said is None)
        grown = peak_mb(broker.pid) - before
    print(f"Metadata request for {count} empty names, {count * 2 / 1e6:.1f} MB: peak {grown:+.1f} MB")
    assert grown < 150
    ask(broker)
    if said is not None:
        assert said in broker.said()
