"""The session with a real ZooKeeper: calls and watches while the server pauses, dies and returns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from millstream_broker.config.config_types import ConfigError
from millstream_broker.coordination.stores import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Set,
    State,
    Unavailable,
    zookeeper_connection,
)
from millstream_broker.coordination.stores.ensemble import Ensemble, parse_connect
from millstream_broker.coordination.stores.zookeeper import ZooKeeperStore
from millstream_harness.members import until
from millstream_harness.wire import silent_listener
from millstream_harness.zookeeper import MAX_SESSION_MS, ZooKeeperEnsemble, ZooKeeperProcess

pytestmark = pytest.mark.soak

States = list[tuple[State, bool]]
SUSPENDED_S = 30.0
"""A session whose server is silent is suspended after two thirds of this; the last third is for a busy machine."""


@asynccontextmanager
async def session_of(connect: str, session_s: float = 60.0) -> AsyncIterator[tuple[ZooKeeperStore, States]]:
    states: States = []
    session = ZooKeeperStore(parse_connect(connect), session_s, patience=60.0)
    session.on_state = lambda state, is_new: states.append((state, is_new))
    session.start()
    try:
        yield session, states
    finally:
        await session.close(5.0)


@pytest.fixture
async def session(shared_zookeeper: ZooKeeperProcess) -> AsyncIterator[ZooKeeperStore]:
    async with session_of(shared_zookeeper.own_tree()) as (session, _):
        await session.connected()
        await session.ensure("/")
        yield session


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        yield server


def test_an_address_that_does_not_answer_is_left_long_before_the_sessions_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example, the address of a server that has moved."""
    monkeypatch.setattr(zookeeper_connection, "CONNECT_S", 0.2)
    with silent_listener() as address, pytest.raises(TimeoutError):
        zookeeper_connection.Handler(zookeeper_connection.ZooKeeperAccess()).create_connection(
            address, timeout=3600.0
        )


async def test_nodes_are_created_read_changed_and_deleted(session: ZooKeeperStore) -> None:
    assert await session.get("/a") is None
    assert await session.children("/a") is None
    created = await session.create("/a", b"one")
    read = await session.get("/a")
    assert read is not None
    assert (read.data, read.version, read.owner, read.created) == (b"one", 0, 0, created.created)
    assert await session.set("/a", b"two", 0) == 1
    with pytest.raises(BadVersionError):
        await session.set("/a", b"three", 0)
    with pytest.raises(NodeExistsError):
        await session.create("/a")
    with pytest.raises(NoNodeError):
        await session.create("/b/c")
    await session.ensure("/b/c/d")
    await session.ensure("/b/c/d")
    assert await session.children("/b/c") == ["d"]
    with pytest.raises(BadVersionError):
        await session.delete("/a", 0)
    await session.delete("/a", 1)
    assert await session.get("/a") is None
    assert (await session.create("/e", b"", ephemeral=True)).owner == session.session_id


async def test_a_multi_happens_whole_or_not_at_all(session: ZooKeeperStore) -> None:
    created = [Create("/a", b"1"), Create("/a/b", b"2"), Create("/a/n_", sequence=True), Check("/a", 0)]
    assert await session.multi(created) == ["/a", "/a/b", "/a/n_0000000001", None]
    assert await session.multi([Set("/a", b"3"), Delete("/a/b")]) == [1, None]
    with pytest.raises(MultiError) as failed:
        await session.multi([Set("/a", b"4", 1), Set("/a", b"5", 1)])
    assert (failed.value.index, type(failed.value.error)) == (1, BadVersionError)
    read = await session.get("/a")
    assert read is not None
    assert read.data == b"3"
    answers = await session.multi_all(
        [[Create("/x")], [Check("/a", 0), Set("/a", b"6")], [Set("/a", b"7"), Set("/a", b"8")]]
    )
    assert answers[0] == ["/x"]
    assert isinstance(answers[1], MultiError)
    assert answers[1].index == 0
    assert answers[2] == [2, 3]


