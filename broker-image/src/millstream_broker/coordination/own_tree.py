"""A store that this cluster's brokers use only while it has this cluster's tree.

A connection may lead elsewhere than the one before: to another ensemble, to a tree that was emptied, or to one restored
from an older copy. So after each new connection the tree is verified first. Until then there is no connection for the
layers above: they keep the last known state, and write nothing.

`verify` raises `NotOurs` for another cluster's tree, or one without a cluster, and `NotAllowed` for one that this
broker may not read. It is repeated, because the right tree may come back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from millstream_process import supervision

from . import CoordinationError
from .state_waits import REQUEST_S
from .stores import MultiError, Node, NotAllowed, Operation, State, Store, StoreError, Unavailable, Watch

PAUSE_S = 1.0
"""Pause before the tree is verified again."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class NotOurs(CoordinationError):
    """The tree is another cluster's, or nobody's."""


class OwnTree:
    """The `Store` behind it, while it is verified."""

    def __init__(self, nodes: Store, verify: Callable[[Store], Awaitable[None]]) -> None:
        self.on_state: Callable[[State, bool], None] = lambda state, is_new: None
        self.timeout = nodes.timeout
        self.max_node_bytes = nodes.max_node_bytes
        self._nodes = nodes
        self._verify = verify
        self._verified = asyncio.Event()
        self._verified.set()
        self._verifying: asyncio.Task[None] | None = None
        self._is_new = False
        """Whether a session began that the layers above do not know yet."""
        nodes.on_state = self._became

    def __str__(self) -> str:
        return str(self._nodes)

    @property
    def is_connected(self) -> bool:
        return self._nodes.is_connected and self._verified.is_set()

    @property
    def session_id(self) -> int:
        return self._nodes.session_id

    def start(self) -> None:
        self._nodes.start()

    async def connected(self) -> None:
        while not self.is_connected:
            await self._nodes.connected()
            await self._verified.wait()

    async def persist(self, attempt: Callable[[], Awaitable[T]], deadline: float | None = REQUEST_S) -> T:
        """Repeat `attempt` while the store is down; each attempt begins by reading. Raises Unavailable.

        `deadline` is the longest wait for the store in seconds, None: without limit.
        """
        end = None if deadline is None else time.monotonic() + deadline
        while True:
            try:
                async with asyncio.timeout(None if end is None else end - time.monotonic()):
                    await self.connected()
                return await attempt()
            except TimeoutError:
                raise Unavailable(f"{self} cannot be reached") from None
            except Unavailable:
                if end is not None and time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)

    async def close(self, deadline: float) -> None:
        self._stop_verifying()
        await self._nodes.close(deadline)

    # Verification

    def _became(self, state: State, is_new: bool) -> None:
        self._stop_verifying()
        if state is not State.CONNECTED:
            self.on_state(state, is_new)
            return
        self._is_new |= is_new
        self._verified.clear()
        self._verifying = supervision.run("verification of the cluster's tree", self._verify_patiently())

    def _stop_verifying(self) -> None:
        if self._verifying is not None:
            self._verifying.cancel()
            self._verifying = None

    async def _verify_patiently(self) -> None:
        problem = ""
        while True:
            try:
                await self._verify(self._nodes)
                break
            except (NotOurs, NotAllowed) as error:
                if error.message != problem:
                    problem = error.message
                    log.error("%s", problem)
            except (CoordinationError, StoreError) as error:
                log.debug("cannot verify %s: %s", self, error)
            await asyncio.sleep(PAUSE_S if problem else 0.05)
        self._verifying = None
        self._verified.set()
        is_new, self._is_new = self._is_new, False
        self.on_state(State.CONNECTED, is_new)

    def _check(self) -> None:
        if not self._verified.is_set():
            raise Unavailable(f"{self} is not verified as this cluster's")

    # The store

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self._check()
        return await self._nodes.get(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        self._check()
        return await self._nodes.children(path, watch)

    async def get_all(self, paths: Iterable[str], watch: Watch | None = None) -> list[Node | None]:
        self._check()
        return await self._nodes.get_all(paths, watch)

    async def children_of_all(self, paths: Iterable[str]) -> list[list[str] | None]:
        self._check()
        return await self._nodes.children_of_all(paths)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Node:
        self._check()
        return await self._nodes.create(path, data, ephemeral=ephemeral, sequence=sequence)

    async def ensure(self, *paths: str) -> None:
        self._check()
        await self._nodes.ensure(*paths)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        self._check()
        return await self._nodes.set(path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        self._check()
        await self._nodes.delete(path, version)

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        self._check()
        return await self._nodes.multi(operations)

    async def multi_all(
        self, multis: Iterable[Sequence[Operation]]
    ) -> list[list[Any] | MultiError | Unavailable]:
        self._check()
        return await self._nodes.multi_all(multis)

    async def restrict(self) -> int:
        self._check()
        return await self._nodes.restrict()

    async def sync(self) -> None:
        self._check()
        await self._nodes.sync()
