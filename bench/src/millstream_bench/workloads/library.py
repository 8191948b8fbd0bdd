"""The Python library beside bare confluent-kafka: the same broker, the same process, the same records."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import millstream
from millstream.topics import create_topic
from millstream_bench import library
from millstream_bench.figures import Figure, rate
from millstream_bench.library import PARTITIONS, Measured
from millstream_bench.peers import MILLSTREAM, Peer
from millstream_bench.workload import Numbers, Workload, scaled

BARE = "confluent-kafka"
WARM_UP = 0.1
LEAST_ROUNDS = 7
"""A run lasts a second, and goals are near 1: more rounds than others have, or the ratio is noise."""
Loop = Callable[[millstream.Cluster, str, int, bytes], Measured]


def beside(
    ours: Loop, bare: Loop, size: int, count: int, *, filled: bool
) -> Callable[[Peer, float], Numbers]:
    """Run one of the two loops, with a tenth of the records first. ``filled``: the topic already has the records."""

    def run(peer: Peer, scale: float) -> Numbers:
        peer.start()
        cluster, loop = millstream.Cluster(peer.bootstrap), bare if peer.name == BARE else ours
        speed = cpu_us = 0.0
        for records in (scaled(count, scale * WARM_UP), scaled(count, scale)):
            topic = f"bench-{uuid.uuid4().hex}"
            create_topic(cluster, topic, partitions=PARTITIONS)
            if filled:
                library.bare_produce(cluster, topic, records, bytes(size))
            speed, cpu_us = loop(cluster, topic, records, bytes(size))
        return {"rate": speed, "client CPU a record": cpu_us}

    return run


LIBRARY = tuple(
    Workload(
        name=f"library-{name}-{label}",
        title=f"Python library, {title}, {size:,} B records",
        figures=(rate(0.9), Figure("client CPU a record", "µs")),
        run=beside(ours, bare, size, count, filled=bare is library.bare_consume),
        own=True,
        contenders=(MILLSTREAM, BARE),
        least_rounds=LEAST_ROUNDS,
    )
    for size, count in library.SIZES
    for label in ("200b" if size == 200 else "1k",)
    for name, title, bare, ours in (
        ("produce", "Producer", library.bare_produce, library.our_produce),
        ("streams", "message stream", library.bare_consume, library.our_consume),
        ("streams-range", "message stream by range", library.bare_consume, library.our_consume_by_range),
    )
)
