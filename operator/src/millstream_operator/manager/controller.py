"""Runs the reconciles: watches put resources into the store and the queue, workers take them out.

Each kind has a ``Controller``: a function that brings a batch of resources to their desired state, whatever happened
before (level-triggered), and returns when to reconcile again. Creation, change, a restart of the operator, a changed
neighbour and the passing of time all lead to the same function. It runs in a worker thread, one batch of a group at a
time (see workqueue.py). Nothing is reconciled before all kinds are listed (see resync.py).

A reconcile that raises is retried after 1, 2, 4 … 60 seconds, apart from the others of its batch, and the resource's
``Ready`` condition reports it. Slow groups, whose brokers do not respond, do not delay others: see concurrency.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..kubernetes.client import KubeError
from ..models import KINDS, Cluster, ManifestError, MirrorMaker, Resource, decode_as
from ..models.conditions import Reason
from ..models.keys import ClusterKey, Key
from ..models.problem import Problem, replace_ready
from ..reconcile.common.deletion import SKIP_ANNOTATION, gives_up, held_back, release_invalid_resource
from ..reconcile.common.objects import NotOurs
from ..reconcile.common.report import report_problem
from ..reconcile.mirror.plan import OF_WORKERS
from ..state.cache import Change, Store, key_for, key_of
from ..state.context import Services
from ..state.status import write_raw_status
from .claims import Claims
from .concurrency import THREADS, WorkerConcurrency
from .leadership import Leadership
from .resync import listed, missed
from .workqueue import Batch, WorkQueue

logger = logging.getLogger(__name__)

LINGER_S = 0.1  # for kinds reconciled in batches: wait for others that arrive at the same time
RETRY_LIMIT_S = 60.0
JITTER = 0.1  # an interval is shortened by up to this share, so that resources created together spread out
FAILED = -1.0  # instead of seconds until the next reconcile
NOT_OURS_INTERVAL_S = 5.0
FOREIGN_INTERVAL_S = 15.0  # until a namespace of another release is reconciled again
STANDBY_POLL_S = 0.1
GHOSTS_INTERVAL_S = 300.0
UNKNOWN = {MirrorMaker.KIND: OF_WORKERS}
"""Conditions, by kind, that nobody updates while a resource is refused or its reconcile fails."""
RELISTED_S = 2.0  # for a restarted watch to show every resource

ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True, slots=True)
class OwnedResource:
    """A kind of object whose changes wake the owning resource; only objects with our label are watched."""

    group: str  # "" for the core group
    version: str
    plural: str


@dataclass(frozen=True, slots=True)
class Controller(Generic[ResourceT]):
    """How a kind is reconciled. ``reconcile`` returns for each key the seconds until its next reconcile.

    Resources that are due within ``early`` seconds are reconciled together with others of their group.
    """

    kind: type[ResourceT]
    reconcile: Callable[[Services, Sequence[ResourceT]], Mapping[Key, float]]
    group_of: Callable[[ResourceT], Hashable]
    batch: int = 1
    early: float = 0.0
    owned: tuple[OwnedResource, ...] = ()


def one_by_one(
    kind: type[ResourceT],
    reconcile: Callable[[Services, ResourceT], float],
    owned: tuple[OwnedResource, ...] = (),
) -> Controller[ResourceT]:
    """A Controller for a kind whose resources share nothing: ``reconcile(services, resource) -> seconds``.

    It stops at an object that belongs to another owner, and reports it.
    """

    def batch(services: Services, resources: Sequence[ResourceT]) -> Mapping[Key, float]:
        return {key_for(resource): one(services, resource) for resource in resources}

    def one(services: Services, resource: ResourceT) -> float:
        try:
            return reconcile(services, resource)
        except NotOurs as error:
            services.upgrade_queue.leave(services.store, key_for(resource))
            problem = Problem(Reason.OBJECT_NOT_OURS, str(error))
            return report_problem(services, resource, problem, NOT_OURS_INTERVAL_S)

    return Controller(kind, batch, key_for, owned=owned)


@dataclass(slots=True)
class Manager:
    """Connects watches, queue and workers. Its methods belong to the event loop; reconciles run in threads."""

    services: Services
    controllers: Mapping[str, Controller[Any]]
    namespaces: Sequence[str] = ()
    """Watched namespaces; empty for all."""
    leadership: Leadership | None = None
    """None if there is no other operator: this one always acts, everywhere."""
    claims: Claims | None = None
    queue: WorkQueue = field(default_factory=WorkQueue)
    _failures: dict[Key, int] = field(default_factory=dict)
    _concurrency: WorkerConcurrency = field(init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _relisted: asyncio.Event = field(default_factory=asyncio.Event)
    _acts_since: float | None = None
    _last_success: float | None = None
    _successes: int = 0

    def __post_init__(self) -> None:
        self._concurrency = WorkerConcurrency(self._beside)

    @property
    def store(self) -> Store:
        return self.services.store

    def seen(self, event_type: str | None, manifest: Mapping[str, Any]) -> None:
        """A watch showed a custom resource."""
        key = key_of(manifest)
        if event_type == "DELETED":
            change = self.store.remove(key, manifest["metadata"].get("uid", ""))
            if key not in self.store:
                self.queue.forget(key)
                self.services.metrics.lags.forget(key)
                self.services.load_times.pop(manifest["metadata"].get("uid", ""), None)
                self.services.group_memories.pop(manifest["metadata"].get("uid", ""), None)
                self._failures.pop(key, None)
            if key.kind == MirrorMaker.KIND:
                asyncio.get_running_loop().run_in_executor(None, self.services.outside.forget, key)
            if key.kind == Cluster.KIND:
                asyncio.get_running_loop().run_in_executor(None, self._forget_brokers, manifest)
        else:
            if event_type is None and key in self.store:
                self._relisted.set()  # a watch has restarted, and does not report deletions in between
            change = self.store.put(manifest)
        self._apply(key, change)

    def owned_seen(self, manifest: Mapping[str, Any]) -> None:
        """A watch showed an object of ours: its owner needs a reconcile."""
        metadata = manifest["metadata"]
        for owner in metadata.get("ownerReferences", ()):
            if owner.get("kind") in KINDS and owner.get("apiVersion", "").startswith("millstream.dev/"):
                self.enqueue(Key(owner["kind"], metadata.get("namespace", "default"), owner["name"]))

    def enqueue(self, key: Key, delay: float = 0.0) -> None:
        controller = self.controllers.get(key.kind)
        if controller is None or self.store.raw(key) is None:
            return
        try:
            resource = self.store.get(controller.kind, key.namespace, key.name)
            group: Hashable = (key.kind, controller.group_of(resource))
        except ManifestError:
            group = key
        except Exception:  # a bug of ours: the reconcile reports it in the condition
            logger.exception("%s has no group", key)
            group = key
        linger = LINGER_S if controller.batch > 1 else 0.0
        now = asyncio.get_running_loop().time()
        self.queue.add(key, group, now + max(delay, linger), alone=key in self._failures)
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled, once the watches have shown every resource and this operator acts."""
        await listed(self.services, self.namespaces)
        ghosts = asyncio.create_task(self._forget_ghosts(), name="ghosts")
        try:
            await self._work_on()
        finally:
            ghosts.cancel()

    async def _work_on(self) -> None:
        while self.standing_by:  # noqa: ASYNC110 # a thread holds the Lease
            await asyncio.sleep(STANDBY_POLL_S)
        loop = asyncio.get_running_loop()
        self._acts_since = loop.time()
        running: set[asyncio.Task[None]] = set()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="reconcile") as threads:
            while True:
                self._wake.clear()
                while self._concurrency.free(loop.time()) and (batch := self._take(loop.time())):
                    self._concurrency.begin(batch.group, loop.time())
                    task = loop.create_task(self._work(threads, batch))
                    running.add(task)
                    task.add_done_callback(running.discard)
                now = loop.time()
                at = self._concurrency.free_at(now)
                if self._concurrency.free(now):
                    at = self.queue.next_at(self._concurrency.held_back(now))
                wait = None if at is None else max(0.0, at - now)
                # not wait_for, which loses a cancellation that comes with what it waits for (Python 3.11)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()

    async def _forget_ghosts(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GHOSTS_INTERVAL_S):
                    await self._relisted.wait()
                    await asyncio.sleep(RELISTED_S)
            self._relisted.clear()
            try:
                events = await missed(self.services, self.namespaces)
            except Exception as error:
                logger.warning("cannot check for deleted resources, retrying: %s", error)
                continue
            for event_type, manifest in events:
                logger.info("the watches missed %s %s", event_type or "a change of", key_of(manifest))
                self.seen(event_type, manifest)

    @property
    def standing_by(self) -> bool:
        """Whether another operator of this release acts, or may still."""
        return self.leadership is not None and not self.leadership.acquired.is_set()

    def health(self) -> dict[str, Any]:
        """For the liveness probe.

        Whether this operator acts, seconds since the last success, the number of successes, how long work has been
        overdue, how long the longest running reconcile has taken, and which namespaces belong to other releases. Slow
        groups, which wait for each other, do not count as overdue; nor does anything while this operator stands by, or
        from before it acted.
        """
        now = asyncio.get_running_loop().time()
        age = None if self._last_success is None else round(now - self._last_success, 1)
        return {
            "lastReconcileAgeSeconds": age,
            "reconciles": self._successes,
            "overdueSeconds": round(self._overdue(now, self._concurrency.slow), 1),
            "longestReconcileSeconds": round(self._concurrency.longest(now), 1),
            "resources": len(self.queue),
            "acts": not self.standing_by,
            "foreignNamespaces": self.claims.foreign() if self.claims is not None else {},
        }

    def measure(self) -> None:
        """Update the metrics of the queue."""
        now, metrics, health = asyncio.get_running_loop().time(), self.services.metrics, self.health()
        lease = str(self.leadership.name) if self.leadership is not None else ""
        metrics.leading.labels(lease).set(not self.standing_by)
        metrics.queue_keys.set(len(self.queue))
        metrics.queue_due.set(0 if self.standing_by else self.queue.due(now))
        metrics.queue_oldest_seconds.set(self._overdue(now))
        for gauge in metrics.reconciles_running:
            gauge.set(len(self._concurrency.begun))
        for gauge in metrics.longest_reconcile_seconds:
            gauge.set(health["longestReconcileSeconds"] or 0.0)

    def _overdue(self, now: float, but: Collection[Hashable] = ()) -> float:
        """How long the most overdue key has been waiting while this operator acts."""
        if self._acts_since is None:
            return 0.0
        return min(self.queue.overdue(now, but), now - self._acts_since)

    def _take(self, now: float) -> Batch | None:
        return self.queue.take(now, self._limit, self._concurrency.held_back(now), self._early)

    def _limit(self, group: Hashable) -> int:
        """Most resources of a group that are reconciled together."""
        match group:
            case (str() as kind, _) if kind in self.controllers:
                return self.controllers[kind].batch
        return 1

    def _early(self, group: Hashable) -> float:
        """How early the resources of a group may join a batch of their group."""
        match group:
            case (str() as kind, _) if kind in self.controllers:
                return self.controllers[kind].early
        return 0.0

    def _beside(self, group: Hashable) -> Collection[Hashable]:
        """The groups that use the same brokers: a Cluster, and the resources of each kind that refer to it."""
        match group:
            case (_, ClusterKey() as cluster):
                pass
            case (_, Key(kind=Cluster.KIND) as key):
                cluster = ClusterKey(key.namespace, key.name)
            case _:
                return (group,)
        return {(Cluster.KIND, Key(Cluster.KIND, *cluster)), *((kind, cluster) for kind in self.controllers)}

    def _apply(self, key: Key, change: Change) -> None:
        if change.needs_reconcile:
            self._failures.pop(key, None)  # it changed: try at once
            self.enqueue(key)
        for other in change.others:
            self.enqueue(other)

    async def _work(self, threads: ThreadPoolExecutor, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        try:
            again = await loop.run_in_executor(threads, self._reconcile, batch)
            for key, seconds in again.items():
                self._looked(key, seconds, loop.time())
        except Exception:  # a bug of ours: without a next reconcile the resource would be forgotten
            logger.exception("work on %s failed", ", ".join(map(str, batch.keys)))
            for key in batch.keys:
                self._looked(key, FAILED, loop.time())
        finally:
            for key in self.store.take_woken():
                self.enqueue(key)
            took = loop.time() - self._concurrency.begun[batch.group]
            self.services.metrics.reconcile_seconds.labels(batch.keys[0].kind).observe(took)
            self._concurrency.end(batch.group, loop.time())
            self.queue.done(batch)
            self._wake.set()

    def _forget_brokers(self, manifest: Mapping[str, Any]) -> None:
        """In a thread: close the connections to the brokers of a deleted Cluster."""
        try:
            cluster = decode_as(Cluster, manifest)
        except ManifestError:
            return  # it never had a connection
        self.services.forget_brokers(self.services.address_of(cluster))

    def _looked(self, key: Key, seconds: float, now: float) -> None:
        logger.debug("reconciled %s", key)
        self.services.metrics.reconciles.labels(key.kind, "ok" if seconds >= 0 else "error").inc()
        if seconds >= 0:
            self._failures.pop(key, None)
            self._last_success = now
            self._successes += 1
            self.enqueue(key, seconds * random.uniform(1 - JITTER, 1))
        else:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
            self.enqueue(key, min(RETRY_LIMIT_S, 2.0 ** min(failures - 1, 10)))

    def _reconcile(self, batch: Batch) -> dict[Key, float]:
        """In a worker thread: seconds until the next reconcile by key, ``FAILED`` for a failure."""
        controller = self.controllers[batch.keys[0].kind]
        resources = []
        again: dict[Key, float] = {}
        for key in batch.keys:
            if not self._ours(key.namespace):
                if self.claims is not None and key.namespace in self.claims.foreign():
                    self.services.upgrade_queue.leave(self.store, key)
                again[key] = FOREIGN_INTERVAL_S
                continue
            try:
                resource = self.store.get(controller.kind, key.namespace, key.name)
                if resource is not None:
                    resources.append(resource)
            except ManifestError as error:
                self._count(key, error)
                self.services.upgrade_queue.leave(self.store, key)
                again[key] = self._refuse(key, str(error))
        if not resources:
            return again
        try:
            again.update(controller.reconcile(self.services, resources))
        except Exception as error:
            known = str(error) or type(error).__name__
            names = ", ".join(map(str, batch.keys))
            fields = {"kind": batch.keys[0].kind, "error": type(error).__name__}
            logger.warning("reconcile of %s failed: %s", names, known, exc_info=error, extra=fields)
            for resource in resources:
                key = key_for(resource)
                self._count(key, error)
                again[key] = FAILED
                if len(resources) == 1:
                    self._say(key, Reason.RECONCILE_FAILED, known)
        return again

    def _ours(self, namespace: str) -> bool:
        """Whether this release acts in a namespace; False while that is unknown."""
        try:
            return self.claims is None or self.claims.ours(namespace)
        except KubeError as error:
            logger.warning("cannot read which release acts in namespace %s, retrying: %s", namespace, error)
            return False

    def _refuse(self, key: Key, message: str) -> float:
        """Report that a resource is not valid. One that is being deleted is released if its user gives up its data."""
        raw = self.store.raw(key)
        if raw is not None and held_back(raw):
            if gives_up(raw):
                return release_invalid_resource(self.services, raw, message)
            message = f"{message}; it is not deleted: correct it, or set annotation {SKIP_ANNOTATION}=true to give up"
        return self._say(key, Reason.INVALID_SPEC, message)

    def _count(self, key: Key, error: Exception) -> None:
        self.services.metrics.errors.labels(key.kind, type(error).__name__).inc()

    def _say(self, key: Key, reason: Reason, message: str) -> float:
        """Set ``Ready``, and to Unknown what only a reconcile of the resource could show."""
        raw = self.store.raw(key)
        if raw is None:
            return 0.0
        before = raw.get("status") or {}
        generation, unknown = raw["metadata"].get("generation"), UNKNOWN.get(key.kind, ())
        after = replace_ready(before, reason, message, generation, self.services.now(), unknown)
        try:
            write_raw_status(self.services, key, raw["metadata"].get("uid", ""), before, after)
        except Exception as error:
            logger.warning("cannot write the status of %s: %s", key, error)
        return RETRY_LIMIT_S * 5