async def test_watches_are_called_once_with_the_path(session: ZooKeeperStore) -> None:
    seen: list[str] = []
    watch = seen.append
    assert await session.get("/a", watch) is None
    await session.create("/a")
    await until(lambda: seen == ["/a"])
    await session.get("/a", watch)
    await session.get("/a", watch)
    await session.children("/a", watch)
    await session.set("/a", b"1")
    await until(lambda: seen == ["/a"] * 2)
    await session.create("/a/b")
    await until(lambda: seen == ["/a"] * 3)
    await session.set("/a", b"2")
    await session.create("/a/c")
    await session.get("/a")
    assert seen == ["/a"] * 3


async def test_thousands_of_calls_at_once(session: ZooKeeperStore) -> None:
    """More than the socket pair behind kazoo holds; results keep their order."""
    made = await session.multi_all([Create(f"/n{index}", str(index).encode())] for index in range(3000))
    assert made == [[f"/n{index}"] for index in range(3000)]
    seen: list[str] = []
    found = await session.get_all([f"/n{index}" for index in range(3001)], seen.append)
    assert [node and node.data for node in found] == [str(index).encode() for index in range(3000)] + [None]
    assert (
        await session.children_of_all(["/", "/n1", "/none"])
        == [
            [f"n{index}" for index in range(3000)],
            [],
            None,
        ]
        or len((await session.children_of_all(["/"]))[0] or []) == 3000
    )
    await session.multi_all([Set(f"/n{index}", b"")] for index in range(3000))
    await until(lambda: len(seen) == 3000)
    both = await asyncio.gather(*(session.get(f"/n{index}") for index in range(1000)))
    assert all(both)


async def test_chroots_nest_and_keep_apart(shared_zookeeper: ZooKeeperProcess) -> None:
    tree = shared_zookeeper.own_tree()
    async with session_of(f"{tree}/in/ner") as (inner, _), session_of(tree) as (outer, _):
        await inner.connected()
        await outer.connected()
        await inner.ensure("/")
        await inner.create("/a", b"here")
        found = await outer.get("/in/ner/a")
        assert found is not None
        assert found.data == b"here"
        assert await inner.children("/") == ["a"]


async def test_a_paused_server_suspends_and_the_session_goes_on(own_zookeeper: ZooKeeperProcess) -> None:
    async with session_of(own_zookeeper.connect, SUSPENDED_S) as (session, states):
        await session.connected()
        session.patience = 3600.0  # which a call does not wait for
        await session.create("/mine", ephemeral=True)
        own_zookeeper.pause()
        await until(lambda: states[-1:] == [(State.SUSPENDED, False)])
        with pytest.raises(Unavailable, match="cannot be reached"):
            await session.get("/mine")
        own_zookeeper.resume()
        await session.connected()
        assert states == [(State.CONNECTED, True), (State.SUSPENDED, False), (State.CONNECTED, False)]
        assert await session.get("/mine") is not None


async def test_a_call_to_a_paused_server_ends(own_zookeeper: ZooKeeperProcess) -> None:
    async with session_of(own_zookeeper.connect) as (session, _):
        await session.connected()
        session.patience = 0.2
        own_zookeeper.pause()
        results = await asyncio.gather(*(session.get("/") for _ in range(400)), return_exceptions=True)
        assert all(isinstance(one, Unavailable) for one in results)
        own_zookeeper.resume()
        session.patience = 60.0
        await session.connected()
        assert await session.get("/") is not None


async def test_a_session_that_ended_is_followed_by_another(shared_zookeeper: ZooKeeperProcess) -> None:
    async with session_of(shared_zookeeper.own_tree()) as (session, states):
        await session.connected()
        await session.ensure("/")
        await session.create("/mine", ephemeral=True)
        first = session.session_id
        await asyncio.to_thread(end_session, shared_zookeeper.connect, session)
        await until(lambda: len(states) >= 3 and session.is_connected)
        assert states[-2:] == [(State.LOST, False), (State.CONNECTED, True)]
        assert session.session_id != first
        assert await session.get("/mine") is None


