"""How much one operator is given, and what is measured of it (operator_scale.py)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    users: int = 0
    replicas: int = 1
    """Brokers of each Cluster, and replicas of each partition. With several, ``brokers`` counts clusters of them."""


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
    broker_requests: dict[str, float] = field(default_factory=dict)
    """Per second under traffic, by API: what the brokers answered with the operator, less what they did without it."""
    writes_per_s: float = 0.0
    statuses_per_s: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    """Number of statuses written under traffic, by kind."""
    reads_per_s: float = 0.0
    writes: dict[str, float] = field(default_factory=dict)
    """Per second, by verb and kind."""
    edits_s: list[float] = field(default_factory=list)
    edits_beside_frozen_s: list[float] = field(default_factory=list)

    @property
    def broker_requests_per_s(self) -> float:
        return sum(self.broker_requests.values())

    def report(self, size: Size) -> str:
        lines = [
            f"{size.clusters} Clusters, {size.topics} Topics, {size.groups} ConsumerGroups, {size.users} Users, "
            f"{size.brokers * size.replicas} broker processes, a record on every topic each {size.period_s:.0f} s",
            f"all ready after                   {self.ready_s:6.1f} s, of CPU {self.ready_cpu_s:.1f} s",
            f"all looked at after a restart     {self.restart_s:6.1f} s, of CPU {self.restart_cpu_s:.1f} s, "
            f"{self.restart_statuses} statuses written",
            f"memory: peak                      {self.peak_bytes / 1e6:6.1f} MB",
            *(self._in_use(size) if size.steady_s else ()),
        ]
        return "\n".join(lines)

    def _in_use(self, size: Size) -> list[str]:
        return [
            f"memory: steady                    {self.steady_bytes / 1e6:6.1f} MB",
            f"CPU: steady                       {self.steady_cpu * 100:6.1f} % of a core",
            f"writes to the API server: steady  {self.writes_per_s:6.2f} a second",
            *rates(self.writes),
            f"statuses among them               {self.statuses_per_s:6.2f} a second",
            f"reads from it: steady             {self.reads_per_s:6.2f} a second",
            f"requests to brokers: steady       {self.broker_requests_per_s:6.2f} a second",
            *rates(self.broker_requests),
            f"a group's lag: at most            {self.lag_age_s:6.1f} s old",
            f"an edit is reflected after        {quantiles(self.edits_s)}",
            f"  beside brokers that hang        {quantiles(self.edits_beside_frozen_s)}",
        ]


def rates(by_name: Mapping[str, float]) -> list[str]:
    return [f"    {name:30} {rate:6.2f}" for name, rate in sorted(by_name.items()) if abs(rate) >= 0.005]


def quantiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "(not measured)"
    return (
        f"median {statistics.median(seconds):.2f} s, p99 {p99(seconds):.2f} s, at most {max(seconds):.2f} s"
    )


def p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))]
