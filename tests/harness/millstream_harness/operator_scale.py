"""Measures one operator with thousands of resources: time until ready, CPU and memory, and writes.

    python -m millstream_harness.operator_scale --clusters 50 --topics 5000 --groups 500

needs an API server (KUBECONFIG) with a controller manager and no nodes. API server, controller manager,
operator, brokers (a process for each Cluster, or --brokers of them in turn), topics, records and committed offsets are
real. But there are no kubelets, so ``Kubelets`` reports each broker's pod as ready, and the operator gets the brokers'
addresses; groups have no members, and another client commits for them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import click

from millstream_operator.kubernetes.client import Manifest
from millstream_operator.state.metric_table import MOST_OBJECTS

from .kube import run, until
from .machine import machine
from .manifests import cluster, group, resource, topic
from .operator import OperatorProcess
from .operator_scale_api import KINDS, Api, Kubelets, Seen, is_ours
from .operator_scale_figures import Found, Size
from .operator_scale_kafka import Brokers, Traffic, answered, topic_name, topic_of_group

ROOT = Path(__file__).resolve().parents[3]
CREATORS = 4
SETTLE_S = 90.0
AGES_S, WITHOUT_S = 60.0, 60.0
SCRAPE_S = 0.5
LAG_AGE = "millstream_group_lag_age_seconds"
EDITS_PER_S = 1.0
WRITES = ["Read", "Write", "Describe"]
"""Of a User, on its topics: with the rule for its group, it has four access rules."""
EDIT_TIMEOUT_S = 60.0


def manifests(size: Size, zookeepers: Sequence[str]) -> Iterator[Manifest]:
    """``zookeepers``: of each of the brokers that the Clusters share in turn; empty for a broker alone."""

    def of(number: int) -> Mapping[str, str]:
        return {"name": f"c-{number % size.clusters:02}"}

    for number in range(size.clusters):
        zookeeper = zookeepers[number % len(zookeepers)]
        yield cluster(
            f"c-{number:02}",
            brokers={"storage": {"size": "1Gi"}, "replicas": size.replicas},
            **({"zookeeper": {"connect": zookeeper}} if zookeeper else {}),
        )
    for number in range(size.topics):
        yield topic(
            topic_name(number),
            clusterRef=of(number),
            partitions=size.partitions,
            replicationFactor=size.replicas,
            config={"retention.ms": "86400000"},
        )
    for number in range(size.groups):
        read, limits = topic_of_group(size, number), {"records": 1_000_000, "seconds": 600}
        yield group(f"g-{number:04}", clusterRef=of(number), topics=[read], startAt="Earliest", maxLag=limits)
    for number in range(size.users):
        acls = [
            {
                "resource": {"type": "topic", "name": f"u-{number:05}", "patternType": "prefix"},
                "operations": WRITES,
            },
            {"resource": {"type": "group", "name": f"u-{number:05}"}, "operations": ["Read"]},
        ]
        yield resource(
            "User",
            f"u-{number:05}",
            clusterRef=of(number),
            authentication={"type": "ScramSha512"},
            authorization={"type": "Simple", "acls": acls},
            quotas={"producerByteRate": 1 << 20},
        )


class Measurement:
    """Brokers, an operator and its measurements; ``run`` does all steps in turn."""

    def __init__(self, api: Api, folder: Path, size: Size, say: Callable[[str], None]) -> None:
        self.folder, self.size, self.say = folder, size, say
        self.namespace = f"scale-{os.getpid()}-{time.monotonic_ns()}"
        self.found = Found()
        self.api = api
        self.brokers = [
            Brokers(folder / f"broker-{number}", number, size.replicas) for number in range(size.brokers)
        ]
        self.operator: OperatorProcess | None = None

    def run(self) -> Found:
        run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        run("kubectl", "create", "namespace", self.namespace)
        try:
            self.say(f"starting {sum(len(one.processes) for one in self.brokers)} brokers")
            with ThreadPoolExecutor(CREATORS) as threads:
                list(threads.map(lambda broker: broker.start(), self.brokers))
            self._create()
            self._first_start()
            self._restart()
            if not self.size.steady_s:
                return self.found
            traffic = Traffic(self.size, self.brokers)
            self._steady(traffic)
            self._lag_ages()
            self.found.edits_s = self._edit(range(self.size.topics))
            self._beside_frozen()
            self._without_operator()
            traffic.stopped.set()
            return self.found
        finally:
            self._end()

    def _create(self) -> None:
        self.seen = Seen(self.api, self.namespace)
        Kubelets(self.api, self.namespace)
        all_of_it = list(manifests(self.size, [one.zookeeper for one in self.brokers]))
        self.say(f"creating {len(all_of_it)} resources")
        with ThreadPoolExecutor(CREATORS) as threads:
            list(threads.map(lambda one: self.api.post(one, self.namespace), all_of_it))

    def _first_start(self) -> None:
        addresses = {
            f"c-{number:02}": self.brokers[number % self.size.brokers].bootstrap
            for number in range(self.size.clusters)
        }
        self.operator = OperatorProcess(self.folder / "operator", [self.namespace], addresses, level="info")
        (self.folder / "operator").mkdir()
        begun = time.monotonic()
        self.operator.start()
        size = self.size
        wanted = dict(zip(KINDS, (size.clusters, size.topics, size.groups, size.users), strict=True))
        said = 0.0

        def all_ready() -> bool:
            nonlocal said
            if time.monotonic() - said > 10:
                said = time.monotonic()
                ready = ", ".join(f"{len(self.seen.ready[kind])} {kind}s" for kind in KINDS)
                self.say(f"{time.monotonic() - begun:.0f} s: ready {ready}")
            return all(len(self.seen.ready[kind]) == count for kind, count in wanted.items())

        until("all ready", all_ready, 900, every=0.1)
        self.found.ready_s = time.monotonic() - begun
        self.found.ready_cpu_s = self.operator.cpu_seconds()
        self.found.peak_bytes = self.operator.peak_bytes()

    def _restart(self) -> None:
        """Restart without changes: time until all resources were reconciled, and the number of writes."""
        assert self.operator is not None
        operator = self.operator
        self._quiet()
        operator.stop()
        before, begun = self.seen.total(), time.monotonic()
        operator.start()
        count = self.size.clusters + self.size.topics + self.size.groups + self.size.users

        def all_looked_at() -> bool:
            try:
                work = operator.health()["work"]
            except OSError:  # it is busy
                return False
            return bool(work["reconciles"] >= count and work["overdueSeconds"] < 1)

        until("all looked at", all_looked_at, 600, every=0.2)
        self.found.restart_s = time.monotonic() - begun
        self.found.restart_cpu_s = operator.cpu_seconds()
        self.found.restart_statuses = self.seen.total() - before
        self.found.peak_bytes = max(self.found.peak_bytes, operator.peak_bytes())

    def _quiet(self) -> None:
        """Wait until the operator has written nothing for five seconds."""

        def nothing() -> bool:
            before = self.seen.total()
            time.sleep(5)
            return self.seen.total() - before < 3

        until("quiet", nothing, 300)

    def _steady(self, traffic: Traffic) -> None:
        assert self.operator is not None
        self.say(f"settling under traffic, then measuring for {self.size.steady_s:.0f} s")
        until("traffic", lambda: traffic.rounds >= 2, 300)
        time.sleep(SETTLE_S if self.size.steady_s >= SETTLE_S else self.size.steady_s)
        statuses = self.seen.changes.copy()
        before, cpu, begun = self.api.requests(), self.operator.cpu_seconds(), time.monotonic()
        with_operator = self._broker_requests(self.size.steady_s)
        took = time.monotonic() - begun
        asked = self.api.requests() - before
        self.found.writes = {
            f"{verb} {name}": count / took for (verb, name), count in asked.items() if is_ours(verb, name)
        }
        self.found.broker_requests = with_operator
        self.found.writes_per_s = sum(self.found.writes.values())
        self.found.statuses = dict(self.seen.changes - statuses)
        self.found.statuses_per_s = sum(self.found.statuses.values()) / took
        self.found.reads_per_s = (
            sum(count for (verb, _), count in asked.items() if verb in ("GET", "LIST")) / took
        )
        self.found.steady_cpu = (self.operator.cpu_seconds() - cpu) / took
        self.found.steady_bytes = self.operator.resident_bytes()
        self.found.peak_bytes = max(self.found.peak_bytes, self.operator.peak_bytes())

    def _broker_requests(self, seconds: float) -> dict[str, float]:
        """Requests a second to all brokers in this time, by API."""
        before, begun = answered(self.brokers), time.monotonic()
        time.sleep(seconds)
        after, took = answered(self.brokers), time.monotonic() - begun
        return {api: (count - before[api]) / took for api, count in after.items()}

    def _without_operator(self) -> None:
        """What is left of the requests to brokers is the operator's: clients and brokers send the others."""
        assert self.operator is not None
        self.operator.stop()
        self.say("requests to brokers without the operator")
        without = self._broker_requests(min(WITHOUT_S, self.size.steady_s))
        self.found.broker_requests = {
            api: rate - without.get(api, 0.0) for api, rate in self.found.broker_requests.items()
        }

    def _lag_ages(self) -> None:
        """Scrapes often, so that it misses only ages that last for less than the interval of the scrapes."""
        assert self.operator is not None
        self.say(f"the age of lags for {min(AGES_S, self.size.steady_s):.0f} s")
        deadline = time.monotonic() + min(AGES_S, self.size.steady_s)
        while time.monotonic() < deadline:
            lines = self.operator.metrics().splitlines()
            ages = [float(one.rpartition(" ")[2]) for one in lines if one.startswith(f"{LAG_AGE}{{")]
            if len(ages) != min(self.size.groups, MOST_OBJECTS):
                raise AssertionError(f"{len(ages)} groups of {self.size.groups} show the age of their lag")
            self.found.lag_age_s = max(self.found.lag_age_s, *ages)
            time.sleep(SCRAPE_S)

    def _edit(self, topics: Sequence[int]) -> list[float]:
        """Change topics, and measure the time until their status shows the change."""
        self.say(f"editing {self.size.edits} topics")
        self.seen.reflected = []
        for count, number in enumerate(random.sample(topics, min(self.size.edits, len(topics)))):
            config = {"retention.ms": str(86_400_000 + random.randint(1, 10**6) + count)}
            begun = time.monotonic()
            live = self.api.edit("Topic", self.namespace, topic_name(number), {"spec": {"config": config}})
            self.seen.edited(topic_name(number), live["metadata"]["generation"], begun)
            time.sleep(max(0.0, 1 / EDITS_PER_S - (time.monotonic() - begun)))
        deadline = time.monotonic() + EDIT_TIMEOUT_S
        while self.seen.pending() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.seen.reflected + [EDIT_TIMEOUT_S] * self.seen.pending()

    def _beside_frozen(self) -> None:
        """Some brokers hang: they accept connections and never respond."""
        frozen = range(round(self.size.brokers * self.size.frozen))
        if not frozen:
            return
        self.say(f"{len(frozen)} brokers hang")
        for number in frozen:
            self.brokers[number].pause()
        try:
            time.sleep(min(60.0, self.size.steady_s))
            topics = [
                one
                for one in range(self.size.topics)
                if one % self.size.clusters % self.size.brokers not in frozen
            ]
            self.found.edits_beside_frozen_s = self._edit(topics)
        finally:
            for number in frozen:
                self.brokers[number].resume()

    def _end(self) -> None:
        if self.operator is not None and self.operator.process is not None:
            self.operator.kill()
        for broker in self.brokers:
            broker.kill()
        run("kubectl", "delete", "namespace", self.namespace, "--wait=false")


