"""The manager: one resource's error blocks no group, and slow groups leave workers to others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from millstream_harness.in_memory import NOW, InMemory, MemoryKube, deleted, in_memory, stored
from millstream_harness.manifests import cluster, topic
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_operator.handlers import CONTROLLERS
from millstream_operator.kafka.records import AdminError
from millstream_operator.kubernetes.client import KubeError, Manifest
from millstream_operator.manager import concurrency as slots
from millstream_operator.manager import controller
from millstream_operator.manager.claims import Claims, claim
from millstream_operator.manager.controller import Controller, Manager
from millstream_operator.manager.workqueue import Batch
from millstream_operator.models import Cluster, Topic, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.state.cache import key_for
from millstream_operator.state.context import Services

pytestmark = pytest.mark.process

Reconcile = Callable[[Services, Sequence[Topic]], Mapping[Key, float]]
PATIENCE_S = 60


@contextlib.asynccontextmanager
async def running(found: InMemory, reconcile: Reconcile) -> AsyncIterator[Manager]:
    by_name = Controller(Topic, reconcile, lambda one: one.name)
    manager = Manager(found.services, {"Topic": by_name})
    task = asyncio.create_task(manager.run())
    for manifest in found.kube.objects.values():
        manager.enqueue(Key("Topic", "ns", manifest["metadata"]["name"]))
    yield manager
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(check: Callable[[], Any]) -> None:
    for _ in range(PATIENCE_S * 100):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


@contextlib.contextmanager
def released(*events: threading.Event) -> Iterator[None]:
    """Set the events at the end, whatever happens: threads wait for them."""
    try:
        yield
    finally:
        for event in events:
            event.set()


async def test_nonsense_from_a_reconcile_leaves_its_group_to_another_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[str] = []

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        looks.extend(one.name for one in topics)
        return {key_for(one): "soon" if len(looks) == 1 else 60.0 for one in topics}  # type: ignore[misc]

    async with running(in_memory(stored(topic("a"))), reconcile) as manager:
        await until(lambda: len(looks) == 2)
        assert caplog.messages == ["work on Topic ns/a failed"]
        await until(lambda: manager.health()["reconciles"] == 1)


async def test_a_look_that_does_not_end_shows() -> None:
    end = threading.Event()

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        end.wait(PATIENCE_S)
        return dict.fromkeys(map(key_for, topics), 3600.0)

    async with running(in_memory(stored(topic("a"))), reconcile) as manager:
        with released(end):
            await until(lambda: (manager.health()["longestReconcileSeconds"] or 0) > 0.1)
            assert manager.health()["overdueSeconds"] == 0
            manager.measure()
            shown = manager.services.metrics.text().decode()
            for name in ("reconciles_running", "looks_running"):  # the second is the former name
                assert f"millstream_operator_{name} 1.0" in shown
            for name in ("longest_reconcile_seconds", "longest_look_seconds"):
                assert f"millstream_operator_{name} 0.0" not in shown
        await until(lambda: manager.health()["longestReconcileSeconds"] == 0)


async def test_slow_groups_leave_workers_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick look may take a minute here, however busy the machine is: two hours pass while the slow ones wait."""
    monkeypatch.setattr(slots, "SLOW_S", 60.0)
    loop, later = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + later)
    first, second, waits, quick = threading.Event(), threading.Event(), list[str](), list[str]()

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        (one,) = topics
        if one.name == "quick":
            quick.append(one.name)
            return {key_for(one): 0.05}
        waits.append(one.name)
        (first if waits.count(one.name) == 1 else second).wait(PATIENCE_S)
        return {key_for(one): 0.0}

    names = [f"slow-{number}" for number in range(6)]
    found = in_memory(*(stored(topic(name)) for name in names))
    async with running(found, reconcile) as manager:
        with released(first, second):
            await until(lambda: len(waits) == slots.WORKERS)
            later += 3600.0
            await until(lambda: sorted(waits) == names)  # late ones leave their workers to others
            later += 3600.0
            first.set()
            await until(lambda: len(waits) == len(names) + slots.SLOW_WORKERS)
            found.kube.put(stored(topic("quick")))
            manager.seen(None, stored(topic("quick")))
            await until(lambda: len(quick) > 3)
            assert len(waits) == len(names) + slots.SLOW_WORKERS
            await until(lambda: (manager.health()["overdueSeconds"] or 0) < 1)