def end_session(connect: str, session: ZooKeeperStore) -> None:
    """End it from another client that has taken it over, as the server would at its timeout."""
    other = KazooClient(connect, client_id=session._client.client_id)
    other.start()
    other.stop()
    other.close()


async def test_a_session_outlives_the_server_and_its_restart(own_zookeeper: ZooKeeperProcess) -> None:
    async with session_of(own_zookeeper.connect) as (session, states):
        await session.connected()
        await session.create("/mine", ephemeral=True)
        own_zookeeper.kill()
        await until(lambda: not session.is_connected)
        own_zookeeper.start()
        await session.connected()
        assert await session.get("/mine") is not None
        assert (State.LOST, False) not in states


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_error_in_kazoo_does_not_end_it_all(shared_zookeeper: ZooKeeperProcess) -> None:
    async with session_of(shared_zookeeper.own_tree()) as (session, states):
        await session.connected()
        session._client._queue.append((object(), None))  # cannot be sent, and ends kazoo's thread
        session._client._connection._write_sock.send(b"\0")
        await until(lambda: len(states) == 3)
        assert states[1:] == [(State.LOST, False), (State.CONNECTED, True)]
        assert await session.get("/") is None
        await session.ensure("/")
        assert await session.get("/") is not None


async def test_one_server_of_three_may_die(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        async with session_of(ensemble.connect) as (session, states):
            await session.connected()
            await session.create("/mine", ephemeral=True)
            ensemble.leader().kill()
            end = time.monotonic() + 60
            while True:
                try:
                    assert await session.get("/mine") is not None
                    await session.create("/after")
                    break
                except (Unavailable, NodeExistsError):
                    if await _has(session, "/after"):
                        break
                    assert time.monotonic() < end
                    await asyncio.sleep(0.05)
            assert (State.LOST, False) not in states


async def _has(session: ZooKeeperStore, path: str) -> bool:
    try:
        return await session.get(path) is not None
    except Unavailable:
        return False


@pytest.mark.parametrize("how", ["paused", "gone", "never there"])
async def test_closing_keeps_its_deadline_though_zookeeper_is_away(tmp_path: Path, how: str) -> None:
    server = ZooKeeperProcess(tmp_path)
    if how != "never there":
        server.start()
    session = ZooKeeperStore(parse_connect(server.connect), MAX_SESSION_MS / 1000)
    session.start()
    if how == "never there":
        with pytest.raises(Unavailable, match="cannot be reached"):
            await session.get("/")
    else:
        await session.connected()
        server.pause() if how == "paused" else server.kill()
    async with asyncio.timeout(60):  # long before the session's end
        await session.close(1.0)
    server.kill()


async def test_closing_ends_what_is_ephemeral_and_the_threads(shared_zookeeper: ZooKeeperProcess) -> None:
    tree = shared_zookeeper.own_tree()
    before = set(threading.enumerate())  # threads of other tests may end meanwhile
    async with session_of(tree) as (watching, _):
        await watching.connected()
        await watching.ensure("/")
        async with session_of(tree) as (session, _):
            await session.connected()
            await session.create("/mine", ephemeral=True)
        assert await watching.get("/mine") is None
    await until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("zk", "zk:2181", ""),
        ("zk:2182/", "zk:2182", ""),
        (" a:1,b:2/kafka/x ", "a:1,b:2", "/kafka/x"),
        ("[::1]:2181,[::2]/k", "[::1]:2181,[::2]:2181", "/k"),
    ],
)
def test_connect_strings(text: str, servers: str, chroot: str) -> None:
    assert parse_connect(text) == Ensemble(servers, chroot)


@pytest.mark.parametrize("text", [",", "a:,b", "a:x", "a:0", "a:70000", "a//b", "::1:2181", "a,,b", "/kafka"])
def test_bad_connect_strings_say_what_is_wrong(text: str) -> None:
    with pytest.raises(ConfigError, match=f"zookeeper.connect={text}: .*expected HOST:PORT,HOST:PORT"):
        parse_connect(text)
