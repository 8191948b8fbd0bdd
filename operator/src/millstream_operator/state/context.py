"""The dependencies of reconciles, in parts: a function declares the parts it uses, as the type of its ``services``.

`Services` is all of them. It is built where the operator or a local runtime starts, and passed on as what each function
declares: so mypy checks that a reconcile of Topics, for example, starts no run of a load.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from ..kafka.admin import KafkaAdmin
from ..kafka.client_config import ClientConfig
from ..kafka.lag_age import OffsetTimes
from ..kafka.pools import AdminPool, OwnAdmins
from ..kubernetes.client import Kube
from ..models import BatchLoad, BatchLoadStatus, Cluster, ConsumerGroup, ListenerStatus, MirrorMaker
from ..models.cluster import Unstated
from ..models.conditions import Reason
from ..models.consumers import Consumers, Decide
from ..models.keys import Key
from ..models.load_run import ObservedRun
from ..models.mirror_reports import WorkerReport, Workers
from ..models.problem import NewCondition, Problem
from ..models.roll import Roll, RollingPod
from ..resources.images import Images, SparkRole
from ..resources.mirror import Endpoint, Mirrored
from ..resources.volumes import VolumeOwnership
from .cache import Store
from .event_budget import Budget
from .group_memory import GroupMemory
from .metrics import Metrics
from .platform import platform_client
from .status_throttle import Pace
from .upgrade_queue import UpgradeQueue

Warn = Callable[[Reason, str], None]


def now_utc() -> datetime:
    return datetime.now(UTC)


def new_nonce() -> str:
    return secrets.token_hex(4)


class BrokerRuntime(Protocol):
    """Runs the brokers of Clusters: as pods on Kubernetes, as processes on a laptop."""

    def open(self, services: ClusterParts, cluster: Cluster) -> ClusterBrokers:
        """A Cluster's brokers, for one reconcile."""


class ClusterBrokers(Protocol):
    """The brokers of one Cluster, and their ZooKeeper, during one reconcile, which calls the methods in this order."""

    cluster: Cluster
    """The Cluster as its brokers are to run now."""
    ready: int
    current: int | None
    """The number of brokers that should run by now, some of which may have to be drained; None if none may."""
    servers: Roll
    """The roll of ZooKeeper servers, for which brokers wait."""
    rebalances: bool
    """Whether `spec.rebalance` has an effect."""

    def conditions(self) -> Sequence[NewCondition]:
        """Conditions that follow from the spec alone."""

    def refusal(self) -> Problem | None:
        """Why the spec is not possible here; nothing is changed then."""

    def stage(self, warn: Warn) -> Problem | None:
        """Decide how far brokers have got to their logins: the next value of ``cluster``."""

    def prepare(self, replicas: int, warn: Warn) -> Problem | None:
        """Apply what brokers need before they start: ZooKeeper, and their addresses."""

    def names(self, replicas: int) -> Mapping[int, frozenset[str]]:
        """The names in the certificate of each broker."""

    def endpoints(self) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Host and port of each listener with TLS, by running broker."""

    def run(self, replicas: int, warn: Warn) -> Problem | None:
        """Have the brokers run, without a restart; returns why some are not ready."""

    def pods(self) -> Sequence[RollingPod]:
        """The brokers, with the reasons why they must restart."""

    def restart(self, roll: Roll) -> Problem | None:
        """Restart the broker that a roll restarts now, if any."""

    def end(self) -> tuple[NewCondition | None, bool]:
        """End the reconcile: the condition of an upgrade, if any, and whether it continues."""

    def maintain(self) -> bool:
        """Do what waits until all brokers are settled; returns whether it continues."""

    def addresses(self) -> tuple[str | None, tuple[ListenerStatus, ...] | None]:
        """The bootstrap address and the listeners, for the status."""


class Workloads(Protocol):
    """Runs the consumers of ConsumerGroups: as Deployments on Kubernetes, as processes on a laptop."""

    def address_of(self, services: GroupParts, cluster: Cluster) -> str:
        """The address at which consumers reach a Cluster's brokers."""

    def run(
        self,
        services: GroupParts,
        group: ConsumerGroup,
        cluster: Cluster,
        decide: Decide,
        *,
        paused: bool,
        is_reachable: bool,
    ) -> Consumers:
        """Apply the resource's workload, unless it is paused; returns its state. ``is_reachable``: whether brokers
        respond."""

    def stop(self, services: GroupParts, group: ConsumerGroup) -> str:
        """Stop the consumers. Returns what it waits for, empty once none is left."""


