"""ZooKeeper for an event loop: kazoo's client, whose threads stay behind this module.

A call ends within its deadline: with a response, with StoreError, or with `Unavailable`. A call without a connection is
not sent at all, so nothing happens long after the caller has given up. When a session is over, kazoo creates another.

The reasons are in kazoo: its callbacks come in its threads; the socket pair that wakes its connection thread
blocks when some 270 requests wait (so few are in flight at a time, and none without a connection); by default it pauses
for up to an hour between attempts to connect, and waits for an address to accept as long as a session lasts
(so it gets CONNECT_S: a server may have moved, and names are resolved again in each round); an error of its own ends
its connection thread for good (so it is restarted); stopping it may take as long as a server is silent (so a thread
waits for that, and is left behind at the deadline).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo import exceptions as kazoo
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from . import (
    BadVersionError,
    Create,
    Delete,
    MultiError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    State,
    StoreError,
    Unavailable,
    Watch,
    with_parents,
)
from .ensemble import Ensemble
from .zookeeper_acls import ROOTS, acl_of, holds_open, is_open, refusal
from .zookeeper_connection import OPEN, REPEAT_S, ZooKeeperAccess, ZooKeeperClient

IN_FLIGHT = 128
MAX_NODE_BYTES = 1_000_000
"""ZooKeeper closes the connection at 1 MiB (jute.maxbuffer), without an explanation."""
RESTART_PAUSE_S = 1.0
T = TypeVar("T")

log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)  # it repeats itself at every attempt to connect; this module logs states


_UNKNOWN = (
    kazoo.ConnectionLoss,
    kazoo.ConnectionClosedError,
    kazoo.SessionExpiredError,
    kazoo.SessionMovedError,
    kazoo.OperationTimeoutError,
    kazoo.AuthFailedError,
    kazoo.SessionClosedRequireSaslError,
)
_KNOWN: dict[type[Exception], type[StoreError]] = {
    kazoo.NoNodeError: NoNodeError,
    kazoo.NodeExistsError: NodeExistsError,
    kazoo.BadVersionError: BadVersionError,
    kazoo.NotEmptyError: NotEmptyError,
}


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Equal for the same callback, so that reading twice leaves one watch with kazoo."""

    session: ZooKeeperStore
    callback: Watch

    def __call__(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self.session._on_loop(self.callback, self.session._without_chroot(event.path))


class ZooKeeperStore:
    """`Store` of one broker, over any number of sessions. All times are in seconds."""

    def __init__(
        self,
        ensemble: Ensemble,
        timeout: float,
        *,
        access: ZooKeeperAccess = OPEN,
        patience: float = 10.0,
    ) -> None:
        """`timeout` is the session's; `patience` is the limit of one call."""
        self.ensemble = ensemble
        self.timeout = timeout
        self.patience = patience
        self.max_node_bytes = MAX_NODE_BYTES
        self.on_state: Callable[[State, bool], None] = lambda state, is_new: None
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._session_id = 0
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._answers: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._is_waking = False
        self._is_closed = False
        self._sets_acls = access.sets_acls
        self._reported: dict[str, float] = {}
        """When each problem of the last minute was logged: each server has its own."""
        self._client = ZooKeeperClient(
            ensemble.servers,
            timeout,
            access,
            lambda problem: self._on_loop(self._report, problem),
            _kazoo_log,
        )
        self._client.add_listener(self._heard)

    def __str__(self) -> str:
        return f"ZooKeeper at {self.ensemble}"

    def start(self) -> None:
        self._client.start_async()

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def session_id(self) -> int:
        return self._session_id

    async def connected(self) -> None:
        await self._connected.wait()

    async def close(self, deadline: float) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        done = asyncio.Event()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:
                log.debug("closing the session: %r", error)
            self._on_loop(done.set)

        threading.Thread(target=stop, name="zookeeper-close", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), deadline)
        except TimeoutError:
            log.warning("ZooKeeper did not close the session within %g s: it will expire", deadline)
        self._connected.clear()

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        while True:
            try:
                data, stat = await self._call(self._client.get_async, self._at(path), self._watcher(watch))
                return _node(data, stat)
            except NoNodeError:
                if watch is None:
                    return None
            found = await self._call(self._client.exists_async, self._at(path), self._watcher(watch))
            if found is None:
                return None

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        try:
            found: list[str] = await self._call(
                self._client.get_children_async, self._at(path), self._watcher(watch)
            )
        except NoNodeError:
            return None
        return found

    async def get_all(self, paths: Iterable[str], watch: Watch | None = None) -> list[Node | None]:
        watcher = self._watcher(watch)

        async def finish(sent: asyncio.Future[Any]) -> Node | None:
            try:
                return _node(*await self._answer(sent))
            except NoNodeError:
                return None

        return await self._in_flight(
            paths, lambda path: self._send(self._client.get_async, self._at(path), watcher), finish
        )

    async def children_of_all(self, paths: Iterable[str]) -> list[list[str] | None]:

        async def finish(sent: asyncio.Future[Any]) -> list[str] | None:
            try:
                found: list[str] = await self._answer(sent)
            except NoNodeError:
                return None
            return found

        return await self._in_flight(
            paths, lambda path: self._send(self._client.get_children_async, self._at(path)), finish
        )

    # Writing

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Node:
        _, stat = await self._call(
            self._client.create_async, self._at(path), data, self._acl(path), ephemeral, sequence, False, True
        )
        return _node(data, stat)

    async def ensure(self, *paths: str) -> None:
        for above in with_parents(map(self._at, paths)):
            if await self._call(self._client.exists_async, above) is not None:
                continue
            try:
                path = self._without_chroot(above) if above.startswith(self.ensemble.chroot) else "/"
                await self._call(self._client.create_async, above, b"", self._acl(path))
            except NodeExistsError:
                continue

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        stat = await self._call(self._client.set_async, self._at(path), data, version)
        written: int = stat.version
        return written

    async def delete(self, path: str, version: int = -1) -> None:
        await self._call(self._client.delete_async, self._at(path), version)

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        return self._multi_results(operations, await self._call(self._commit, operations))

    async def multi_all(
        self, multis: Iterable[Sequence[Operation]]
    ) -> list[list[Any] | MultiError | Unavailable]:
        async def finish(
            sent: tuple[Sequence[Operation], asyncio.Future[Any]],
        ) -> list[Any] | MultiError | Unavailable:
            operations, future = sent
            try:
                return self._multi_results(operations, await self._answer(future))
            except (MultiError, Unavailable) as error:
                return error

        async def send(operations: Sequence[Operation]) -> tuple[Sequence[Operation], asyncio.Future[Any]]:
            return operations, await self._send(self._commit, operations)

        return await self._in_flight(multis, send, finish)

    async def sync(self) -> None:
        await self._call(self._client.sync_async, self._at("/"))

    def _commit(self, operations: Sequence[Operation]) -> AsyncResult:
        transaction = self._client.transaction()
        for operation in operations:
            path = self._at(operation.path)
            if isinstance(operation, Create):
                transaction.create(
                    path, operation.data, self._acl(operation.path), operation.ephemeral, operation.sequence
                )
            elif isinstance(operation, Set):
                transaction.set_data(path, operation.data, operation.version)
            elif isinstance(operation, Delete):
                transaction.delete(path, operation.version)
            else:
                transaction.check(path, operation.version)
        return transaction.commit_async()

    def _multi_results(self, operations: Sequence[Operation], results: list[Any]) -> list[Any]:
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(
                result, kazoo.RolledBackError | kazoo.RuntimeInconsistency
            ):
                raise refusal(self, result) or MultiError(index, _ours(result))
        found: list[Any] = []
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception):
                raise MultiError(0, _ours(result))
            if isinstance(operation, Create):
                found.append(self._without_chroot(result))
            else:
                found.append(result.version if isinstance(operation, Set) else None)
        return found

    # Who may use the nodes

    async def restrict(self) -> int:
        if not self._sets_acls:
            return 0
        found: list[str] = []
        level = [path for path in ROOTS if await self._call(self._client.exists_async, self._at(path))]
        while level:
            opened = set(await self._open(level))
            found += opened
            above = [path for path in level if holds_open(path, path in opened)]
            below = zip(above, await self.children_of_all(above), strict=True)
            level = [f"{path}/{name}" for path, names in below for name in names or ()]
        found[:0] = await self._open(["/"])
        await self._in_flight(reversed(found), self._send_acl, self._unless_gone)
        return len(found)

    async def _open(self, paths: list[str]) -> list[str]:
        """Those of the nodes that everybody may use."""
        read = await self._in_flight(paths, self._send_get_acl, self._unless_gone)
        return [
            path for path, acl in zip(paths, read, strict=True) if acl is not None and is_open(path, acl[0])
        ]

    async def _send_get_acl(self, path: str) -> asyncio.Future[Any]:
        return await self._send(self._client.get_acls_async, self._at(path))

    async def _send_acl(self, path: str) -> asyncio.Future[Any]:
        return await self._send(self._client.set_acls_async, self._at(path), acl_of(path))

    async def _unless_gone(self, sent: asyncio.Future[Any]) -> Any:
        try:
            return await self._answer(sent)
        except NoNodeError:
            return None

    def _acl(self, path: str) -> list[Any] | None:
        return acl_of(path) if self._sets_acls else None

    # Sending, and responses

    async def _in_flight(
        self,
        items: Iterable[Any],
        send: Callable[[Any], Awaitable[Any]],
        finish: Callable[[Any], Awaitable[T]],
    ) -> list[T]:
        """`finish(await send(item))` of each, sending ahead of the responses."""
        found: list[T] = []
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(await send(item))
            if len(waiting) >= IN_FLIGHT // 2:
                found.append(await finish(waiting.popleft()))
        found += [await finish(sent) for sent in waiting]
        return found

    async def _call(self, call: Callable[..., AsyncResult], *arguments: Any) -> Any:
        return await self._answer(await self._send(call, *arguments))

    async def _send(self, call: Callable[..., AsyncResult], *arguments: Any) -> asyncio.Future[Any]:
        try:
            async with asyncio.timeout(self.patience):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(f"{self} does not answer") from None
        if not self._connected.is_set():
            self._slots.release()
            raise Unavailable(f"{self} cannot be reached")
        future: asyncio.Future[Any] = self._loop.create_future()
        call(*arguments).rawlink(lambda result: self._answered(future, result))
        return future

    async def _answer(self, future: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(self.patience):
                return await future
        except TimeoutError:
            problem = f"did not answer within {self.patience:g} s"
        except _UNKNOWN:
            problem = "was lost before it answered"
        except (kazoo.NoAuthError, kazoo.InvalidACLError) as error:
            raise refusal(self, error) or error from None
        raise Unavailable(f"{self} {problem}")

    def _answered(self, future: asyncio.Future[Any], result: AsyncResult) -> None:
        """In kazoo's thread: one wake-up of the loop for all responses that arrive in the meantime."""
        self._answers.append((future, result))
        if not self._is_waking:
            self._is_waking = True
            self._on_loop(self._deliver)

    def _deliver(self) -> None:
        self._is_waking = False
        while self._answers:
            future, result = self._answers.popleft()
            self._slots.release()
            if future.done():  # it timed out
                continue
            if isinstance(result.exception, kazoo.SessionClosedRequireSaslError):
                self._report("the servers require SASL: set zookeeper.sasl.jaas.config")
            if result.exception is not None:
                future.set_exception(_ours(result.exception))
                future.exception()  # another failure may be raised first, and this one never be awaited
            else:
                future.set_result(result.value)

    def _heard(self, state: str) -> None:
        """Called in kazoo's thread."""
        session = self._client.client_id
        self._on_loop(self._become, state, session[0] if session else 0)

    def _become(self, kazoo_state: str, session_id: int) -> None:
        if self._is_closed:
            return
        is_new = False
        if kazoo_state == KazooState.CONNECTED and session_id:
            state = State.CONNECTED
            is_new, self._session_id = session_id != self._session_id, session_id
            self._reported.clear()
            self._connected.set()
        else:
            state = State.SUSPENDED if kazoo_state == KazooState.SUSPENDED else State.LOST
            self._connected.clear()
            if self._client.client_state == KeeperState.CLOSED:
                threading.Thread(target=self._start_again, name="zookeeper-start", daemon=True).start()
        self.on_state(state, is_new)

    def _report(self, problem: str) -> None:
        now = self._loop.time()
        self._reported = {reported: at for reported, at in self._reported.items() if now - at <= REPEAT_S}
        if problem not in self._reported:
            self._reported[problem] = now
            log.error("ZooKeeper: %s", problem)

    def _start_again(self) -> None:
        time.sleep(RESTART_PAUSE_S)
        if not self._is_closed:
            self._client.start_async()

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed, so nobody waits
            log.debug("%s after the loop was closed", function)

    # Paths

    def _at(self, path: str) -> str:
        return (self.ensemble.chroot + path if path != "/" else self.ensemble.chroot) or "/"

    def _without_chroot(self, path: str) -> str:
        return path[len(self.ensemble.chroot) :] or "/"

    def _watcher(self, watch: Watch | None) -> _Watcher | None:
        return None if watch is None else _Watcher(self, watch)


def _node(data: bytes, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner, stat.ctime)


def _ours(error: Exception) -> Exception:
    """Convert an error to the stores' own; lost and forbidden calls keep kazoo's error."""
    kept = (*_UNKNOWN, kazoo.NoAuthError, kazoo.InvalidACLError)
    if isinstance(error, kept) or not isinstance(error, kazoo.KazooException):
        return error
    return _KNOWN.get(type(error), StoreError)(str(error) or type(error).__name__)
