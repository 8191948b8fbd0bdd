"""Workers behind a link that is cut, slow, loses packets and flaps: no record is lost or repeated, and order holds.

Each test runs in a process with its own network, in which its workers are one namespace further away.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_faults import isolation
from millstream_harness.broker import fixed_port
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.ledger import Load
from millstream_harness.links import CUT, FINE, HERE, SLOW, THERE, Condition, Link, has_tun
from millstream_harness.mirror import MirrorProcess, arrived, create, read_batches, stored
from millstream_harness.scenario import eventually, unique
from millstream_harness.tools import missing
from millstream_kafka.batch import read_records
from millstream_mirror.membership.member import SESSION_TIMEOUT_MS
from millstream_mirror.partitions.pipeline import FETCH_TIMEOUT_S

pytestmark = pytest.mark.soak

PARTITIONS, COUNT = 4, 65
CONFIG = {"group.initial.rebalance.delay.ms": "200", "offsets.topic.num.partitions": "3"}
SEED = int(os.environ.get("MILLSTREAM_SEED", "7"))
SOON_S = 4.0
HASTY = (
    "import sys; from millstream_mirror import main; from millstream_mirror.partitions import pipeline;"
    f" pipeline.FETCH_TIMEOUT_S = {SOON_S};"
    " sys.argv[1:] = sys.argv[2:]; sys.exit(main.main())"
)
"""Starts a worker whose fetches time out sooner."""


def in_a_network_of_its_own(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test again, inside: everything it creates there ends with its process."""
    if isolation.inside():
        return test

    def outside(request: pytest.FixtureRequest, tmp_path: Path) -> None:
        command = isolation.unshare()
        if command is None or not has_tun():
            missing(
                "the right to make network namespaces and TUN devices (root, or user namespaces; util-linux, iproute2,"
                " iptables)"
            )
        assert command is not None
        again = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}"]
        done = subprocess.run(
            [*command, sys.executable, *again, request.node.nodeid],
            cwd=request.config.rootpath,
            env={**os.environ, isolation.INSIDE: "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout

    outside.__name__, outside.__doc__ = test.__name__, test.__doc__
    return outside


class Worker(MirrorProcess):
    """A worker here or, with ``link``, at its other end."""

    def __init__(
        self,
        folder: Path,
        source: InProcessBroker,
        target: InProcessBroker,
        link: Link | None,
        program: Sequence[str] = (),
        **config: Any,
    ) -> None:
        super().__init__(
            folder,
            {"west": source.bootstrap},
            target.bootstrap,
            http=f"{HERE if link is None else THERE}:0",
            entering=(*(() if link is None else link.entering), *program),
            **config,
        )

    def get(self, path: str) -> str:
        """Retry: the link may lose the connection."""
        until = time.monotonic() + 60
        while True:
            try:
                return super().get(path)
            except OSError:
                if time.monotonic() > until:
                    raise

    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["sources"][0]
        return found


Sides = tuple[Link, InProcessBroker, InProcessBroker]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    """A link with packets named "source" and "target", and the two brokers on this side of it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
    ports = {name: fixed_port() for name in ("source", "target")}
    west, east = (
        InProcessBroker(tmp_path / name, {**CONFIG, "listeners": f"PLAINTEXT://{HERE}:{port}"})
        for name, port in ports.items()
    )
    with Link(ports, SEED) as link, west, east:
        yield link, west, east


@in_a_network_of_its_own
@pytest.mark.timeout(300)
def test_broken_link_loses_no_record(sides: Sides, tmp_path: Path) -> None:
    """Both modes at once; each has a worker at either end of the link, which share the partitions."""
    link, west, east = sides
    topic = unique("t")
    create(west, topic, PARTITIONS)
    modes: dict[str, dict[str, Any]] = {
        "Identity": {"mode": "Identity"},
        "Aggregate": {"mode": "Aggregate", "naming": "Prefixed"},
    }
    workers = {
        (mode, where): Worker(
            tmp_path / f"{mode}-{where}",
            west,
            east,
            link if where == "far" else None,
            name=mode.lower(),
            topics={"include": [topic]},
            **config,
        )
        for mode, config in modes.items()
        for where in ("far", "near")
    }
    far = [workers[mode, "far"] for mode in modes]
    near = [workers[mode, "near"] for mode in modes]

    def shares(of: list[Worker]) -> list[int]:
        return [worker.source()["partitions"] for worker in of]

    def all_share() -> None:
        half = PARTITIONS // 2
        eventually(
            lambda: shares([*far, *near]), lambda now: now == [half] * 4, "a half of the partitions each", 60
        )

    def near_take_over() -> None:
        eventually(lambda: shares(near), lambda now: now == [PARTITIONS] * 2, "the near ones take over", 60)

    def move_on(of: list[Worker]) -> None:
        before = [worker.records() for worker in of]
        eventually(
            lambda: [
                now - then for now, then in zip((worker.records() for worker in of), before, strict=True)
            ],
            lambda more: min(more) > 20,
            "each of the workers moves on",
            60,
        )

    try:
        for worker in workers.values():
            worker.start()
        all_share()
        with Load(west.bootstrap, topic, partitions=range(PARTITIONS), pause_s=0.01) as load:
            move_on([*far, *near])

            begun = time.monotonic()
            link.set(CUT)
            near_take_over()
            is_a_prefix(west, east, topic)
            rest_of(begun, max(FETCH_TIMEOUT_S, SESSION_TIMEOUT_MS / 1000) + 2)
            link.set(FINE)
            all_share()
            move_on([*far, *near])

            link.set(CUT, "source")
            eventually(
                lambda: [worker.source()["reachable"] for worker in far],
                lambda now: now == [False, False],
                "the source is away",
                60,
            )
            link.set(FINE)
            move_on(far)

            link.set(CUT, "target")
            near_take_over()
            link.set(FINE)
            all_share()
            is_a_prefix(west, east, topic)

            link.set(SLOW)
            move_on(far)
            chance = random.Random(SEED)
            for _ in range(8):
                link.set(CUT)
                time.sleep(chance.uniform(0.1, 1.5))
                link.set(SLOW)
                time.sleep(chance.uniform(0.1, 1.0))
            is_a_prefix(west, east, topic)
            link.set(FINE)
            all_share()
            move_on([*far, *near])
        assert not load.ledger.failed
        counts = [len(values(west, topic, partition)) for partition in range(PARTITIONS)]
        for name in (topic, f"west.{topic}"):
            arrived(east, name, counts)
        for partition in range(PARTITIONS):
            assert stored(east, topic, partition) == stored(west, topic, partition) != b""
            assert values(east, f"west.{topic}", partition) == values(west, topic, partition)
        for worker in workers.values():
            assert 'renumbered_partitions_total{source="west"} 0' in worker.get("/metrics")
            eventually(worker.source, lambda source: source["lastError"] == "", "no error")
    finally:
        for worker in workers.values():
            worker.kill()


@in_a_network_of_its_own
@pytest.mark.timeout(180)
def test_backlog_passes_slow_link(sides: Sides, tmp_path: Path) -> None:
    link, west, east = sides
    topic = unique("backlog")
    create(west, topic, PARTITIONS)
    noise, each = random.Random(SEED), 15_000
    producer = Producer({"bootstrap.servers": west.bootstrap, "log_level": 0, "linger.ms": 0})
    for number in range(COUNT * PARTITIONS):
        producer.produce(topic, noise.randbytes(each), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    link.set(Condition(rate=int(COUNT * PARTITIONS * each / (SOON_S * 1.5))))
    program = sys.executable, "-c", HASTY
    worker = Worker(tmp_path / "far", west, east, link, program, name="far", topics={"include": [topic]})
    try:
        worker.start()
        arrived(east, topic, [COUNT] * PARTITIONS, 120)
        for partition in range(PARTITIONS):
            assert values(east, topic, partition) == values(west, topic, partition)
        assert f"no response to Fetch within {SOON_S:g} s" in worker.said(), "otherwise the link was not slow"
    finally:
        worker.kill()


def rest_of(begun: float, seconds: float) -> None:
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def values(broker: InProcessBroker, topic: str, partition: int) -> list[bytes | None]:
    batches = asyncio.run(read_batches(broker.bootstrap, topic, partition))
    return [record.value for batch in batches for record in read_records(batch)]


def is_a_prefix(source: InProcessBroker, target: InProcessBroker, topic: str) -> None:
    """The replica equals the source, byte for byte, as far as it goes."""
    for partition in range(PARTITIONS):
        copy = stored(target, topic, partition)
        assert stored(source, topic, partition).startswith(copy), f"{topic}-{partition}"
