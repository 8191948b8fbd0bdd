"""Runs the reconciles: watches put resources into the store and the queue, workers take them out.

Each kind has a ``Controller``: a function that brings a batch of resources to what they should be, whatever happened
before (level-triggered), and says when to look again. Creation, change, restart of the operator, a changed neighbour
and the passing of time all end in the same function. It runs in a worker thread, one batch of a group at a time (see
workqueue.py). Nothing is reconciled before all kinds are listed (see listing.py).

A reconcile that raises is tried again after 1, 2, 4 … 60 seconds, apart from others of its batch, and the resource says
so in its ``Ready`` condition. Groups whose looks take long (their brokers do not answer) share a few of the workers, so
that they do not keep others waiting.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .conditions import Reason
from .listing import listed
from .models import KINDS, Cluster, ManifestError, Resource, decode_as
from .reconcile.objects import NotOurs
from .reconcile.report import Problem, replace_ready, report_problem
from .services import Services
from .status import write_raw_status
from .store import Change, Key, Store, key_for, key_of
from .workqueue import Batch, WorkQueue

logger = logging.getLogger(__name__)

WORKERS = 4
LINGER_S = 0.1  # for kinds that are worked on in batches: wait for others that come at the same time
RETRY_LIMIT_S = 60.0
FAILED = -1.0  # instead of seconds until the next look
# A group whose last look took so long waits for something that does not answer; few workers do that at once.
SLOW_S = 2.0
SLOW_WORKERS = 2
NOT_OURS_INTERVAL_S = 5.0

ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True, slots=True)
class Child:
    """Another kind of object whose changes wake the resource that owns it; we watch those with our label only."""

    group: str  # "" for the core group
    version: str
    plural: str


@dataclass(frozen=True, slots=True)
class Controller(Generic[ResourceT]):
    """How a kind is reconciled. ``reconcile`` answers for each key after how many seconds to look again."""

    kind: type[ResourceT]
    reconcile: Callable[[Services, Sequence[ResourceT]], Mapping[Key, float]]
    group_of: Callable[[ResourceT], Hashable]
    batch: int = 1
    children: tuple[Child, ...] = ()


def one_by_one(
    kind: type[ResourceT], reconcile: Callable[[Services, ResourceT], float], children: tuple[Child, ...] = ()
) -> Controller[ResourceT]:
    """A Controller for a kind whose resources have nothing to share: ``reconcile(services, resource) -> seconds``.
    Where it meets an object of somebody else's it stops there and says so."""

    def batch(services: Services, resources: Sequence[ResourceT]) -> Mapping[Key, float]:
        return {key_for(resource): one(services, resource) for resource in resources}

    def one(services: Services, resource: ResourceT) -> float:
        try:
            return reconcile(services, resource)
        except NotOurs as error:
            problem = Problem(Reason.OBJECT_NOT_OURS, str(error))
            return report_problem(services, resource, problem, NOT_OURS_INTERVAL_S)

    return Controller(kind, batch, key_for, children=children)