async def test_the_brokers_of_a_cluster_that_is_gone_are_let_go() -> None:
    services = services_on_kubernetes(MemoryKube())
    gone = stored(cluster("default"))
    manager = Manager(services, CONTROLLERS)
    manager.seen(None, gone)
    address = services.address_of(decode_as(Cluster, gone))
    admin = services.admins.at(address)
    manager.seen("DELETED", gone)
    await until(lambda: services.admins.at(address) is not admin)
    with pytest.raises(AdminError, match="is closed: its cluster is gone"):  # a reconcile in progress
        admin.cluster_id()
    services.admins.close()


async def test_what_the_watches_have_missed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 410 Gone a watch lists again: the list lacks whatever was deleted meanwhile."""
    monkeypatch.setattr(controller, "GHOSTS_INTERVAL_S", 0.05)
    looks: list[str] = []

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        looks.extend(one.name for one in topics)
        return {key_for(one): 3600.0 for one in topics}

    ghost, heir = (topic(name, topicName="flights") for name in ("ghost", "heir"))
    found = in_memory(stored(ghost), stored(heir, creationTimestamp="2026-02-01T00:00:00Z"))
    async with running(found, reconcile) as manager:
        await until(lambda: sorted(looks) == ["ghost", "heir"] and manager.health()["resources"] == 2)
        del found.kube.objects["Topic", "ghost"]
        await until(lambda: looks[2:] == ["heir"])
        assert Key("Topic", "ns", "ghost") not in manager.store
        await until(lambda: manager.health()["resources"] == 1)
        # the name belongs to another resource, and no watch has shown it
        anew = stored(ghost, uid="other")
        found.services.store.put(stored(ghost))
        found.kube.put(anew)
        found.kube.versions = lambda *_: {("ns", "heir"): 0}  # a list from before it existed
        await until(
            lambda: (manager.store.raw(Key("Topic", "ns", "ghost")) or anew)["metadata"]["uid"] == "other"
        )


@pytest.mark.parametrize("uid", ["u-a", "other"])
async def test_resources_that_were_restored_from_an_older_copy_are_known_as_they_are(
    monkeypatch: pytest.MonkeyPatch, uid: str
) -> None:
    """After a restore of etcd, watches show the restored resources with lower versions than the known ones."""
    monkeypatch.setattr(controller, "GHOSTS_INTERVAL_S", 0.05)
    looks: list[int | None] = []

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        looks.extend(one.spec.partitions for one in topics)
        return {key_for(one): 3600.0 for one in topics}

    found = in_memory(stored(topic("a", partitions=6), resourceVersion="1000"))
    async with running(found, reconcile) as manager:
        await until(lambda: looks == [6])
        older = stored(topic("a", partitions=3), uid=uid, resourceVersion="400")
        found.kube.put(older)
        manager.seen(None, older)
        await until(lambda: looks == [6, 3])
        assert manager.store.versions() == {Key("Topic", "ns", "a"): 400}
        # from now on, events count again
        edited = stored(topic("a", partitions=4), uid=uid, resourceVersion="401", generation=3)
        found.kube.put(edited)
        manager.seen("MODIFIED", edited)
        await until(lambda: looks == [6, 3, 4])


async def test_a_watch_that_begins_anew_has_ghosts_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "RELISTED_S", 0.01)
    found = in_memory(stored(topic("ghost")), stored(topic("kept")))
    async with running(found, lambda *_: {}) as manager:
        await until(lambda: len(manager.queue) == 0)
        del found.kube.objects["Topic", "ghost"]
        manager.seen(None, found.kube.objects["Topic", "kept"])
        await until(lambda: Key("Topic", "ns", "ghost") not in manager.store)
        assert Key("Topic", "ns", "kept") in manager.store


async def test_an_api_server_that_is_away_hides_no_ghosts_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller, "GHOSTS_INTERVAL_S", 0.05)
    found = in_memory(stored(topic("a")))
    async with running(found, lambda *_: {}) as manager:
        await until(lambda: len(manager.queue) == 0)
        found.kube.refused["Topic"] = KubeError(0, "Unreachable", "away")
        del found.kube.objects["Topic", "a"]
        await until(lambda: caplog.messages)
        assert caplog.messages[0] == "cannot check for deleted resources, retrying: away"
        assert Key("Topic", "ns", "a") in manager.store
        found.kube.refused.clear()
        await until(lambda: Key("Topic", "ns", "a") not in manager.store)


async def test_a_namespace_without_rights_hides_no_ghosts_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller, "GHOSTS_INTERVAL_S", 0.05)
    found = in_memory(stored(topic("a"), namespace="closed"), stored(topic("b")))
    get = found.kube.get

    def refused(api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        if namespace == "closed":
            raise KubeError(403, "Forbidden", "no rights")
        return get(api_version, kind, namespace, name)

    found.kube.get = refused  # type: ignore[method-assign]
    async with running(found, lambda *_: {}) as manager:
        await until(lambda: len(manager.queue) == 0)
        found.kube.objects.clear()
        await until(lambda: Key("Topic", "ns", "b") not in manager.store)
        assert Key("Topic", "closed", "a") in manager.store
        words = "cannot check whether 1 resources still exist, such as Topic closed/a, continuing without: no rights"
        assert words in caplog.messages


async def test_work_from_before_an_operator_acted_is_not_overdue_for_that_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "SLOW_S", 0.01)  # so that all threads have work soon
    found = in_memory(*(stored(topic(f"t{number}")) for number in range(3 * slots.THREADS)))
    looks, go_on = [], threading.Event()

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        looks.extend(one.name for one in topics)
        go_on.wait(PATIENCE_S)
        return {key_for(one): 3600.0 for one in topics}

    acquired = threading.Event()
    manager = Manager(
        found.services,
        {"Topic": Controller(Topic, reconcile, lambda one: one.name)},
        leadership=SimpleNamespace(acquired=acquired),  # type: ignore[arg-type]
    )
    now = asyncio.get_running_loop().time()
    for key in found.services.store.keys("Topic"):
        manager.queue.add(key, key.name, now - 86_400.0)
    task = asyncio.create_task(manager.run())
    assert manager.health()["overdueSeconds"] == 0
    with released(go_on):
        acquired.set()
        await until(lambda: len(looks) == slots.THREADS)
        assert manager.queue.overdue(now) >= 86_400
        assert manager.health()["overdueSeconds"] < 3600
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("foreign", [False, True])
async def test_a_cluster_that_cannot_be_worked_on_gives_its_turn_back(foreign: bool) -> None:
    spec = {} if foreign else {"brokers": {"replicas": 0}}
    found = in_memory(stored({**cluster("east"), "spec": spec}), stored(cluster("west")))
    east, west = (Key("Cluster", "ns", name) for name in ("east", "west"))
    manager = Manager(found.services, CONTROLLERS)
    if foreign:
        found.kube.put(claim("ns", "other/release", NOW))
        found.kube.record = lambda *_: None  # type: ignore[assignment]
        manager.claims = Claims(found.kube, "this/release")
    queue = found.services.upgrade_queue
    assert queue.ask(found.services.store, east) == east
    assert queue.ask(found.services.store, west) == east
    await asyncio.to_thread(manager._reconcile, Batch(east, (east,)))
    assert queue.ask(found.services.store, west) == west


@pytest.mark.parametrize("kind", ["Topic", "ConsumerGroup"])
async def test_a_resource_that_cannot_be_understood_goes_when_its_user_gives_up(kind: str) -> None:
    broken = {
        **topic("a"),
        "kind": kind,
        "spec": {"clusterRef": {"name": "default"}, "topics": "..", "partitions": 0},
    }
    found = in_memory(stored(broken, **deleted(1)))
    manager = Manager(found.services, CONTROLLERS)
    key = Key(kind, "ns", "a")
    again = await asyncio.to_thread(manager._reconcile, Batch(key, (key,)))
    assert again[key] > 0
    status, reason, words = found.condition(kind, "a") or ("", "", "")
    assert (status, reason) == ("False", "InvalidSpec")
    assert words.endswith(
        "it is not deleted: correct it, or set annotation millstream.dev/skip-deletion=true to give up"
    )
    annotations = {"millstream.dev/skip-deletion": "true"}
    given_up = stored(broken, **deleted(1, annotations=annotations))
    found.kube.put(given_up)
    found.services.store.put(given_up)
    await asyncio.to_thread(manager._reconcile, Batch(key, (key,)))
    assert found.kube.objects[kind, "a"]["metadata"]["finalizers"] == []
