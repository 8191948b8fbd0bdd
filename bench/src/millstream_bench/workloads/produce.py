"""Kafka's ProducerPerformance: the maximum rate, and its cost for the broker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from millstream_bench import perf
from millstream_bench.figures import cpu, number, rate
from millstream_bench.peers import DISK, Peer
from millstream_bench.steady import is_steady, until_steady
from millstream_bench.workload import Numbers, Workload, scaled

WARM_UP_RECORDS, WARM_UPS = 1_000_000, 6
"""The least of a warm-up: six runs of a million records."""
SMALL = {"acks": "1", "enable.idempotence": "false", "batch.size": "16384"}
LARGE = {"acks": "1", "enable.idempotence": "false", "batch.size": "65536", "linger.ms": "5"}
IDEMPOTENT = {"acks": "all", "enable.idempotence": "true", "batch.size": "16384"}


def producing(
    records: int, size: int, props: dict[str, str], partitions: int
) -> Callable[[Peer, float], Numbers]:
    def run(peer: Peer, scale: float) -> Numbers:
        with perf.new_topic(peer.bootstrap, partitions) as topic:
            before = peer.cpu_seconds()
            speed = perf.produce(peer.bootstrap, topic, scaled(records, scale), size, props)
            return {"rate": speed, "broker CPU": peer.cpu_seconds() - before}

    return run


def workload(
    name: str,
    title: str,
    goals: tuple[float, float],
    sizes: tuple[int, int],
    props: dict[str, str],
    partitions: int = 1,
) -> Workload:
    """``goals`` are ratios of rate and CPU; ``sizes`` are records and bytes a record."""
    return Workload(
        name=name,
        title=title,
        figures=(rate(goals[0]), cpu(goals[1])),
        run=producing(*sizes, props, partitions),
    )


PRODUCE = (
    workload("producer-200b", "200 B records, 16 KB batches, acks=1", (1.0, 0.45), (1_500_000, 200), SMALL),
    workload("producer-1k", "1 KB records, 64 KB batches, acks=1", (1.0, 0.45), (600_000, 1000), LARGE),
    workload(
        "producer-1k-lz4",
        "1 KB records, 64 KB batches, acks=1, lz4",
        (1.0, 0.45),
        (600_000, 1000),
        {**LARGE, "compression.type": "lz4"},
    ),
    workload(
        "producer-100b-6p",
        "100 B records, 16 KB batches, 6 partitions, acks=1",
        (1.0, 0.45),
        (2_000_000, 100),
        SMALL,
        partitions=6,
    ),
    workload(
        "producer-idempotent",
        "200 B records, 16 KB batches, idempotent, acks=all",
        (1.0, 0.45),
        (1_500_000, 200),
        IDEMPOTENT,
    ),
)


def on_disk(peer: Peer, scale: float) -> Numbers:
    peer.start()
    warm_up(peer, scale)
    return producing(500_000, 1000, LARGE, 1)(peer, scale)


def warm_up(peer: Peer, scale: float, address: perf.Address | None = None) -> None:
    """Warm up either broker, until the work costs it the same each time; `address`: another than its open one."""
    records, address = scaled(WARM_UP_RECORDS, scale), address or peer.bootstrap
    with perf.new_topic(peer.bootstrap) as topic:
        for work in (
            lambda: perf.produce(address, topic, records, 200, SMALL),
            lambda: perf.consume(address, topic, records),
        ):
            costs = until_steady(work, peer.cpu_seconds, WARM_UPS)
            if not is_steady(costs, WARM_UPS):
                said = ", ".join(number(cost) for cost in costs)
                print(
                    f"{peer.name} is not steady: the CPU seconds of its warm-up were {said}", file=sys.stderr
                )


def disk_workload(where: Path) -> Workload:
    return Workload(
        name="producer-1k-disk",
        title="1 KB records, 64 KB batches, acks=1, the log on the disk",
        figures=(rate(1.0), cpu(0.45)),
        run=on_disk,
        own=True,
        where=where,
    )


ON_DISK = (disk_workload(DISK),)
