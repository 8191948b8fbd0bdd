"""The runner: what goes wrong with one resource leaves no group behind, and slow groups leave workers to others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, MemoryKube, in_memory, stored
from millstream_harness.manifests import cluster, topic
from millstream_operator import controller
from millstream_operator.controller import Controller, Runner
from millstream_operator.handlers import CONTROLLERS
from millstream_operator.kafka_admin import AdminError
from millstream_operator.models import Cluster, Topic, decode_as
from millstream_operator.services import Services
from millstream_operator.store import Key, key_for

Reconcile = Callable[[Services, Sequence[Topic]], Mapping[Key, float]]


@contextlib.asynccontextmanager
async def running(found: InMemory, reconcile: Reconcile) -> AsyncIterator[Runner]:
    by_name = Controller(Topic, reconcile, lambda one: one.name)
    runner = Runner(found.services, {"Topic": by_name})
    task = asyncio.create_task(runner.run())
    for manifest in found.kube.objects.values():
        runner.enqueue(Key("Topic", "ns", manifest["metadata"]["name"]))
    yield runner
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nonsense_from_a_reconcile_leaves_its_group_to_another_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[str] = []

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        looks.extend(one.name for one in topics)
        return {key_for(one): "soon" if len(looks) == 1 else 60.0 for one in topics}  # type: ignore[misc]

    async with running(in_memory(stored(topic("a"))), reconcile) as runner:
        await until(lambda: len(looks) == 2)
        assert caplog.messages == ["work on Topic ns/a failed"]
        await until(lambda: runner.health()["reconciles"] == 1)


async def test_a_look_that_does_not_end_shows() -> None:
    end = threading.Event()

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        end.wait(10)
        return dict.fromkeys(map(key_for, topics), 60.0)

    async with running(in_memory(stored(topic("a"))), reconcile) as runner:
        await until(lambda: (runner.health()["longestLookSeconds"] or 0) > 0.1)
        assert runner.health()["overdueSeconds"] == 0
        end.set()
        await until(lambda: runner.health()["longestLookSeconds"] == 0)


async def test_slow_groups_leave_workers_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "SLOW_S", 2.5)  # longer than a busy machine takes for a quick one
    held, waits, quick = threading.Event(), list[str](), list[str]()

    def reconcile(_: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
        (one,) = topics
        if one.name.startswith("quick"):
            quick.append(one.name)
            return {key_for(one): 0.05}
        waits.append(one.name)
        if waits.count(one.name) == 1:
            held.wait(2.6)
        else:
            held.wait(60)
            waits.remove(one.name)
        return {key_for(one): 0.0}

    slow = [stored(topic(f"slow-{number}")) for number in range(6)]
    async with running(in_memory(*slow, stored(topic("quick"))), reconcile) as runner:
        await until(lambda: len(waits) == len(slow) + controller.SLOW_WORKERS)
        before = len(quick)
        await until(lambda: len(quick) > before + 3)
        assert len(waits) == len(slow) + controller.SLOW_WORKERS
        assert (runner.health()["overdueSeconds"] or 0) < 1
        held.set()


async def test_the_brokers_of_a_cluster_that_is_gone_are_let_go() -> None:
    services = Services(MemoryKube())
    gone = stored(cluster("default"))
    runner = Runner(services, CONTROLLERS)
    runner.seen(None, gone)
    address = services.address_of(decode_as(Cluster, gone))
    admin = services.admins.at(address)
    runner.seen("DELETED", gone)
    await until(lambda: services.admins.at(address) is not admin)
    with pytest.raises(AdminError, match="is closed: its cluster is gone"):  # a look that is under way
        admin.cluster_id()
    services.admins.close()
