"""Measures one operator with thousands of resources: time until ready, CPU and memory, and writes.

    python -m millstream_harness.operator_scale --clusters 50 --topics 5000 --groups 500

needs an API server (KUBECONFIG) with a controller manager and no nodes. API server, controller manager,
operator, brokers (a process for each Cluster, or --brokers of them in turn), topics, records and committed offsets are
real. But there are no kubelets, so ``Kubelets`` reports each broker's pod as ready, and the operator gets the brokers'
addresses; groups have no members, and another client commits for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec
from confluent_kafka import Producer

from millstream_operator.kafka_admin import KafkaAdmin
from millstream_operator.kafka_records import AdminError, Partition
from millstream_operator.kube import Kube, KubeError, Manifest, path_of
from millstream_operator.metric_table import MOST_OBJECTS
from millstream_operator.models import API_VERSION

from .broker import BrokerProcess
from .kube import run, until
from .manifests import cluster, group, topic
from .operator import OperatorProcess

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("Cluster", "Topic", "ConsumerGroup")
CREATORS = 4
RECORD = b"x" * 100
SETTLE_S = 90.0
AGES_S = 60.0
SCRAPE_S = 0.5
LAG_AGE = "millstream_group_lag_age_seconds"
EDITS_PER_S = 1.0
EDIT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Size:
    clusters: int
    topics: int
    groups: int
    brokers: int
    period_s: float = 20.0
    """Seconds between two records of a topic, and two commits of a group."""
    steady_s: float = 180.0
    edits: int = 200
    frozen: float = 0.2
    """Share of the brokers that stop responding while edits are measured once more."""
    partitions: int = 1
    """Number of each topic's partitions. Each gets a record in each period."""


@dataclass
class Found:
    """The measurements. Times in seconds, memory in bytes."""

    ready_s: float = 0.0
    ready_cpu_s: float = 0.0
    """The operator's CPU time until ready: on an idle core, it takes hardly longer."""
    restart_s: float = 0.0
    restart_cpu_s: float = 0.0
    restart_statuses: int = 0
    """Statuses written after a restart although nothing had changed."""
    peak_bytes: int = 0
    steady_bytes: int = 0
    steady_cpu: float = 0.0
    """As a share of one core."""
    lag_age_s: float = 0.0
    """The greatest age of a group's lag that the metrics showed under traffic."""
    writes_per_s: float = 0.0
    statuses_per_s: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    """Number of statuses written under traffic, by kind."""
    reads_per_s: float = 0.0
    writes: dict[str, float] = field(default_factory=dict)
    """Per second, by verb and kind."""
    edits_s: list[float] = field(default_factory=list)
    edits_beside_frozen_s: list[float] = field(default_factory=list)

    def report(self, size: Size) -> str:
        lines = [
            f"{size.clusters} Clusters, {size.topics} Topics, {size.groups} ConsumerGroups, "
            f"{size.brokers} broker processes, a record on every topic each {size.period_s:.0f} s",
            f"all ready after                   {self.ready_s:6.1f} s, of CPU {self.ready_cpu_s:.1f} s",
            f"all looked at after a restart     {self.restart_s:6.1f} s, of CPU {self.restart_cpu_s:.1f} s, "
            f"{self.restart_statuses} statuses written",
            f"memory: peak                      {self.peak_bytes / 1e6:6.1f} MB",
            f"memory: steady                    {self.steady_bytes / 1e6:6.1f} MB",
            f"CPU: steady                       {self.steady_cpu * 100:6.1f} % of a core",
            f"writes to the API server: steady  {self.writes_per_s:6.2f} a second",
            *(f"    {name:30} {rate:6.2f}" for name, rate in sorted(self.writes.items()) if rate >= 0.005),
            f"statuses among them               {self.statuses_per_s:6.2f} a second",
            f"reads from it: steady             {self.reads_per_s:6.2f} a second",
            f"a group's lag: at most            {self.lag_age_s:6.1f} s old",
            f"an edit is reflected after        {quantiles(self.edits_s)}",
            f"  beside brokers that hang        {quantiles(self.edits_beside_frozen_s)}",
        ]
        return "\n".join(lines)


def quantiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "(not measured)"
    return (
        f"median {statistics.median(seconds):.2f} s, p99 {p99(seconds):.2f} s, at most {max(seconds):.2f} s"
    )


def p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))]


