"""The tree of a standalone broker, read and changed while the broker is down."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream_broker.coordination.stores import Create, Delete, Operation, Set
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore


def nodes_in(folder: Path) -> dict[str, bytes]:
    """The data of all nodes, by path; the broker may be running."""
    store = FileStore(folder / FILE_NAME)
    store.start()
    return {path: stored.node.data for path, stored in store._nodes.stored.items()}


def put(folder: Path, path: str, data: bytes) -> None:
    is_there = path in nodes_in(folder)
    _carry_out(folder, Set(path, data) if is_there else Create(path, data))


def remove(folder: Path, path: str) -> None:
    _carry_out(folder, Delete(path))


def _carry_out(folder: Path, operation: Operation) -> None:
    async def carry_out() -> None:
        store = FileStore(folder / FILE_NAME)
        store.start()
        await store.multi([operation])
        await store.close(5.0)

    asyncio.run(carry_out())