@dataclass(slots=True)
class Runner:
    """Connects watches, queue and workers. Its methods belong to the event loop; reconciles run in threads."""

    services: Services
    controllers: Mapping[str, Controller[Any]]
    namespaces: Sequence[str] = ()
    """Those that are watched; empty for all."""
    queue: WorkQueue = field(default_factory=WorkQueue)
    _failures: dict[Key, int] = field(default_factory=dict)
    _begun: dict[Hashable, float] = field(default_factory=dict)
    _slow: set[Hashable] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _last_success: float | None = None
    _successes: int = 0

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
                self._failures.pop(key, None)
            if key.kind == Cluster.KIND:
                asyncio.get_running_loop().run_in_executor(None, self._forget_brokers, manifest)
        else:
            change = self.store.put(manifest)
        self._apply(key, change)

    def child_seen(self, manifest: Mapping[str, Any]) -> None:
        """A watch showed an object of ours: its owner needs a look."""
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
        except Exception:  # a bug of ours: the look will say so in its condition
            logger.exception("%s has no group", key)
            group = key
        linger = LINGER_S if controller.batch > 1 else 0.0
        now = asyncio.get_running_loop().time()
        self.queue.add(key, group, now + max(delay, linger), alone=key in self._failures)
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled, once the watches have shown everything that there is."""
        await listed(self.services, self.namespaces)
        loop = asyncio.get_running_loop()
        running: set[asyncio.Task[None]] = set()
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="reconcile") as threads:
            while True:
                self._wake.clear()
                while len(self._begun) < WORKERS and (batch := self._take(loop.time())):
                    self._begun[batch.group] = loop.time()
                    task = loop.create_task(self._work(threads, batch))
                    running.add(task)
                    task.add_done_callback(running.discard)
                wait = None
                if len(self._begun) < WORKERS and (at := self.queue.next_at(self._held_back())) is not None:
                    wait = max(0.0, at - loop.time())
                try:
                    await asyncio.wait_for(self._wake.wait(), wait)
                except TimeoutError:
                    continue

    def health(self) -> dict[str, float | int | None]:
        """For the liveness probe: seconds since the last success, how many there were, how long work has waited (but
        for groups that are slow, and wait for each other), and how long the longest look under way has taken."""
        now = asyncio.get_running_loop().time()
        age = None if self._last_success is None else round(now - self._last_success, 1)
        return {
            "lastReconcileAgeSeconds": age,
            "reconciles": self._successes,
            "overdueSeconds": round(self.queue.overdue(now, self._slow), 1),
            "longestLookSeconds": round(now - min(self._begun.values(), default=now), 1),
            "resources": len(self.queue),
        }

    def _take(self, now: float) -> Batch | None:
        limit = max(controller.batch for controller in self.controllers.values())
        return self.queue.take(now, limit, self._held_back())

    def _held_back(self) -> Collection[Hashable]:
        """Slow groups, while as many of them are worked on as may be."""
        return self._slow if len(self._slow.intersection(self._begun)) >= SLOW_WORKERS else ()

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
        except Exception:  # a bug of ours: without its next look a resource would be forgotten
            logger.exception("work on %s failed", ", ".join(map(str, batch.keys)))
            for key in batch.keys:
                self._looked(key, FAILED, loop.time())
        finally:
            for key in self.store.take_woken():
                self.enqueue(key)
            took = loop.time() - self._begun.pop(batch.group)
            (self._slow.add if took > SLOW_S else self._slow.discard)(batch.group)
            self.queue.done(batch)
            self._wake.set()

    def _forget_brokers(self, manifest: Mapping[str, Any]) -> None:
        """In a thread: close the connections to the brokers of a Cluster that is gone."""
        try:
            cluster = decode_as(Cluster, manifest)
        except ManifestError:
            return  # it never had any
        self.services.admins.forget(self.services.address_of(cluster))

    def _looked(self, key: Key, seconds: float, now: float) -> None:
        logger.debug("looked at %s", key)
        if seconds >= 0:
            self._failures.pop(key, None)
            self._last_success = now
            self._successes += 1
            self.enqueue(key, seconds * random.uniform(0.9, 1.1))
        else:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
            self.enqueue(key, min(RETRY_LIMIT_S, 2.0 ** min(failures - 1, 10)))

    def _reconcile(self, batch: Batch) -> dict[Key, float]:
        """In a worker thread: seconds until the next look by key, ``FAILED`` for a failure."""
        controller = self.controllers[batch.keys[0].kind]
        resources = []
        again: dict[Key, float] = {}
        for key in batch.keys:
            try:
                resource = self.store.get(controller.kind, key.namespace, key.name)
                if resource is not None:
                    resources.append(resource)
            except ManifestError as error:
                again[key] = self._say(key, Reason.INVALID_SPEC, str(error))
        if not resources:
            return again
        try:
            again.update(controller.reconcile(self.services, resources))
        except Exception as error:
            known = str(error) or type(error).__name__
            logger.warning(
                "reconcile of %s failed: %s", ", ".join(map(str, batch.keys)), known, exc_info=error
            )
            for resource in resources:
                key = key_for(resource)
                again[key] = FAILED
                if len(resources) == 1:
                    self._say(key, Reason.RECONCILE_FAILED, known)
        return again

    def _say(self, key: Key, reason: Reason, message: str) -> float:
        """Set only ``Ready``, on a resource of which nothing else is known."""
        raw = self.store.raw(key)
        if raw is None:
            return 0.0
        before = raw.get("status") or {}
        after = replace_ready(before, reason, message, raw["metadata"].get("generation"), self.services.now())
        try:
            write_raw_status(self.services, key, raw["metadata"].get("uid", ""), before, after)
        except Exception as error:
            logger.warning("cannot write the status of %s: %s", key, error)
        return RETRY_LIMIT_S * 5
