"""A cluster's tree in memory, which the brokers of one loop share in place of ZooKeeper's.

    tree = SharedTree()
    broker, _ = await start(config, tree.store)   # open_shared, see millstream_broker.cluster.joining

The tree follows the product's own rules for nodes (`stores.nodes`), and ZooKeeper's for sessions: an ephemeral node
disappears with its session; a connection that is lost takes its watches along; its session outlives it by the timeout,
in the loop's time. A test breaks what it wants to see broken: `SharedStore.cut`, `heal`, `expire` and `vanish` of one
broker, `SharedTree.stop` and `start` of all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream_broker.coordination.stores import (
    Create,
    Delete,
    MultiError,
    Node,
    Operation,
    Set,
    State,
    Unavailable,
    Watch,
    with_parents,
)
from millstream_broker.coordination.stores.nodes import GroupCommit, Nodes

T = TypeVar("T")


class SharedTree:
    """All is called on one loop."""

    def __init__(self, timeout_s: float = 2.0) -> None:
        """``timeout_s``: how long a session outlives its connection."""
        self.timeout_s = timeout_s
        self.nodes = Nodes()
        self.is_up = True
        self._sessions: dict[int, asyncio.TimerHandle | None] = {}
        """The live sessions; with a timer, if their connection is lost."""
        self._opened = 0
        self._stores: list[SharedStore] = []

    def store(self) -> SharedStore:
        """A broker's way to the tree."""
        store = SharedStore(self)
        self._stores.append(store)
        return store

    def stop(self) -> None:
        """Nobody reaches the tree any more. No session ends meanwhile, as while ZooKeeper is down."""
        self.is_up = False
        for store in self._stores:
            store.disconnect()
        for session, timer in self._sessions.items():
            if timer is not None:
                timer.cancel()
                self._sessions[session] = None

    def start(self) -> None:
        """Reachable again, with every session that was live; their timeouts begin anew."""
        self.is_up = True
        for session in self._sessions:
            self.leave(session)
        for store in self._stores:
            store.reconnect()

    # Sessions

    def open(self) -> int:
        self._opened += 1
        self._sessions[self._opened] = None
        return self._opened

    def resume(self, session: int) -> bool:
        """Whether the session is still live; then its timeout no longer runs."""
        if session not in self._sessions:
            return False
        self._stop_timer(session)
        return True

    def leave(self, session: int) -> None:
        """Its connection is lost: the session ends after the timeout."""
        if session in self._sessions and self.is_up:
            self._stop_timer(session)
            self._sessions[session] = asyncio.get_running_loop().call_later(self.timeout_s, self.end, session)

    def end(self, session: int) -> None:
        """The session is over, and its ephemeral nodes disappear."""
        if session not in self._sessions:
            return
        self._stop_timer(session)
        del self._sessions[session]
        owned = [path for path, stored in self.nodes.stored.items() if stored.node.owner == session]
        for path in owned:
            self.commit([Delete(path)], session)

    def _stop_timer(self, session: int) -> None:
        if (timer := self._sessions[session]) is not None:
            timer.cancel()
            self._sessions[session] = None

    def commit(self, operations: Sequence[Operation], session: int) -> list[Any]:
        """Raises MultiError."""
        group = GroupCommit(self.nodes, int(time.time() * 1000))
        results = group.multi(operations, session)
        self.nodes.take(group.zxid, group.changes)
        return results


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Equal for the same callback, so that reading twice leaves one watch; lost with the connection that set it."""

    store: SharedStore
    connection: int
    callback: Watch

    def __call__(self, path: str) -> None:
        if self.store.connection == self.connection:
            self.callback(path)


class SharedStore:
    """The ``Store`` of one broker, over any number of sessions."""

    max_node_bytes = 1_000_000

    def __init__(self, tree: SharedTree) -> None:
        self.on_state: Callable[[State, bool], None] = lambda state, is_new: None
        self.timeout = tree.timeout_s
        self.session_id = 0
        self.connection = 0
        """The number of the present connection; 0 if there is none."""
        self._tree = tree
        self._connections = 0
        self._connected = asyncio.Event()
        self._is_started = self._is_cut = self._is_over = False

    def __str__(self) -> str:
        return "the shared tree"

    @property
    def is_connected(self) -> bool:
        return self.connection > 0

    def start(self) -> None:
        self._is_started = True
        self.reconnect()

    async def connected(self) -> None:
        await self._connected.wait()

    async def close(self, deadline: float) -> None:
        if not self._is_over:
            is_reached = self.is_connected
            self.vanish()
            if is_reached:
                self._tree.end(self.session_id)

    # Faults

    def cut(self) -> None:
        """Lose the connection, until `heal`: the session ends after its timeout, which this broker cannot know."""
        self._is_cut = True
        self.disconnect()

    def heal(self) -> None:
        self._is_cut = False
        self.reconnect()

    def expire(self) -> None:
        """The tree ends the session now; the broker learns it when it has connected again, at once unless it is cut."""
        self.disconnect()
        self._tree.end(self.session_id)
        self.reconnect()

    def vanish(self) -> None:
        """The process is gone: nobody is told anything any more, and the session ends after its timeout."""
        self._is_over = True
        self._lose()

    # The connection

    def disconnect(self) -> None:
        if self.is_connected:
            self._lose()
            self.on_state(State.SUSPENDED, False)

    def _lose(self) -> None:
        self.connection = 0
        self._connected.clear()
        self._tree.leave(self.session_id)

    def reconnect(self) -> None:
        """Connect soon, if it can."""
        asyncio.get_running_loop().call_soon(self._connect)

    def _connect(self) -> None:
        if self.is_connected or not self._is_started or self._is_cut or self._is_over or not self._tree.is_up:
            return
        is_new = not self._tree.resume(self.session_id)
        if is_new and self.session_id:
            self.on_state(State.LOST, False)
        if is_new:
            self.session_id = self._tree.open()
        self._connections += 1
        self.connection = self._connections
        self._connected.set()
        self.on_state(State.CONNECTED, is_new)

    async def _call(self, carry_out: Callable[[], T]) -> T:
        """The tree carries it out at once; the response arrives in a later turn, unless the connection is lost."""
        if not self.is_connected:
            raise Unavailable(f"{self} cannot be reached")
        connection = self.connection
        try:
            return carry_out()
        finally:
            await asyncio.sleep(0)
            if self.connection != connection:
                raise Unavailable(f"{self} was lost before it answered")

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return await self._call(lambda: self._tree.nodes.get(path, self._watcher(watch)))

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        return await self._call(lambda: self._tree.nodes.children(path, self._watcher(watch)))

    async def get_all(self, paths: Iterable[str], watch: Watch | None = None) -> list[Node | None]:
        nodes, watcher = self._tree.nodes, self._watcher(watch)
        return await self._call(
            lambda: [nodes.get(path, watcher if path in nodes else None) for path in paths]
        )

    async def children_of_all(self, paths: Iterable[str]) -> list[list[str] | None]:
        return await self._call(lambda: [self._tree.nodes.children(path) for path in paths])

    def _watcher(self, watch: Watch | None) -> Watch | None:
        return None if watch is None else _Watcher(self, self.connection, watch)

    # Writing

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Node:
        def create() -> Node:
            (made,) = self._one(Create(path, data, ephemeral, sequence))
            return self._tree.nodes.stored[made].node

        return await self._call(create)

    async def ensure(self, *paths: str) -> None:
        def ensure() -> None:
            self._commit([Create(path) for path in with_parents(paths) if path not in self._tree.nodes])

        await self._call(ensure)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        (written,) = await self._call(lambda: self._one(Set(path, data, version)))
        return int(written)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._call(lambda: self._one(Delete(path, version)))

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        return await self._call(lambda: self._commit(operations))

    async def multi_all(
        self, multis: Iterable[Sequence[Operation]]
    ) -> list[list[Any] | MultiError | Unavailable]:
        answers: list[list[Any] | MultiError | Unavailable] = []
        for operations in multis:
            try:
                answers.append(await self.multi(operations))
            except (MultiError, Unavailable) as error:
                answers.append(error)
        return answers

    async def restrict(self) -> int:
        return 0

    async def sync(self) -> None:
        await self._call(lambda: None)

    def _one(self, operation: Operation) -> list[Any]:
        try:
            return self._commit([operation])
        except MultiError as error:
            raise error.error from None

    def _commit(self, operations: Sequence[Operation]) -> list[Any]:
        return self._tree.commit(operations, self.session_id)