class Api(Kube):
    """The API server, with requests that only a measurement sends."""

    def post(self, manifest: Mapping[str, Any], namespace: str) -> None:
        path = path_of(manifest["apiVersion"], manifest["kind"], namespace)
        self._request("POST", path, None, manifest)

    def edit(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Manifest:
        path = path_of(API_VERSION, kind, namespace, name)
        return self._request("PATCH", path, None, change, "application/merge-patch+json")

    def watch(self, kind: str, namespace: str) -> Iterator[bytes]:
        """Lines of a watch, until the server ends it."""
        url = f"{self._host}{path_of(API_VERSION, kind, namespace)}?watch=true"
        answer = self._pool.request("GET", url, preload_content=False, timeout=None)
        rest = b""
        for chunk in answer.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def requests(self) -> Counter[tuple[str, str]]:
        """Number of requests to the API server, by verb and resource (with its subresource)."""
        text = self._pool.request("GET", f"{self._host}/metrics").data.decode()
        found: Counter[tuple[str, str]] = Counter()
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, _, count = line[len("apiserver_request_total{") :].partition("} ")
                known = dict(one.split("=", 1) for one in labels.replace('"', "").split(",") if "=" in one)
                name = "/".join(filter(None, (known.get("resource", ""), known.get("subresource", ""))))
                found[known.get("verb", ""), name] += int(float(count))
        return found


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    conditions: tuple[_Condition, ...] = ()


class _Metadata(msgspec.Struct):
    name: str
    generation: int = 0


class _Object(msgspec.Struct):
    metadata: _Metadata
    status: _Status = _Status()


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Seen:
    """Watches resources: which are ready, and when the status showed a generation."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.ready: dict[str, set[str]] = defaultdict(set)
        self.changes: Counter[str] = Counter()
        self._edited: dict[str, tuple[int, float]] = {}
        self.reflected: list[float] = []
        self._lock = threading.Lock()
        for kind in KINDS:
            threading.Thread(target=self._follow, args=(api, kind, namespace), daemon=True).start()

    def edited(self, name: str, generation: int, begun: float) -> None:
        with self._lock:
            self._edited[name] = generation, begun

    def total(self) -> int:
        """Number of changes of all resources so far."""
        return sum(self.changes.values())

    def pending(self) -> int:
        return len(self._edited)

    def _follow(self, api: Api, kind: str, namespace: str) -> None:
        while True:
            with contextlib.suppress(Exception):  # the server regularly ends a watch
                for line in api.watch(kind, namespace):
                    event = msgspec.json.decode(line, type=_Event)
                    if event.type in ("ADDED", "MODIFIED"):
                        self._saw(kind, msgspec.json.decode(event.object, type=_Object))
                        self.changes[kind] += event.type == "MODIFIED"
            time.sleep(0.5)

    def _saw(self, kind: str, one: _Object) -> None:
        name, now = one.metadata.name, time.monotonic()
        ready = any((c.type, c.status) == ("Ready", "True") for c in one.status.conditions)
        (self.ready[kind].add if ready else self.ready[kind].discard)(name)
        if kind == "Topic" and name in self._edited:
            with self._lock:
                generation, begun = self._edited[name]
                if one.status.observed_generation >= generation:
                    del self._edited[name]
                    self.reflected.append(now - begun)


class Kubelets:
    """Replaces nodes, of which there are none: reports every pod of a broker as ready."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(KubeError):
                for pod in self._api.list("v1", "Pod", self._namespace, {}):
                    if (pod.get("status") or {}).get("phase") != "Running":
                        self._make_ready(pod)
            time.sleep(1.0)

    def _make_ready(self, pod: Manifest) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": stamp}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        status = {"phase": "Running", "conditions": conditions, "startTime": stamp}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        self._api.apply(manifest, "status")


class Traffic:
    """Produces a record to every topic and a commit for every group in each period."""

    def __init__(self, size: Size, brokers: Sequence[BrokerProcess]) -> None:
        self._size, self._brokers = size, brokers
        self.stopped = threading.Event()
        self.rounds = 0
        for number in range(len(brokers)):
            threading.Thread(target=self._run, args=(number,), daemon=True).start()

    def _run(self, number: int) -> None:
        """The traffic of one broker."""
        size, broker = self._size, self._brokers[number]
        mine = [one for one in range(size.topics) if one % size.clusters % size.brokers == number]
        groups = [one for one in range(size.groups) if one % size.clusters % size.brokers == number]
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "log_level": 0})
        admin = KafkaAdmin(broker.bootstrap, "traffic")
        produced: Counter[str] = Counter()
        self.stopped.wait(random.random() * size.period_s)
        while not self.stopped.is_set():
            begun = time.monotonic()
            for one in mine:
                for partition in range(size.partitions):
                    producer.produce(topic_name(one), RECORD, partition=partition)
                produced[topic_name(one)] += 1
            producer.flush(size.period_s)
            with contextlib.suppress(AdminError):
                for one in groups:
                    read = topic_of_group(size, one)
                    at = max(0, produced[read] - random.randint(0, 3))
                    offsets = {Partition(read, index): at for index in range(size.partitions)}
                    admin.commit(f"g-{one:04}", offsets)
            self.rounds += number == 0
            self.stopped.wait(max(0.0, size.period_s - (time.monotonic() - begun)))
        admin.close()


def topic_name(number: int) -> str:
    return f"t-{number:05}"


