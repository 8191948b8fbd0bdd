"""One pass over the resources of a kind: the counterpart of the operator's controllers, with processes for pods.

The operator's own functions reconcile all kinds, on the local brokers. If a step fails for one resource, its Ready
condition reports that, and the next resource follows.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..kafka.pools import AdminPool
from ..models import (
    BatchLoad,
    Cluster,
    ConsumerGroup,
    MirrorMaker,
    ResourceT,
    Run,
    Status,
    Topic,
    User,
    decode_as,
)
from ..models import Resource as Record
from ..models.conditions import ConditionType, Reason
from ..models.keys import Key
from ..models.load_run import RunState, in_flight
from ..models.problem import PAUSED, NewCondition, Problem, condition_before, is_paused
from ..models.words import count_of
from ..reconcile.cluster import plan as cluster_plan
from ..reconcile.cluster.apply import READY_INTERVAL_S, findings_of, reconcile_cluster, report
from ..reconcile.cluster.kafka import View
from ..reconcile.common.reference import cluster_key, find_cluster
from ..reconcile.group.apply import SOON_S as GROUP_SOON_S
from ..reconcile.group.apply import reconcile_groups
from ..reconcile.group.workload import has_workload
from ..reconcile.load.apply import AT_ONCE_S, reconcile_load
from ..reconcile.load.conditions import failure
from ..reconcile.mirror import plan as mirror_plan
from ..reconcile.mirror.apply import reconcile_mirror
from ..reconcile.mirror.promotion import Promotion, is_over, requested
from ..reconcile.mirror.promotion_conditions import condition as promotion_condition
from ..reconcile.topic.apply import reconcile_topics
from ..reconcile.user.apply import reconcile_users
from ..state.cache import Store
from ..state.context import Services
from ..state.status import write_status
from . import spark
from .api import LocalApi
from .brokers import LocalBrokers
from .clusters import LocalCluster
from .folder import DataFolder
from .late import late_status
from .loads import LocalLauncher
from .logins import client_of
from .mirrors import LocalMirror, LocalMirrors
from .observing import ObservingPool
from .secrets import Secrets
from .state import Resource, State
from .user_secrets import UserSecrets
from .workloads import LocalWorkloads

SCHEDULE = "schedule/default/loads/0"
"""The process that runs the schedules of loads."""
CLUSTER_SETTLE_S = 60.0
"""How long to wait for the replicas of a broker that was restarted, and until brokers serve new certificates."""
SETTLE_S = 10.0  # for topics that were just created
# The reason of a failed `up` to start missing processes.
START_FAILED = {
    Reason.ZOOKEEPER_NOT_READY: Reason.ZOOKEEPER_NOT_READY,
    Reason.BROKERS_STARTING: Reason.BROKER_FAILED,
}
# Reasons that `status` finds without knowing the cause.
UNEXPLAINED = frozenset((Reason.REFUSED, Reason.WORKERS_STARTING))
Reconcile = Callable[[Services, Sequence[Any]], Mapping[Key, float]]


class LocalReconciler:
    """One `up` (or, with an observing pool, one `status`)."""

    def __init__(
        self,
        state: State,
        data: Path,
        admins: AdminPool,
        say: Callable[[str], None],
        progress: Callable[[spark.Progress], None],
        save: Callable[[], None],
        secrets: Secrets | None = None,
    ) -> None:
        self.state = state
        self.secrets = secrets or {}
        self.data = data
        self.say = say
        self.progress = progress
        self.save = save
        self.folder = DataFolder(data, state, save)
        self.secret_files = UserSecrets(data / "users")
        self.retry = True
        """Whether failed runs are repeated although their load is unchanged."""
        self.failures: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.broker_runtime = LocalBrokers(self.folder, self.secrets, self.secret_files, say)
        self.mirror_runtime = LocalMirrors(self.folder, self.secrets, say)
        self.services = Services(
            kube=LocalApi(state, self.secret_files),
            store=Store(checks=not isinstance(admins, ObservingPool)),  # `up` has checked what `status` reads
            admins=admins,
            pace=None,
            has_pods=False,
            reach=lambda kube, cluster: client_of(kube, LocalCluster(self.folder, cluster)),
            broker_runtime=self.broker_runtime,
            workloads=LocalWorkloads(self.folder, changes=not isinstance(admins, ObservingPool)),
            mirrors=self.mirror_runtime,
            launcher=LocalLauncher(self.folder, say, progress),
        )
        for resource in state.resources.values():
            self.services.store.put(resource)

    @classmethod
    def observe(cls, state: State, data: Path, keys: Sequence[str]) -> None:
        """Update every status, and change nothing else."""
        pool = ObservingPool()
        reconciler = cls(state, data, pool, lambda line: None, lambda at: None, lambda: None)
        try:
            for cluster in reconciler._of(Cluster, keys):
                reconciler._observe_cluster(cluster)
            before = {key: copy.deepcopy(resource) for key, resource in state.resources.items()}
            reconciler._reconcile(Topic, reconcile_topics, keys)
            reconciler._reconcile(ConsumerGroup, reconcile_groups, keys)
            for mirror in reconciler._of(MirrorMaker, keys):
                workers = LocalMirror(reconciler.folder, mirror).workers()
                last = mirror.status.last_promotion
                promotion = Promotion(mirror, last, promotion_condition(mirror, last) or _promoted_of(mirror))
                reconciler._write(
                    mirror, mirror_plan.status_of(mirror, workers, reconciler.services.now(), promotion)
                )
            if (daemon := state.daemons.get(SCHEDULE)) is None or not daemon.serves:
                for load in reconciler._of(BatchLoad, keys):
                    if load.spec.schedule is not None and not load.spec.schedule.suspend:
                        reconciler._write(load, late_status(load, reconciler.services.now()))
            for key, resource in state.resources.items():
                keep_cause(before[key], resource)
        finally:
            pool.close()

    def ensure(self, kind: str, keys: Sequence[str]) -> None:
        """Reconcile the resources of a kind, those among ``keys``."""
        steps = {
            Cluster.KIND: self.clusters,
            User.KIND: self.users,
            Topic.KIND: self.topics,
            ConsumerGroup.KIND: self.groups,
            MirrorMaker.KIND: self.mirrors,
            BatchLoad.KIND: self.loads,
        }
        steps[kind](keys)

    # Clusters

    def clusters(self, keys: Sequence[str]) -> None:
        for cluster in self._of(Cluster, keys):
            seconds = reconcile_cluster(self.services, cluster)
            before, deadline = self._pids(cluster), time.monotonic() + CLUSTER_SETTLE_S
            while (
                _continues(after := self._get(Cluster, _key(cluster)), seconds)
                and time.monotonic() < deadline
            ):
                time.sleep(0.1)
                seconds = reconcile_cluster(self.services, after)
                if (pids := self._pids(after)) != before:
                    before, deadline = pids, time.monotonic() + CLUSTER_SETTLE_S
            self._say_cluster(after)

    def _pids(self, cluster: Cluster) -> list[int]:
        """The processes of a Cluster's brokers."""
        local = LocalCluster(self.folder, cluster)
        return [local.pid(broker) for broker in local.running()]

    def _say_cluster(self, cluster: Cluster) -> None:
        blocked = condition_before(cluster, ConditionType.ROLLING_UPDATE)
        ready = condition_before(cluster, ConditionType.READY)
        if ready is not None and not ready[1]:
            self._failed(cluster, Problem(ready[2], ready[3]))
        elif is_paused(cluster):
            self.say(f"{_title(cluster)}: {PAUSED[3]}")
        elif blocked is not None:
            names = ", ".join(map(str, LocalCluster(self.folder, cluster).stale()))
            words = f"these brokers run with their old configuration: {names}: {blocked[3]}"
            self._failed(cluster, Problem(Reason.BROKER_FAILED, words))
        else:
            started = self.broker_runtime.started.get(_key(cluster))
            self.say(f"{_title(cluster)}: {'started' if started else 'runs'} at {cluster.status.bootstrap}")

    def _observe_cluster(self, cluster: Cluster) -> None:
        """Write the status of a Cluster without any change."""
        brokers = self.broker_runtime.open(self.services, cluster)
        findings = findings_of(brokers)
        findings.problem = (
            cluster_plan.refusal(brokers.cluster) or brokers.refusal() or self._missing(brokers.cluster)
        )
        findings.strays = View(self.services.brokers_of(cluster) if brokers.ready else None).strays()
        report(self.services, brokers, findings)

    def _missing(self, cluster: Cluster) -> Problem | None:
        """The missing processes, in the words of the last `up` if it could not start them."""
        missing = LocalCluster(self.folder, cluster).missing()
        if missing is not None:
            failed = START_FAILED[missing.reason]
            for condition in cluster.status.conditions or ():
                if (condition.type, condition.status) == (ConditionType.READY, "False"):
                    return Problem(failed, condition.message) if condition.reason == failed else missing
        return missing

    # Users, topics and groups: the operator's own reconciles

    def users(self, keys: Sequence[str]) -> None:
        users = self._of(User, keys)
        if users:
            self.folder.make("users", private=True)
        for user in users:
            key = user.password_key
            if key is None or user.generates_password:
                continue
            if (values := self.secrets.get((user.namespace, key.name))) is not None:
                named = {key.key: values[key.key]} if key.key in values else {}
                self.secret_files.take(user.namespace, key.name, named)
        self._reconcile(User, reconcile_users, keys)
        self._tell(User, keys)

    def topics(self, keys: Sequence[str]) -> None:
        self._reconcile(Topic, reconcile_topics, keys)
        self._tell(Topic, keys)

    def groups(self, keys: Sequence[str]) -> None:
        self._reconcile(ConsumerGroup, reconcile_groups, keys)
        self._tell(ConsumerGroup, keys)

    def reconcile_one(self, key: str) -> None:
        """Reconcile one User, Topic or ConsumerGroup, even one that is being deleted."""
        self.services.store.put(self.state.resources[key])
        if key.startswith("User/"):
            self._reconcile(User, reconcile_users, [key])
        elif key.startswith("Topic/"):
            self._reconcile(Topic, reconcile_topics, [key])
        else:
            self._reconcile(ConsumerGroup, reconcile_groups, [key])

    def stop_workload(self, key: str) -> bool:
        """Stop the consumers of a ConsumerGroup that is to be deleted. Returns whether it has a workload."""
        group = self._get(ConsumerGroup, Key(*key.split("/")))
        if not has_workload(group):
            return False
        self.services.workloads.stop(self.services, group)
        return True

    def stays(self, key: str) -> None:
        """Report why a resource that was to be deleted still exists."""
        kind, _, name = key.split("/")
        ready = _ready_of(self.state.resources[key]) or {}
        self.failures[key] = why = ready.get("message", "its data is not deleted")
        self.say(f"{kind} {name}: not deleted: {why}")

    def _reconcile(
        self, kind: type[User] | type[Topic] | type[ConsumerGroup], reconcile: Reconcile, keys: Sequence[str]
    ) -> None:
        by_cluster: dict[object, list[Any]] = defaultdict(list)
        for resource in self._of(kind, keys):
            by_cluster[cluster_key(resource.namespace, resource.spec.cluster_ref)].append(resource)
        for resources in by_cluster.values():
            running = self._runs(resources[0])
            deadline = time.monotonic() + (SETTLE_S if running else 0.0)
            # A group's reset waits for consumers that are being stopped.
            longest = GROUP_SOON_S if kind is ConsumerGroup else 1.0
            while soon := [key for key, s in reconcile(self.services, resources).items() if s <= longest]:
                if time.monotonic() > deadline:
                    break
                resources = [self._get(kind, key) for key in soon]
                time.sleep(0.1)

    def _runs(self, resource: User | Topic | ConsumerGroup) -> bool:
        cluster = find_cluster(self.services, resource.namespace, resource.spec.cluster_ref)
        return isinstance(cluster, Cluster) and bool(LocalCluster(self.folder, cluster).running())

    # Mirrors

    def mirrors(self, keys: Sequence[str]) -> None:
        for mirror in self._of(MirrorMaker, keys):
            reconcile_mirror(self.services, mirror)
            deadline = time.monotonic() + SETTLE_S
            while _promotes(mirror := self._get(MirrorMaker, _key(mirror))) and time.monotonic() < deadline:
                time.sleep(0.1)
                reconcile_mirror(self.services, mirror)
            self._say_mirror(mirror)

    def _say_mirror(self, mirror: MirrorMaker) -> None:
        promoted = condition_before(mirror, ConditionType.PROMOTED)
        if mirror.spec.promote is not None and promoted is not None:
            _, well, reason, words = promoted
            if well:
                self.say(f"{_title(mirror)}: {words}")
            else:
                self._failed(mirror, Problem(reason, words))
        if is_over(mirror):
            if mirror.status.replicas:
                words = "replicas that workers created last may be read-only: the target does not answer"
                self._failed(mirror, Problem(Reason.TARGET_UNREACHABLE, words))
            self._tell(MirrorMaker, ["/".join(_key(mirror))])
        elif is_paused(mirror):  # running workers keep their configuration
            self.say(f"{_title(mirror)}: {PAUSED[3]}")
        elif (started := self.mirror_runtime.started.get(_key(mirror))) is not None:
            number = count_of(mirror.spec.replicas, "worker")
            self.say(f"{_title(mirror)}: {'started' if started else 'runs'} ({number})")
            self._warn(MirrorMaker, _key(mirror))
        else:
            self._tell(MirrorMaker, ["/".join(_key(mirror))])

    # Loads

    def loads(self, keys: Sequence[str]) -> None:
        for load in self._of(BatchLoad, keys):
            retry, again, ended = self.retry, True, False
            while again:  # requests of an edit or the schedule meanwhile
                before = load.status.last_run
                seconds = reconcile_load(self.services, load, retry=retry)
                load, retry = self._get(BatchLoad, _key(load)), False
                run = load.status.last_run
                if has_ended := run != before and not in_flight(load.status):
                    self.save()
                    self._say_end(load, run or Run())
                ended |= has_ended
                again = has_ended or seconds == AT_ONCE_S
            self._say_load(load, ended=ended)

    def _say_end(self, load: BatchLoad, run: Run) -> None:
        if run.state == RunState.SUCCEEDED:
            path = spark.output_path(load, self.data)
            self.say(f"{_title(load)}: {run.name} wrote {rows_of(run)} to {path}")
            if run.warning:
                self.say(f"{_title(load)}: warning: {run.warning}")
        else:
            problem = failure(run)
            self.say(f"{_title(load)}: {problem.reason}: {problem.message}")

    def _say_load(self, load: BatchLoad, *, ended: bool) -> None:
        """Report a load for which there is nothing to do now; ``ended``: the end of its last run was reported."""
        run, schedule = load.status.last_run, load.status.schedule
        ready = next(
            condition for condition in load.status.conditions or () if condition.type == ConditionType.READY
        )
        problem = None if ready.status == "True" else Problem(Reason(ready.reason), ready.message)
        if ready.reason == Reason.WAITING_FOR_RECORDS:
            self._waits(load, f"waits for records: {ready.message.removesuffix(' records')}")
            return
        if problem is not None and problem.reason is Reason.RUNNER_NOT_AVAILABLE:
            self._waits(load, problem.message)
            return
        if problem is not None and (run is None or problem != failure(run)):
            self._failed(load, problem)
            return
        if problem is not None and ended:
            self.failures[str(_key(load))] = problem.message
        elif problem is not None:
            self._failed(load, problem)
        elif run is not None:
            self.say(f"{_title(load)}: {run.name} has written {rows_of(run)}")
        if schedule is not None:
            paused = load.spec.schedule is not None and load.spec.schedule.suspend
            self.say(f"{_title(load)}: {'is suspended' if paused else f'next run at {schedule.next}'}")

    def _waits(self, load: BatchLoad, why: str) -> None:
        self.waiting[str(_key(load))] = why
        self.say(f"{_title(load)}: {why}")

    # Common parts

    def _of(self, kind: type[ResourceT], keys: Sequence[str]) -> list[ResourceT]:
        found = (self._get(kind, Key(*key.split("/"))) for key in keys if key.startswith(f"{kind.KIND}/"))
        return list(found)

    def _get(self, kind: type[ResourceT], key: Key) -> ResourceT:
        return decode_as(kind, self.state.resources["/".join(key)])

    def _write(self, resource: Record, status: Status) -> None:
        write_status(self.services, resource, status)

    def _failed(self, resource: Record, problem: Problem) -> None:
        self.failures[str(_key(resource))] = problem.message
        self.say(f"{_title(resource)}: {problem.reason}: {problem.message}")

    def _warn(self, kind: type[MirrorMaker], key: Key) -> None:
        """Report the warnings about a resource that is as desired."""
        resource = self._get(kind, key)
        for condition in resource.status.conditions or ():
            if condition.type == ConditionType.WARNING and condition.status == "True":
                self.say(f"{_title(resource)}: {condition.message}")

    def _tell(self, kind: type[User | Topic | ConsumerGroup | MirrorMaker], keys: Sequence[str]) -> None:
        for resource in self._of(kind, keys):
            for condition in resource.status.conditions or ():
                if condition.type != ConditionType.READY:
                    continue
                if condition.status == "True":
                    self.say(f"{_title(resource)}: {condition.message}")
                else:
                    self._failed(resource, Problem(Reason(condition.reason), condition.message))


