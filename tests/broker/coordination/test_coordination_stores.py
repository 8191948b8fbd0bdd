"""The stores of the tree: ZooKeeper, the file, and the harness's shared tree follow the same rules; the file survives
crashes and damage."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream_broker.coordination import CoordinationError, tree
from millstream_broker.coordination.stores import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Set,
    Store,
    Unavailable,
)
from millstream_broker.coordination.stores import file as module
from millstream_broker.coordination.stores.ensemble import parse_connect
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore
from millstream_broker.coordination.stores.nodes import Changes, Nodes
from millstream_broker.coordination.stores.zookeeper import ZooKeeperStore
from millstream_harness.members import until
from millstream_harness.shared_tree import SharedTree
from millstream_harness.virtual_time import turns
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process


@pytest.fixture(params=["zookeeper", "file", "shared tree"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store
    if request.param == "file":
        made = FileStore(tmp_path / FILE_NAME)
    elif request.param == "shared tree":
        made = SharedTree().store()
    else:
        zookeeper: ZooKeeperProcess = request.getfixturevalue("shared_zookeeper")
        made = ZooKeeperStore(parse_connect(zookeeper.own_tree()), 60.0, patience=60.0)
    made.start()
    await made.connected()
    await made.ensure("/")
    yield made
    await made.close(5.0)


# The rules of any store


async def test_nodes_come_change_and_go(store: Store) -> None:
    assert await store.get("/a") is None
    made = await store.create("/a", b"1")
    assert (made.data, made.version, made.owner) == (b"1", 0, 0)
    assert await store.set("/a", b"2", 0) == 1
    there = await store.get("/a")
    assert there is not None
    assert (there.data, there.version, there.created) == (b"2", 1, made.created)
    assert await store.set("/a", b"3") == 2
    later = await store.create("/b")
    assert later.created > made.created
    assert sorted(await store.children("/") or ()) == ["a", "b"]
    await store.delete("/a", 2)
    assert await store.get("/a") is None
    assert await store.children("/a") is None


async def test_what_cannot_be_is_refused(store: Store) -> None:
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NodeExistsError):
        await store.create("/a")
    with pytest.raises(NoNodeError):
        await store.create("/none/b")
    for version in (1, 7):
        with pytest.raises(BadVersionError):
            await store.set("/a", b"", version)
    with pytest.raises(NoNodeError):
        await store.set("/none", b"")
    with pytest.raises(NoNodeError):
        await store.delete("/none")
    with pytest.raises(NotEmptyError):
        await store.delete("/a")
    await store.delete("/a/b")
    await store.delete("/a")


async def test_a_multi_happens_whole_or_not_at_all(store: Store) -> None:
    await store.create("/a", b"1")
    results = await store.multi(
        [Check("/a", 0), Create("/a/b"), Set("/a", b"2"), Create("/a/b/c"), Delete("/a/b/c")]
    )
    assert results == [None, "/a/b", 1, "/a/b/c", None]
    with pytest.raises(MultiError) as failed:
        await store.multi([Set("/a", b"3"), Create("/a/d"), Delete("/a/b"), Check("/a", 1), Create("/e")])
    assert failed.value.index == 3
    assert isinstance(failed.value.error, BadVersionError)
    assert await store.children("/a") == ["b"]
    there = await store.get("/a")
    assert there is not None
    assert there.data == b"2"
    await store.delete("/a/b")
    await store.delete("/a")


async def test_multis_succeed_and_fail_by_themselves(store: Store) -> None:
    answers = await store.multi_all(
        [
            [Create("/a"), Create("/a/b")],
            [Create("/a")],
            [Create("/c"), Delete("/none")],
            [Delete("/a/b"), Delete("/a")],
        ]
    )
    assert answers[0] == ["/a", "/a/b"]
    assert isinstance(answers[1], MultiError)
    assert isinstance(answers[1].error, NodeExistsError)
    assert isinstance(answers[2], MultiError)
    assert (answers[2].index, answers[3]) == (1, [None, None])
    assert await store.get_all(["/a", "/c"]) == [None, None]
    assert await store.children_of_all(["/", "/c"]) == [[], None]


async def test_numbered_nodes_rise_though_the_last_one_went(store: Store) -> None:
    await store.create("/notes")
    made = [
        path
        for _ in range(3)
        for path in await store.multi(
            [Create("/notes/n_", sequence=True), Create("/notes/n_", sequence=True)]
        )
    ]
    assert made == sorted(set(made))
    assert all(path.startswith("/notes/n_") and len(path) == len("/notes/n_") + 10 for path in made)
    await store.delete(made[-1])
    (again,) = await store.multi([Create("/notes/n_", sequence=True)])
    assert again > made[-1]


async def test_ephemeral_nodes_are_the_sessions(store: Store) -> None:
    made = await store.create("/mine", ephemeral=True)
    there = await store.get("/mine")
    assert there is not None
    assert there.owner == made.owner == store.session_id != 0


async def test_watches_are_told_once(store: Store) -> None:
    told: list[str] = []

    def data(path: str) -> None:
        told.append(f"data {path}")

    def names(path: str) -> None:
        told.append(f"names {path}")

    assert await store.get("/a", data) is None
    await store.children("/", names)
    await store.create("/a")
    await until(lambda: sorted(told) == ["data /a", "names /"])
    await store.set("/a", b"1")
    assert (await store.get_all(["/a"], data)) != [None]
    await store.children("/a", names)
    await store.set("/a", b"2")
    await until(lambda: told[2:] == ["data /a"])
    await store.create("/a/b")
    await until(lambda: told[3:] == ["names /a"])
    await store.get("/a/b", data)
    await store.delete("/a/b")
    await until(lambda: told[4:] == ["data /a/b"])


async def test_a_node_that_is_made_anew_at_once_is_another_child(store: Store) -> None:
    """As when a broker registers again."""
    told: list[str] = []
    first = await store.create("/a")
    await store.children("/", told.append)
    await store.multi([Delete("/a", 0), Create("/a")])
    await until(lambda: told == ["/"])
    again = await store.get("/a")
    assert again is not None
    assert (again.version, again.created > first.created) == (0, True)


async def test_nodes_are_ensured_together(store: Store) -> None:
    await store.create("/a", b"1")
    for _ in range(2):
        await store.ensure("/", "/a/b/c", "/a/b/d", "/e")
    assert sorted(await store.children("/") or ()) == ["a", "e"]
    assert sorted(await store.children("/a/b") or ()) == ["c", "d"]
    kept = await store.get("/a")
    assert kept is not None
    assert (kept.data, kept.version) == (b"1", 0)


# The file


async def opened(folder: Path) -> FileStore:
    store = FileStore(folder / FILE_NAME)
    store.start()
    return store


async def test_what_is_written_is_there_again(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await first.ensure("/a/b")
    await first.create("/a/gone")
    await first.create("/mine", ephemeral=True)
    await first.multi([Set("/a", "ä".encode()), Delete("/a/gone"), Create("/a/n_", sequence=True)])
    before = await first.get_all(["/a", "/a/b", "/a/n_0000000000"])
    await first.close(5.0)
    again = await opened(tmp_path)
    assert await again.get_all(["/a", "/a/b", "/a/n_0000000000"]) == before
    assert await again.get_all(["/a/gone", "/mine"]) == [None, None]
    node = before[0]
    assert node is not None
    assert (await again.create("/later")).created > node.created
    assert await again.multi([Create("/a/n_", sequence=True)]) == ["/a/n_0000000001"]
    await again.close(5.0)


async def test_a_call_returns_when_it_is_on_the_disk(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for number in range(5):
        await store.create(f"/n{number}")
        other = await opened(tmp_path)
        assert await other.get(f"/n{number}") is not None
    await store.close(5.0)


async def test_transactions_that_wait_are_written_with_one_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    await store.create("/a")
    synced: list[int] = []
    monkeypatch.setattr(module.os, "fdatasync", synced.append)
    await asyncio.gather(*(store.create(f"/a/{number}") for number in range(300)))
    assert len(synced) == 1
    assert len(await store.children("/a") or ()) == 300
    await store.close(5.0)


async def test_a_new_tree_costs_one_write(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.ensure("/cluster", *tree.ALWAYS)
    assert len((tmp_path / FILE_NAME).read_bytes().splitlines()) == 2
    assert None not in await store.get_all(tree.ALWAYS)
    await store.close(5.0)


async def test_a_long_file_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLACK_BYTES", 4096)
    monkeypatch.setattr(module, "NODES_IN_LINE", 7)
    store = await opened(tmp_path)
    await store.ensure("/a")
    await store.multi([Create(f"/a/{number}") for number in range(20)])
    for number in range(500):
        await store.set("/a", b"%d" % number)
    await store.close(5.0)
    assert (tmp_path / FILE_NAME).stat().st_size < 12_000
    again = await opened(tmp_path)
    assert len(await again.children("/a") or ()) == 20
    node = await again.get("/a")
    assert node is not None
    assert (node.data, node.version) == (b"499", 500)


async def test_a_file_that_is_whole_is_continued_by_the_next_process(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.create("/a")
    await store.close(5.0)
    before = (tmp_path / FILE_NAME).read_bytes()
    again = await opened(tmp_path)
    await again.create("/b")
    await again.close(5.0)
    assert (tmp_path / FILE_NAME).read_bytes().startswith(before)
    last = await opened(tmp_path)
    assert None not in await last.get_all(["/a", "/b"])


async def test_a_file_of_many_processes_is_written_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLACK_BYTES", 4096)
    monkeypatch.setattr(module, "NODES_IN_LINE", 7)
    for run in range(20):
        store = await opened(tmp_path)
        await store.ensure("/a")
        await store.multi([Create(f"/a/{run}-{number}") for number in range(20)])
        for number in range(30):
            await store.set("/a", b"%d" % number)
        await store.multi([Delete(f"/a/{run}-{number}") for number in range(20)])
        await store.close(5.0)
        assert (tmp_path / FILE_NAME).stat().st_size < 12_000


async def test_a_transaction_of_which_only_parts_were_written_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NODES_IN_LINE", 2)
    store = await opened(tmp_path)
    await store.create("/a")
    await store.multi([Create(f"/a/{number}") for number in range(5)])
    await store.close(5.0)
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    again = await opened(tmp_path)
    assert await again.children("/a") == []
    await again.create("/b")
    await again.close(5.0)
    last = await opened(tmp_path)
    assert await last.children("/a") == []
    assert await last.get("/b") is not None


@pytest.mark.parametrize("cut", range(1, 40))
async def test_a_line_that_a_crash_cut_is_dropped(tmp_path: Path, cut: int) -> None:
    store = await opened(tmp_path)
    await store.create("/a")
    await store.create("/b")
    await store.close(5.0)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    again = await opened(tmp_path)
    assert [node is not None for node in await again.get_all(["/a", "/b"])] == [True, False]
    await again.create("/c")
    await again.close(5.0)
    last = await opened(tmp_path)
    assert [node is not None for node in await last.get_all(["/a", "/b", "/c"])] == [True, False, True]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_damage_in_the_midst_is_named(tmp_path: Path, number: int) -> None:
    store = await opened(tmp_path)
    for name in "abc":
        await store.create(f"/{name}")
    await store.close(5.0)
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"', b"'", 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(
        CoordinationError, match=rf"coordination\.journal: cannot be read: line {number + 1} is"
    ):
        await opened(tmp_path)
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("text", [b"", b"{", b"{}\n", b"\0" * 100])
async def test_a_file_of_something_else_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(text)
    with pytest.raises(CoordinationError, match=r"coordination\.journal: cannot be read"):
        await opened(tmp_path)


async def test_a_file_of_the_future_is_refused(tmp_path: Path) -> None:
    text = b'{"format":2}'
    (tmp_path / FILE_NAME).write_bytes(b"%08x %s\n" % (zlib.crc32(text), text))
    with pytest.raises(CoordinationError, match="format 2 is not known: expected 1"):
        await opened(tmp_path)


async def test_what_cannot_be_written_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either a new file cannot be created, or the existing one cannot grow; afterwards all works again."""
    failures: list[OSError] = []
    store = await opened(tmp_path)
    store.failed = failures.append
    (tmp_path / f"{FILE_NAME}.tmp").mkdir()
    with pytest.raises(CoordinationError, match=r"coordination\.journal: cannot be written: Is a directory"):
        await store.create("/a")
    assert (await store.get("/a"), len(failures)) == (None, 1)
    (tmp_path / f"{FILE_NAME}.tmp").rmdir()
    await store.create("/a")

    def full(file: int, data: memoryview) -> int:
        write(file, data[:5])
        raise OSError(28, "No space left on device")

    write = module.os.write
    with monkeypatch.context() as patched:
        patched.setattr(module.os, "write", full)
        answers = await asyncio.gather(
            store.create("/b"), store.delete("/a"), store.delete("/none"), return_exceptions=True
        )
    assert ["cannot be written: No space left on device" in str(one) for one in answers] == [True] * 3
    assert (await store.get("/b"), await store.get("/a") is None, len(failures)) == (None, False, 2)
    await store.create("/b")
    await store.close(5.0)
    again = await opened(tmp_path)
    assert None not in await again.get_all(["/a", "/b"])


