"""Draws the dashboards of clusters, topics, groups and mirrors, from a few minutes of a real cluster's metrics.

    make docs/images/dashboards

Three brokers, a fourth elsewhere, a mirror between them, producers whose load rises and falls, a group that keeps up
and one that does not; a broker is killed and comes back. A real Prometheus scrapes them and evaluates the chart's
rules. The dashboards of loads and of the operator need an operator on Kubernetes: `operator_pictures`.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import millstream
from millstream.topics import create_topic
from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.dashboard_drawing import Series, draw
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess
from millstream_harness.prometheus import PrometheusProcess, Target

CHART: Final = Path(__file__).resolve().parents[3] / "charts/millstream"
DRAWN: Final = ("cluster", "topics", "groups", "mirrors")
SECONDS: Final = 240
STEP_S: Final = 2
TOPICS: Final = {"orders": 400, "clicks": 1500, "payments": 60}
"""Records a second on average, by topic."""


def produce(cluster: millstream.Cluster, ended: threading.Event) -> None:
    """The load rises and falls in two minutes."""
    with millstream.Producer(cluster, compression="lz4", delivery_timeout_s=120) as producer:
        while not ended.wait(0.2):
            share = 1 + 0.6 * math.sin(time.monotonic() * 2 * math.pi / 120)
            for topic, rate in TOPICS.items():
                for number in range(int(rate * share / 5)):
                    producer.send(topic, b"%06d" % number + b"." * 200, key=str(number % 50))


def consume(
    cluster: millstream.Cluster, group: str, topic: str, rest_s: float, ended: threading.Event
) -> None:
    """``rest_s``: how long the group rests after each batch."""
    with millstream.connect(cluster, group=group, session_timeout_s=30, commit_interval_s=2) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]

        def close() -> None:
            ended.wait()
            connector.close()

        threading.Thread(target=close, daemon=True).start()
        for _ in stream.batches(256):
            ended.wait(rest_s)


def address(process: MirrorProcess | BrokerProcess) -> str:
    """HOST:PORT of its metrics."""
    return process.http.removeprefix("http://")


def draw_all(
    names: Sequence[str], prometheus: PrometheusProcess, since: float, until: float, into: Path
) -> None:
    """A picture of each dashboard, NAME.png in ``into``, of what Prometheus has between two times in seconds."""

    def query(expression: str) -> Sequence[Series]:
        found = prometheus.get(
            "query_range", query=expression, start=str(since), end=str(until), step=str(STEP_S)
        )
        return [
            (one["metric"], [(float(at), float(value)) for at, value in one["values"]])
            for one in found["result"]
        ]

    into.mkdir(parents=True, exist_ok=True)
    for name in names:
        dashboard = json.loads((CHART / f"dashboards/millstream-{name}.json").read_text())
        draw(dashboard, query).savefig(into / f"{name}.png")


def pictures(folder: Path, into: Path) -> None:
    ended = threading.Event()
    main = ClusterProcesses(folder / "main")
    for broker in main.brokers.values():
        broker.config["http.listener"] = f"127.0.0.1:{fixed_port()}"  # the same after a restart
    with (
        main,
        InProcessBroker(folder / "east", {}) as east,
    ):
        cluster = millstream.Cluster(main.bootstrap)
        for topic in TOPICS:
            create_topic(cluster, topic, partitions=6)
            main.await_in_sync(topic)
        groups = (("billing", "orders", 0.0), ("archive", "clicks", 0.35), ("fraud", "payments", 0.0))
        threads = [threading.Thread(target=produce, args=[cluster, ended], daemon=True)] + [
            threading.Thread(target=consume, args=[cluster, *group, ended], daemon=True) for group in groups
        ]
        with MirrorProcess(
            folder / "mirror",
            {"main": main.bootstrap},
            east.bootstrap,
            topics={"include": ["orders", "clicks"]},
        ) as mirror:
            labels = {"namespace": "shop"}
            targets = [
                Target("shop/mirrors", address(mirror), labels | {"mirror": "to-east", "pod": "to-east-0"})
            ]
            for number, one in main.brokers.items():
                pod = {"cluster": "main", "pod": f"main-brokers-{number - 1}"}
                targets.append(Target(f"shop/brokers-{number}", address(one), labels | pod))
            with PrometheusProcess(
                folder / "prometheus", targets, [CHART / "rules/millstream.yaml"]
            ) as prometheus:
                begun = time.time()
                for thread in threads:
                    thread.start()
                time.sleep(SECONDS * 0.55)
                main.brokers[2].kill()
                time.sleep(SECONDS * 0.1)
                main.brokers[2].start()
                time.sleep(SECONDS * 0.35)
                draw_all(DRAWN, prometheus, begun + 20, time.time(), into)
                ended.set()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        pictures(Path(made), Path(sys.argv[1]))
