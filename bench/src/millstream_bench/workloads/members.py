"""Fifty message streams share two hundred partitions: the effects of the last join and of losing a member.

One member is a process, which is killed; the others are threads of this one.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import millstream
from millstream_bench.clusters import SESSION_S, MillstreamCluster, running
from millstream_bench.figures import Figure
from millstream_bench.peers import MILLSTREAM, Peer
from millstream_bench.workload import Numbers, Workload
from millstream_harness.cluster import until
from millstream_harness.stream_member import StreamMember

MEMBERS, PARTITIONS = 50, 200
SETTLED, REPLACED = "settled after the last join", f"killed member replaced (session {SESSION_S:g} s)"
SETTLED_S, REPLACED_S = 5.0, SESSION_S + 2.0
LIMIT_S = 120.0


def owned(streams: list[millstream.MessageStream]) -> set[int]:
    return {partition for stream in streams for partition in stream.partitions}


def sharing(coordination: str) -> Callable[[Peer, float], Numbers]:
    def run(peer: Peer, scale: float) -> Numbers:
        with running(peer) as cluster, ExitStack() as stack:
            assert isinstance(cluster, MillstreamCluster)
            options: dict[str, Any] = {"coordination": coordination, "session_timeout_s": SESSION_S}
            if coordination == "zookeeper":
                options["zookeeper"] = cluster.connect
            topic, group = cluster.create(PARTITIONS), f"bench-{uuid.uuid4().hex}"
            killed = StreamMember(peer.folder, 0, cluster.bootstrap, group, topic, options).start()
            stack.callback(killed.kill)
            until(lambda: len(killed.events()) >= PARTITIONS, "the first member owns all", LIMIT_S)
            streams: list[millstream.MessageStream] = []
            for _ in range(MEMBERS - 1):
                connector = stack.enter_context(millstream.connect(cluster.bootstrap, group=group, **options))
                streams += connector.create_message_streams({topic: 1})[topic]
                threading.Thread(target=list, args=[streams[-1]]).start()
            joined, each = time.perf_counter(), PARTITIONS // MEMBERS

            def are_settled() -> bool:
                return all(len(stream.partitions) == each for stream in streams) and (
                    len(owned(streams)) == PARTITIONS - each
                )

            until(are_settled, f"each member owns {each}", LIMIT_S)
            settled = time.perf_counter()
            time.sleep(SESSION_S)  # all have sent heartbeats in the last generation
            died = time.perf_counter()
            killed.kill()
            until(lambda: len(owned(streams)) == PARTITIONS, "the others own all", LIMIT_S)
            return {SETTLED: settled - joined, REPLACED: time.perf_counter() - died}

    return run


SHARED = tuple(
    Workload(
        name=f"members-{coordination}",
        title=f"{MEMBERS} message streams over {PARTITIONS} partitions, coordinated by {who}",
        figures=(Figure(SETTLED, "s", value=SETTLED_S), Figure(REPLACED, "s", value=REPLACED_S)),
        run=sharing(coordination),
        own=True,
        contenders=(MILLSTREAM,),
    )
    for coordination, who in (("group", "brokers"), ("zookeeper", "ZooKeeper"))
)
