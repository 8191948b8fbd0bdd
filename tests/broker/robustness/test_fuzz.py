"""Ten thousand malformed frames, beside an idempotent producer and a consumer.

Frames are valid requests of every API and version, generated from the schemas and then damaged: bytes changed or cut,
parts doubled, lengths and counts set to extremes, frames joined; and random noise. Equal seeds give equal frames.
``MILLSTREAM_FUZZ_FRAMES`` (10,000) and ``MILLSTREAM_FUZZ_SEED`` (1) change count and seed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millstream_harness.broker import BrokerProcess
from millstream_harness.ledger import Load, check
from millstream_harness.messages import VERSIONS, messages
from millstream_harness.process import resident_mb
from millstream_harness.wire import Wire
from millstream_kafka.protocol import api_versions
from millstream_kafka.protocol.header import RequestHeader, encode_request_header

pytestmark = pytest.mark.soak

FRAMES = int(os.environ.get("MILLSTREAM_FUZZ_FRAMES", "10000"))
SEED = int(os.environ.get("MILLSTREAM_FUZZ_SEED", "1"))
EXAMPLES = 4
"""Number of valid requests to start from, per API and version."""
HEADER_BYTES = 14
"""Key, version, correlation id and client id: damage there is soon noticed, so most of it comes later."""
GROWTH_MB = 40.0
EXTREME = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\0\x0f\xff\xff",
    b"\xff\xff\xff\xff\x0f",
)
SUBJECTS = ("flights", "undisturbed")
KNOWN_LINES = re.compile(
    r"^(?:ready: broker\.id=1 .*"
    r"|[\d,: -]+ INFO [\w.]+: .*"
    r"|[\d,: -]+ WARNING millstream_process\.loop: the event loop was held for .*"  # by a busy machine
    r"|[\d,: -]+ WARNING [\w.]+: closed the connection of 127\.0\.0\.1:(?P<port>\d+) on listener \w+: \S.*"
    r"|[\d,: -]+ WARNING [\w.]+: listener \w+: (?P<left_out>\d+) lines about connections were left out .*)$"
)
LEFT_OUT = re.compile(r'^millstream_connection_lines_suppressed_total\{cause="request"\} (\d+)', re.MULTILINE)


def valid_requests() -> list[bytes]:
    """A few valid requests per API and version: header and body, as in a frame."""
    made: list[bytes] = []
    for api, version in VERSIONS:

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(messages(api.request, version), st.integers(0, 2**31 - 1))
        def collect(request: object, correlation_id: int) -> None:
            head = encode_request_header(RequestHeader(api.key, version, correlation_id, "fuzz"))  # noqa: B023
            made.append(head + api.encode_request(version, request))  # noqa: B023

        collect()
    return made


def damaged(valid: list[bytes], chance: random.Random) -> bytes:
    """One frame with its size; the size is rarely wrong, or every frame would fail on it."""
    body = bytearray(chance.choice(valid))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        first = HEADER_BYTES if chance.random() < 0.9 else 4
        at = chance.randrange(min(first, len(body)), len(body) + 1)
        match chance.randrange(8):
            case 0:
                del body[at:]
            case 1:
                body[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 2:
                extreme = chance.choice(EXTREME)
                body[at : at + len(extreme)] = extreme
            case 3:
                body += body[at:]
            case 4:
                del body[at : at + chance.randrange(1, 9)]
            case 5:
                other = chance.choice(valid)
                body[at:] = other[chance.randrange(len(other)) :]
            case 6:
                body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            case 7:
                body[first:] = chance.randbytes(chance.randrange(4, 200))
    size = len(body) if chance.random() < 0.97 else chance.choice((-1, 0, 7, len(body) + 100, 2**31 - 1))
    return struct.pack(">i", size) + body


def attack(broker: BrokerProcess, frames: Iterator[bytes], chance: random.Random) -> Counter[int]:
    """Send one or a few frames per connection, and wait for the connection's end; return the ports used."""
    host, port = broker.bootstrap.split(":")
    ports: Counter[int] = Counter()
    while sent := list(itertools.islice(frames, chance.choice((1, 1, 1, 5)))):
        with socket.create_connection((host, int(port)), timeout=60) as one:
            ports[one.getsockname()[1]] += 1
            with contextlib.suppress(OSError):  # the broker may have closed it by now
                one.sendall(b"".join(sent))
                one.shutdown(socket.SHUT_WR)
                while one.recv(65536):
                    pass
    return ports


@pytest.mark.timeout(300 + FRAMES // 50)
def test_malformed_frames_disturb_nobody(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    valid = valid_requests()
    frames = iter([damaged(valid, chance) for _ in range(FRAMES)])
    with BrokerProcess(tmp_path, {"num.partitions": "1"}) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create(*SUBJECTS)
        with Load(broker.bootstrap, "undisturbed", pause_s=0.01) as load:
            load.until(100)
            warm = attack(broker, itertools.islice(frames, FRAMES // 4), chance)
            before, acknowledged = resident_mb(broker.pid), load.ledger.count
            begun = time.monotonic()
            ports = warm + attack(broker, frames, chance)
            took = time.monotonic() - begun
            grown = resident_mb(broker.pid) - before
            assert load.ledger.count > acknowledged, "the producer was starved"
        print(
            f"{FRAMES} frames over {ports.total()} connections, {took:.1f} s, {grown:+.1f} MB on {before:.1f} MB"
        )
        assert load.ledger.failed == []
        check(broker.bootstrap, "undisturbed", [load])
        assert grown < GROWTH_MB
        with Wire(broker.bootstrap) as wire:
            assert wire.call(api_versions.API, 3, api_versions.ApiVersionsRequest("a", "b")).error_code == 0
        logged: Counter[int] = Counter()
        for line in broker.said().splitlines():
            known = KNOWN_LINES.match(line)
            assert known is not None, line
            if known["port"]:
                logged[int(known["port"])] += 1
        assert not logged - ports, "more than one line for a connection"
        left_out = LEFT_OUT.search(broker.get("/metrics")[1])
        assert left_out is not None
        assert logged.total() + int(left_out[1]) > ports.total() / 4
