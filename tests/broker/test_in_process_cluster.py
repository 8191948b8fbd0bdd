"""The harness's clusters in this process: faults of one broker, at once, and what remains of a killed one."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from confluent_kafka import Producer

from millstream_broker.coordination.stores import Delete
from millstream_broker.coordination.tree import broker_path
from millstream_broker.log.directory import CLEAN_SHUTDOWN
from millstream_harness import loop_client
from millstream_harness.activity import Activity
from millstream_harness.background_loop import background_loop
from millstream_harness.in_process_broker import CopiedInProcessBroker, InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster, LoopCluster
from millstream_harness.jumping_clock import jumping_clock, now
from millstream_harness.ledger import Load, check
from millstream_harness.loop_broker import LoopBroker
from millstream_harness.members import until
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, record
from millstream_kafka.client import ClusterClient
from millstream_process import supervision


@jumping_clock
async def test_another_broker_leads_and_nothing_is_lost(tmp_path: Path) -> None:
    async with LoopCluster(tmp_path) as cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "t")
        first = await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        await loop_client.write(client, "t", ["a", "b"])
        killed = cluster.brokers[first.leader]
        await killed.kill()
        second = await cluster.agreed("t", accepted=lambda record: record.leader != first.leader)
        assert second.leader_epoch > first.leader_epoch
        await loop_client.write(client, "t", ["c"])
        assert await loop_client.read(client, "t") == ["a", "b", "c"]
        await killed.start()
        await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        assert await loop_client.read(client, "t") == ["a", "b", "c"]


@jumping_clock
async def test_a_broker_whose_session_expires_registers_again(tmp_path: Path) -> None:
    async with LoopCluster(tmp_path) as cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "t")
        first = await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        expired = first.leader
        session, epoch = cluster.store(expired).session_id, cluster.state(expired).brokers[expired].epoch
        cluster.store(expired).expire()
        await until(lambda: all(cluster.state(one).brokers[expired].epoch > epoch for one in cluster.brokers))
        assert cluster.store(expired).session_id > session
        await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        await loop_client.write(client, "t", ["a"])
        assert await loop_client.read(client, "t") == ["a"]


@jumping_clock
async def test_a_registration_is_watched_again_after_the_connection_was_lost(tmp_path: Path) -> None:
    """Watches end with a connection, even if the session lives on."""
    async with LoopCluster(tmp_path) as cluster:
        await until(lambda: all(len(cluster.state(one).brokers) == 3 for one in cluster.brokers))
        removed = next(one for one in cluster.brokers if one != cluster.state(one).controller_id)
        store = cluster.store(removed)
        session, epoch = store.session_id, cluster.state(removed).brokers[removed].epoch
        store.cut()
        store.heal()
        await until(lambda: store.is_connected)
        await asyncio.sleep(1)  # it has read every node that it watches
        cluster.tree.commit([Delete(broker_path(removed))], 0)
        await until(lambda: all(cluster.state(one).brokers[removed].epoch > epoch for one in cluster.brokers))
        assert store.session_id == session


@jumping_clock
async def test_a_broker_that_is_cut_from_the_tree_loses_its_session_after_the_timeout(tmp_path: Path) -> None:
    async with LoopCluster(tmp_path) as cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "t")
        first = await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        cut, began = first.leader, now()
        cluster.store(cut).cut()
        others = [number for number in cluster.brokers if number != cut]

        def is_replaced() -> bool:
            known = [cluster.partition("t", of=number) for number in others]
            return all(one is not None and one.leader in others for one in known)

        await until(is_replaced)
        assert cluster.tree.timeout_s <= now() - began < cluster.tree.timeout_s + 1
        known = cluster.partition("t", of=cut)
        assert known is not None
        assert known.leader == cut, "it keeps what it knows"
        bootstrap = [cluster.brokers[number].bootstrap for number in others]
        async with ClusterClient(bootstrap, "test") as other:
            await loop_client.write(other, "t", ["a"])
        cluster.store(cut).heal()
        await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        client.forget_leaders()
        assert await loop_client.read(client, "t") == ["a"]


@jumping_clock
async def test_another_broker_leads_what_was_in_a_failed_directory(tmp_path: Path) -> None:
    cluster = LoopCluster(tmp_path)
    for one in cluster.brokers.values():
        one.config["log.dirs"] = f"{one.data},{one.folder / 'second'}"
    async with cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "t")
        first = await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        await loop_client.write(client, "t", ["a"])
        logs = cluster.brokers[first.leader].broker.logs
        (home,) = (one for one in logs.dirs if ("t", 0) in one.logs)
        home.check(OSError(errno.EIO, "Input/output error", str(home.path)))
        second = await cluster.agreed("t", accepted=lambda record: record.leader != first.leader)
        assert second.leader_epoch > first.leader_epoch
        await loop_client.write(client, "t", ["b"])
        assert await loop_client.read(client, "t") == ["a", "b"]


@jumping_clock
async def test_while_the_tree_is_down_no_session_ends(tmp_path: Path) -> None:
    async with LoopCluster(tmp_path) as cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "t")
        first = await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        sessions = {number: cluster.store(number).session_id for number in cluster.brokers}
        cluster.tree.stop()
        await asyncio.sleep(60)
        await loop_client.write(client, "t", ["a"])
        cluster.tree.start()
        await until(lambda: all(cluster.store(number).is_connected for number in cluster.brokers))
        assert {number: cluster.store(number).session_id for number in cluster.brokers} == sessions
        assert (await cluster.agreed("t")).leader_epoch == first.leader_epoch


@jumping_clock
async def test_a_replica_that_is_gone_leaves_the_isr(tmp_path: Path) -> None:
    async with LoopCluster(tmp_path) as cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "t")
        first = await cluster.agreed("t", accepted=lambda record: len(record.isr) == 3)
        stopped = next(number for number in first.isr if number != first.leader)
        await cluster.brokers[stopped].stop()
        await cluster.agreed("t", accepted=lambda record: stopped not in record.isr)
        await loop_client.write(client, "t", ["a"])


@jumping_clock
async def test_records_run_out(tmp_path: Path) -> None:
    """Hours of retention and of the broker's checks pass at once, by the wall clock, too."""
    config = {
        "log.retention.ms": "600000",
        "log.retention.check.interval.ms": "60000",
        "log.roll.ms": "60000",
    }
    async with (
        LoopCluster(tmp_path, 1, config) as cluster,
        ClusterClient(cluster.bootstrap, "test") as client,
    ):
        await loop_client.create(client, "t", replicas=1)
        await loop_client.write(client, "t", ["old"])
        await asyncio.sleep(120)
        await loop_client.write(client, "t", ["new"])
        log = cluster.brokers[1].broker.logs.get("t", 0)
        assert log is not None
        began = now()
        await until(lambda: log.log_start_offset == 1, 3000.0)
        assert 450 < now() - began < 660