class RunLauncher(Protocol):
    """Starts the runs of BatchLoads and observes them: as pods on Kubernetes, as processes on a laptop."""

    def refusal(self, services: LoadParts, load: BatchLoad) -> Problem | None:
        """Why it starts no run of the load in its present form; None if it may."""

    def missing(self, load: BatchLoad) -> Problem | None:
        """What is not installed that a run needs; None if nothing is, as far as is known before the start."""

    def start(self, services: LoadParts, load: BatchLoad, cluster: Cluster) -> ObservedRun | Problem:
        """Start the last run of the load, which is in the stored status; it may return only when the run has ended."""

    def observe(self, services: LoadParts, load: BatchLoad) -> ObservedRun | None:
        """The state of the load's last run; None if nothing runs it, so that it must be started."""

    def log(self, services: LoadParts, load: BatchLoad) -> Sequence[str]:
        """The end of the log of the last run's driver, as far as there is one."""

    def clean(self, services: LoadParts, load: BatchLoad, status: BatchLoadStatus) -> None:
        """Delete what was made for runs that the status does not keep."""

    def path_of_rows(self, load: BatchLoad) -> str:
        """The folder of the rows where runs are started; empty if it is the one in the spec."""


class MirrorRuntime(Protocol):
    """Runs the workers of MirrorMakers: as a Deployment on Kubernetes, as processes on a laptop."""

    def address_of(self, cluster: Cluster) -> str:
        """The address at which workers reach a Cluster's brokers."""

    def run(
        self, services: MirrorParts, mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint
    ) -> Workers | Problem:
        """Have the workers run as specified; returns their state, or why they cannot run so."""

    def observe(self, services: MirrorParts, mirror: MirrorMaker) -> Workers:
        """The state of the workers, whatever they run with."""

    def stop(self, services: MirrorParts, mirror: MirrorMaker) -> int:
        """Stop the workers. Returns how many are left to end."""

    def count(self, services: MirrorParts, mirror: MirrorMaker) -> int:
        """The number of workers, with those that are about to end."""

    def reports(self, services: MirrorParts, mirror: MirrorMaker) -> tuple[WorkerReport, ...]:
        """The reports of all workers that respond."""

    def running(self, services: MirrorParts, key: Key) -> Mirrored | None:
        """What a MirrorMaker's workers mirror, if that may differ from its spec; None without workers."""


@dataclass(frozen=True)
class Kubernetes:
    kube: Kube


@dataclass(frozen=True)
class Clock:
    now: Callable[[], datetime] = now_utc


@dataclass(frozen=True)
class Resources:
    """The custom resources that this release reconciles."""

    store: Store = field(default_factory=Store)
    acts_in: Callable[[str], bool] = lambda namespace: True
    """Whether this release acts in a namespace (see manager/claims.py). Raises KubeError if that is unknown."""


@dataclass(frozen=True)
class Statuses(Resources, Clock, Kubernetes):
    """Where the results of reconciles are reported: statuses, Events and metrics."""

    pace: Pace | None = field(default_factory=Pace)
    """Limits status writes that only change a number; None means no limit."""
    metrics: Metrics = field(default_factory=Metrics)
    events: Budget = field(default_factory=Budget)