def keep_cause(before: Resource, after: Resource) -> None:
    """Keep the cause that the last `up` found and reported, when `status` finds the resource still not as desired."""
    was, now = _ready_of(before), _ready_of(after)
    if was and now and was["status"] == now["status"] == "False" and now["reason"] in UNEXPLAINED:
        now.update(was)


def rows_of(run: Run) -> str:
    """The rows that a run wrote, with those that are corrupt."""
    rows = count_of(run.rows or 0, "row")
    if not run.corrupt_records:
        return rows
    return f"{rows} ({run.corrupt_records:,} corrupt: see their column _corrupt_record)"


def _ready_of(resource: Resource) -> dict[str, Any] | None:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == ConditionType.READY), None)


def _continues(cluster: Cluster, seconds: float) -> bool:
    """Whether brokers have yet to restart, or to serve new certificates; not after a failure."""
    ready = condition_before(cluster, ConditionType.READY)
    return seconds < READY_INTERVAL_S and ready is not None and bool(ready[1]) and not is_paused(cluster)


def _promotes(mirror: MirrorMaker) -> bool:
    """Whether a promotion continues by itself: it has not ended, or workers may have left replicas as they ended."""
    promoted = condition_before(mirror, ConditionType.PROMOTED)
    runs = requested(mirror) is not None and promoted is not None and promoted[2] == Reason.PROMOTING
    return runs or (is_over(mirror) and not is_paused(mirror) and bool(mirror.status.replicas))


def _promoted_of(mirror: MirrorMaker) -> NewCondition | None:
    """What the last `up` found of a request that has not ended."""
    return condition_before(mirror, ConditionType.PROMOTED) if mirror.spec.promote is not None else None


def _key(resource: Record) -> Key:
    return Key(resource.KIND, resource.namespace, resource.name)


def _title(resource: Record) -> str:
    return f"{resource.KIND} {resource.name}"