async def test_a_kill_leaves_what_a_process_leaves(tmp_path: Path) -> None:
    broker = LoopBroker(tmp_path, {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"})
    for topic in ("before", "after"):
        await broker.start()
        async with ClusterClient(broker.bootstrap, "test") as client:
            await loop_client.create(client, topic, 4, 1)
            await loop_client.write(client, topic, ["a"])
        running = broker.broker
        before = {
            path: path.read_bytes() for path in sorted(tmp_path.rglob("*.log")) if "-" in path.parent.name
        }
        await broker.kill()
        assert {path: path.read_bytes() for path in before} == before
        assert not list(tmp_path.rglob(CLEAN_SHUTDOWN))
        assert not running.logs.dirs[0].is_locked
    await broker.start()
    assert len(broker.broker.replicas.metadata.topics) == 2
    await broker.stop()
    assert len(list(tmp_path.rglob(CLEAN_SHUTDOWN))) == 2


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no broker of another test ran in this process."""
    monkeypatch.setattr(Activity, "running", WeakSet())
    monkeypatch.setattr(supervision, "failures", {})


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("alone")
async def test_nothing_is_left_over(tmp_path: Path) -> None:
    """Neither tasks, nor threads, nor open files."""
    ends: list[Callable[[LoopBroker], object]] = [LoopBroker.stop, LoopBroker.kill, LoopBroker.restart]
    before = -1
    for end in [ends[0], *ends]:
        broker = LoopBroker(tmp_path)
        async with broker:
            async with ClusterClient(broker.bootstrap, "test") as client:
                if before < 0:
                    await loop_client.create(client, "t", 4, 1)
                await loop_client.write(client, "t", ["a"])
            result = end(broker)
            assert asyncio.iscoroutine(result)
            await result
        del broker, client, result
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert not Activity.running
        if before >= 0:
            await until(lambda: descriptors() <= before)  # noqa: B023
        before = descriptors()


async def test_a_broker_that_cannot_start_says_why_and_holds_nothing(tmp_path: Path) -> None:
    first = LoopBroker(tmp_path)
    async with first:
        port = first.bootstrap.rpartition(":")[2]
        taken = LoopBroker(tmp_path / "other", {"listeners": f"PLAINTEXT://127.0.0.1:{port}"})
        with pytest.raises(RuntimeError, match=r"cannot listen there: Address already in use"):
            await taken.start()
        locked = LoopBroker(tmp_path / "other", {"log.dirs": str(first.data)})
        with pytest.raises(RuntimeError, match="is in use by another broker"):
            await locked.start()
        assert "is in use by another broker" in locked.said()
        unknown = LoopBroker(tmp_path / "other", {"log.segment.bytes": "many"})
        with pytest.raises(RuntimeError, match=r"log\.segment\.bytes"):
            await unknown.start()
    await locked.start()
    await locked.stop()


async def test_each_broker_has_its_own_log(tmp_path: Path) -> None:
    brokers = [await LoopBroker(tmp_path / name).start() for name in ("a", "b")]
    for one in brokers:
        with Wire(one.bootstrap) as wire:
            wire.socket.sendall(b"\x7f\xff\xff\xff")
            assert await asyncio.to_thread(wire.is_closed)
    logging.getLogger("millstream_broker").warning("of nobody")
    logging.getLogger("millstream_broker").error("of any")
    for one in brokers:
        assert one.said().count("closed the connection of") == 1
        assert one.said().startswith("ready: broker.id=1 ")
        assert "of nobody" not in one.said()
        assert "of any" in one.said()
        await one.stop()


@pytest.mark.usefixtures("alone")
async def test_failures_of_tasks_are_those_of_brokers_that_run(tmp_path: Path) -> None:
    async with LoopBroker(tmp_path / "a"):
        supervision.failed("retention", ValueError())
        async with LoopBroker(tmp_path / "b"):
            assert supervision.failures["retention"] == 1
    async with LoopBroker(tmp_path / "c"):
        assert supervision.failures["retention"] == 0


# With clients that block


def test_a_broker_serves_clients_that_block(tmp_path: Path) -> None:
    broker = InProcessBroker(tmp_path).keep_port()
    with broker:
        assert broker.get("/readyz") == (200, "ready\n")
        with Wire(broker.bootstrap) as wire:
            wire.create("t")
            assert wire.produce("t", [record("a")]).error_code == 0
        assert broker.stop() == 0
        before = broker.bootstrap
        broker.start()
        assert broker.bootstrap == before
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            assert wire.end_offset("t") == 1


def test_a_killed_broker_has_what_it_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what arrived while its files were copied, and is readable at once afterwards."""
    copy = shutil.copytree

    def copy_slowly(*arguments: Any) -> object:
        copied = copy(*arguments)
        time.sleep(0.3)
        return copied

    broker = InProcessBroker(tmp_path).keep_port()
    with broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("t")
        monkeypatch.setattr(shutil, "copytree", copy_slowly)
        with Load(broker.bootstrap, "t") as load:
            load.until(50)
            broker.kill()
            broker.start()
            load.until(load.ledger.count + 50)
        check(broker.bootstrap, "t", [load])


def test_a_disk_is_restored_from_a_copy(tmp_path: Path) -> None:
    with CopiedInProcessBroker(tmp_path).keep_port() as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("before")
        broker.copy()
        with Wire(broker.bootstrap) as wire:
            wire.create("after")
        broker.restore()
        broker.start()
        assert {path.name for path in broker.data.glob("*-0")} == {"before-0"}


def test_a_cluster_serves_clients_that_block(tmp_path: Path) -> None:
    before = at_work()
    with InProcessCluster(tmp_path) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        producer.produce("t", b"a")
        assert producer.flush(60) == 0
        cluster.await_in_sync("t")
        leader = cluster.leader("t")
        leader.kill()
        cluster.await_in_sync("t", 2)
        assert cluster.leader("t") is not leader
        cluster.start()
        cluster.await_in_sync("t")
        controller = cluster.controller()
        cluster.expire(controller)
        cluster.cut(controller)
        cluster.heal(controller)
        cluster.await_in_sync("t")
    eventually(lambda: at_work() - before, lambda left: not left, "tasks")


def at_work() -> set[asyncio.Task[Any]]:
    """The tasks of the background loop; another test's broker may run there."""
    return {task for task in background_loop().call(asyncio.all_tasks) if not task.done()}


# The clock


@jumping_clock
async def test_the_clock_jumps_only_when_nothing_works() -> None:
    began, real = now(), time.perf_counter()
    held = asyncio.to_thread(time.sleep, 0.2)
    sleeping = asyncio.create_task(asyncio.sleep(3000))
    await held
    assert now() == began
    before = time.time(), time.monotonic()
    await sleeping
    assert now() == began + 3000
    assert time.time() - before[0] == pytest.approx(3000)
    assert time.monotonic() - before[1] == pytest.approx(3000)
    assert 0.2 <= time.perf_counter() - real < 1000


@jumping_clock
async def test_no_time_passes_while_anything_is_on_its_way() -> None:
    """What a sender on this loop has sent is there, in any amount, before the clock moves."""
    received = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        while data := await reader.read(100_000):
            received += len(data)
            writer.write(b"x" * 100)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    timer = asyncio.create_task(asyncio.sleep(0.001))
    for size in (1, 100, 1_000_000, 30_000_000):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x" * size)
        await writer.drain()
        writer.write_eof()
        while await reader.read(100_000):
            pass
        writer.close()
        await writer.wait_closed()
    assert received == 31_000_101
    assert now() == 0
    assert not timer.done()
    timer.cancel()
    server.close()


def test_what_never_happens_fails_at_once() -> None:
    @jumping_clock
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        waits()
