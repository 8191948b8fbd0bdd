"""Writes of a controller, which end with its epoch: `FencedWrites`.

Each is a multi that begins with a check of /controller_epoch's version, which each new controller raises: so a write of
a deposed controller does nothing. While the store is down, `persist` waits; it raises `Fenced` once this broker is no
longer the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from ..runtime.steps import portions
from . import tree
from .controllership import Fenced
from .stores import (
    BadVersionError,
    Check,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    Store,
    Unavailable,
)

AT_ONCE = 200
"""Nodes created or deleted in parallel, each in its own multi."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class FencedWrites:
    """`on_fenced` is called once, when a write finds another controller."""

    def __init__(self, nodes: Store, epoch: int, epoch_version: int, on_fenced: Callable[[], None]) -> None:
        self.check = Check(tree.CONTROLLER_EPOCH, epoch_version)
        """The first operation of each multi."""
        self._nodes = nodes
        self._epoch = epoch
        self._on_fenced = on_fenced
        self._is_over = False

    def end(self) -> None:
        """This broker is no longer the controller: end all calls of `persist`."""
        self._is_over = True

    async def delete_each(self, paths: Iterable[str]) -> None:
        await self.each(map(Delete, paths))

    async def each(self, operations: Iterable[Operation]) -> None:
        """Run each in its own multi, many in parallel; those already done are skipped. Raises Fenced, Unavailable."""
        for some in portions(operations, AT_ONCE):
            for answer in await self._nodes.multi_all([self.check, operation] for operation in some):
                self.raise_if_fenced(answer)
                if isinstance(answer, Unavailable):
                    raise answer
                if isinstance(answer, MultiError) and not isinstance(
                    answer.error, NoNodeError | NodeExistsError
                ):
                    raise Unavailable(f"a node changes: {answer}")

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Raises Fenced; Unavailable, also if something has changed since it was read."""
        try:
            await self._nodes.multi([self.check, *operations])
        except MultiError as error:
            self.raise_if_fenced(error)
            raise Unavailable(f"a node changes: {error}") from None

    def raise_if_fenced(self, answer: Any) -> None:
        if (
            isinstance(answer, MultiError)
            and answer.index == 0
            and isinstance(answer.error, BadVersionError | NoNodeError)
        ):
            if not self._is_over:
                self._on_fenced()
            raise Fenced(f"epoch {self._epoch} is over")

    async def persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` while the store is down; each attempt begins by reading. Raises Fenced."""
        while True:
            await self._nodes.connected()
            if self._is_over:
                raise Fenced(f"epoch {self._epoch} is over")
            try:
                return await attempt()
            except Unavailable as error:
                log.debug("the controller waits: %s", error)
            await asyncio.sleep(0.02)