@click.command()
@click.option("--clusters", default=50, show_default=True)
@click.option("--topics", default=5000, show_default=True)
@click.option("--groups", default=500, show_default=True)
@click.option("--users", default=0, show_default=True, help="Each has a password, four rules and a quota.")
@click.option("--brokers", default=0, help="Broker processes; the Clusters share them in turn. 0: one each.")
@click.option("--replicas", default=1, show_default=True, help="Brokers of a Cluster, and replicas.")
@click.option("--partitions", default=1, show_default=True, help="Partitions of a topic.")
@click.option("--period", default=20.0, show_default=True, help="Seconds between two records of a topic.")
@click.option(
    "--steady", default=180.0, show_default=True, help="Seconds to measure what is written for; 0: not."
)
@click.option("--edits", default=200, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures there as JSON.")
def main(
    clusters: int,
    topics: int,
    groups: int,
    users: int,
    brokers: int,
    replicas: int,
    partitions: int,
    period: float,
    steady: float,
    edits: int,
    out: Path | None,
) -> None:
    """Measure the operator with thousands of resources."""
    if replicas > 1 and brokers not in (0, clusters):
        raise click.BadParameter("Clusters of several brokers share none", param_hint="--brokers")
    size = Size(
        clusters,
        topics,
        groups,
        brokers or clusters,
        period,
        steady,
        edits,
        partitions=partitions,
        users=users,
        replicas=replicas,
    )
    api = Api.connect()
    assert isinstance(api, Api)
    folder = Path(tempfile.mkdtemp(prefix="operator-scale-"))
    try:
        found = Measurement(api, folder, size, lambda line: click.echo(line, err=True)).run()
    except BaseException:
        click.echo(f"logs stay in {folder}", err=True)
        raise
    shutil.rmtree(folder)
    click.echo(found.report(size))
    if out is not None:
        out.write_text(
            json.dumps({"machine": machine(), "size": asdict(size), "found": asdict(found)}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