def topic_of_group(size: Size, number: int) -> str:
    """One of the topics of the group's Cluster."""
    return topic_name(number % size.topics)


def manifests(size: Size) -> Iterator[Manifest]:
    def of(number: int) -> Mapping[str, str]:
        return {"name": f"c-{number % size.clusters:02}"}

    for number in range(size.clusters):
        yield cluster(f"c-{number:02}", brokers={"storage": {"size": "1Gi"}})
    for number in range(size.topics):
        yield topic(
            topic_name(number),
            clusterRef=of(number),
            partitions=size.partitions,
            config={"retention.ms": "86400000"},
        )
    for number in range(size.groups):
        read, limits = topic_of_group(size, number), {"records": 1_000_000, "seconds": 600}
        yield group(f"g-{number:04}", clusterRef=of(number), topics=[read], startAt="Earliest", maxLag=limits)


class Measurement:
    """Brokers, an operator and its measurements; ``run`` does all steps in turn."""

    def __init__(self, api: Api, folder: Path, size: Size, say: Callable[[str], None]) -> None:
        self.folder, self.size, self.say = folder, size, say
        self.namespace = f"scale-{os.getpid()}-{time.monotonic_ns()}"
        self.found = Found()
        self.api = api
        self.brokers = [
            BrokerProcess(folder / f"broker-{number}", {"broker.id": str(number), "log.retention.hours": "1"})
            for number in range(size.brokers)
        ]
        self.operator: OperatorProcess | None = None

    def run(self) -> Found:
        run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        run("kubectl", "create", "namespace", self.namespace)
        try:
            self.say(f"starting {len(self.brokers)} brokers")
            with ThreadPoolExecutor(CREATORS) as threads:
                list(threads.map(lambda broker: broker.start(), self.brokers))
            self._create()
            self._first_start()
            self._restart()
            traffic = Traffic(self.size, self.brokers)
            self._steady(traffic)
            self._lag_ages()
            self.found.edits_s = self._edit(range(self.size.topics))
            self._beside_frozen()
            traffic.stopped.set()
            return self.found
        finally:
            self._end()

    def _create(self) -> None:
        self.seen = Seen(self.api, self.namespace)
        Kubelets(self.api, self.namespace)
        all_of_it = list(manifests(self.size))
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
        wanted = {"Cluster": self.size.clusters, "Topic": self.size.topics, "ConsumerGroup": self.size.groups}
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
        count = self.size.clusters + self.size.topics + self.size.groups

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
        time.sleep(self.size.steady_s)
        took = time.monotonic() - begun
        asked = self.api.requests() - before
        self.found.writes = {
            f"{verb} {name}": count / took for (verb, name), count in asked.items() if is_ours(verb, name)
        }
        self.found.writes_per_s = sum(self.found.writes.values())
        self.found.statuses = dict(self.seen.changes - statuses)
        self.found.statuses_per_s = sum(self.found.statuses.values()) / took
        self.found.reads_per_s = (
            sum(count for (verb, _), count in asked.items() if verb in ("GET", "LIST")) / took
        )
        self.found.steady_cpu = (self.operator.cpu_seconds() - cpu) / took
        self.found.steady_bytes = self.operator.resident_bytes()
        self.found.peak_bytes = max(self.found.peak_bytes, self.operator.peak_bytes())

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
            if broker.process is not None:
                broker.kill()
        run("kubectl", "delete", "namespace", self.namespace, "--wait=false")


def is_ours(verb: str, name: str) -> bool:
    """Whether the operator made this write.

    Apart from it only controllers write, and these never apply; they write some of the Events. The stand-in for
    kubelets writes pods' statuses, and edits are patches.
    """
    if name.startswith(("pods", "namespaces", "serviceaccounts")):
        return False
    return verb == "APPLY" or (verb, name) in (("POST", "events"), ("PUT", "leases"))


@click.command()
@click.option("--clusters", default=50, show_default=True)
@click.option("--topics", default=5000, show_default=True)
@click.option("--groups", default=500, show_default=True)
@click.option("--brokers", default=0, help="Broker processes; the Clusters share them in turn. 0: one each.")
@click.option("--partitions", default=1, show_default=True, help="Partitions of a topic.")
@click.option("--period", default=20.0, show_default=True, help="Seconds between two records of a topic.")
@click.option("--steady", default=180.0, show_default=True, help="Seconds to measure what is written for.")
@click.option("--edits", default=200, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures there as JSON.")
def main(
    clusters: int,
    topics: int,
    groups: int,
    brokers: int,
    partitions: int,
    period: float,
    steady: float,
    edits: int,
    out: Path | None,
) -> None:
    """Measure the operator with thousands of resources."""
    size = Size(clusters, topics, groups, brokers or clusters, period, steady, edits, partitions=partitions)
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
        out.write_text(json.dumps({"size": asdict(size), "found": asdict(found)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