async def test_who_waits_is_answered_though_nothing_can_hold_it(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    async with asyncio.timeout(60):
        with pytest.raises(CoordinationError, match="cannot be written"):
            await store.create("/a", b"\xff")
        await store.create("/b")
    await store.close(5.0)


async def test_a_write_that_has_begun_ends_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a thread would write to a file number that belongs to another file by then."""
    store = FileStore(tmp_path / FILE_NAME)
    await store.ensure("/a")
    entered, released = threading.Event(), threading.Event()
    sync = os.fdatasync

    def held(file: int) -> None:
        entered.set()
        assert released.wait(60)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", held)
    failures: list[OSError] = []
    store.failed = failures.append
    writing = asyncio.create_task(store.create("/a/b"))
    await asyncio.to_thread(entered.wait, 60)
    monkeypatch.setattr(module, "CLOSE_S", 60.0)
    closing = asyncio.create_task(store.close(0.0))
    await turns()
    assert not closing.done()
    released.set()
    await closing
    assert (await writing).version == 0
    assert not failures
    with pytest.raises(Unavailable, match="is closed"):
        await store.create("/a/c")
    again = FileStore(tmp_path / FILE_NAME)
    again.start()
    assert await again.children("/a") == ["b"]


async def test_the_loop_takes_over_a_limited_number_of_operations_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of operations may wait; one multi is never split."""
    monkeypatch.setattr(module, "WRITTEN_AT_ONCE", 10)
    taken: list[int] = []
    take = Nodes.take

    def noted(self: Nodes, zxid: int, changes: Changes, *, notify: bool = True) -> None:
        taken.append(len(changes))
        take(self, zxid, changes, notify=notify)

    monkeypatch.setattr(Nodes, "take", noted)
    store = FileStore(tmp_path / FILE_NAME)
    store.start()
    single = [[Create(f"/one{number}")] for number in range(34)]
    together = [Create(f"/many{number}") for number in range(25)]
    answers = await store.multi_all([*single, together, [Delete("/one3")], [Delete("/nowhere")]])
    assert [isinstance(answer, list) for answer in answers] == [True] * 36 + [False]
    assert taken == [10, 10, 10, 4, 25, 1]
    await store.close(5.0)
    again = FileStore(tmp_path / FILE_NAME)
    again.start()
    assert len([name for name in await again.children("/") or () if name]) == 34 + 25 - 1
    await again.close(5.0)