@dataclass(frozen=True)
class Brokers(Kubernetes):
    """Connections to the brokers of Clusters."""

    admins: AdminPool = field(default_factory=AdminPool)
    reach: Callable[[Kube, Cluster], ClientConfig] = platform_client
    """How the operator connects to a Cluster's brokers; outside Kubernetes they have other addresses."""

    def client_of(self, cluster: Cluster) -> ClientConfig:
        """How the operator connects to a Cluster's brokers."""
        return self.reach(self.kube, cluster)

    def address_of(self, cluster: Cluster) -> str:
        """The address at which the operator reaches a Cluster's brokers."""
        return self.client_of(cluster).bootstrap

    def brokers_of(self, cluster: Cluster) -> KafkaAdmin:
        """The Cluster's brokers."""
        found = self.client_of(cluster)
        return self.admins.at(found.bootstrap, found.security)


@dataclass(frozen=True)
class Parts(Brokers, Statuses):
    """What the reconcile of every kind uses."""

    has_pods: bool = True
    """Whether clients are pods, which mount Secrets; outside Kubernetes they are not."""


@dataclass(frozen=True)
class Installation(Kubernetes):
    """Settings of the operator's release that apply to all objects it creates."""

    images: Images = field(default_factory=Images)
    volume_ownership: VolumeOwnership = VolumeOwnership.AUTO
    new_clusters: Unstated = Unstated.OPEN
    """What listeners of new Clusters are that do not state it."""

    @property
    def release(self) -> str:
        """Identifies the settings that this operator gives every Cluster."""
        return self.images.release(self.volume_ownership)


@dataclass(frozen=True)
class ClusterMemory:
    """What was seen of Clusters, so that it is not checked again."""

    no_policies: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Clusters without NetworkPolicies, by address: the uid and generation of the last check."""
    served: dict[str, str] = field(default_factory=dict)
    """The certificates that all brokers of a Cluster were seen to serve, by its uid."""


@dataclass(frozen=True)
class ClusterParts(Installation, ClusterMemory, Parts):
    broker_runtime: BrokerRuntime = field(kw_only=True)
    upgrade_queue: UpgradeQueue = field(default_factory=UpgradeQueue)
    # The namespace of the operator's pod, for NetworkPolicies; None outside Kubernetes.
    operator_namespace: str | None = None


@dataclass(frozen=True)
class GroupParts(Installation, Parts):
    workloads: Workloads = field(kw_only=True)
    offset_times: dict[str, OffsetTimes] = field(default_factory=dict)
    """Known ages of records, by the address of their Cluster."""
    group_memories: dict[str, GroupMemory] = field(default_factory=dict)
    """The operator's memory of ConsumerGroups, by uid."""


@dataclass(frozen=True)
class MirrorParts(Installation, Parts):
    mirrors: MirrorRuntime = field(kw_only=True)
    outside: OwnAdmins = field(default_factory=OwnAdmins)
    """Connections to clusters that MirrorMakers name by address, for as long as a promotion needs them."""


@dataclass(frozen=True)
class LoadParts(Installation, Parts):
    launcher: RunLauncher = field(kw_only=True)
    spark_role: SparkRole = field(default_factory=SparkRole)
    load_times: dict[str, OffsetTimes] = field(default_factory=dict)
    """Known ages of records by the uid of a BatchLoad, since they are reconciled in parallel."""
    nonce: Callable[[], str] = new_nonce
    """A random part of names that must not come twice, whatever was restored."""


@dataclass(frozen=True)
class Services(ClusterParts, GroupParts, MirrorParts, LoadParts):
    """All parts, for the composition root and the manager."""

    def obey(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` before each write to Kubernetes or brokers; it raises if writing is not allowed."""
        self.kube.fence = self.admins.fence = self.outside.fence = fence

    def forget_brokers(self, address: str) -> None:
        """Drop the connection to a deleted Cluster."""
        self.admins.forget(address)
        self.offset_times.pop(address, None)
        self.no_policies.pop(address, None)
