"""The tree in a file of the first log directory, for a single broker: `coordination.journal`.

The file is a log of transactions, one per line: eight hexadecimal digits (CRC-32 of everything after the space), a
space, JSON. The first line names the format.

    {"format": 1}
    {"zxid": 7, "nodes": {"/brokers/topics/flights": ["{…}", 0, 7, 1763800000000, 0]}, "gone": ["/admin/…"]}

A node consists of its data, its version, the transaction that created it, the time of creation (ms), and the number of
sequence nodes created below it. Ephemeral nodes are not written: they end with the process. When the file is much
longer than its contents require, it is rewritten as a new file, and renamed.

A call returns when its transaction is on disk; a thread writes all waiting ones with one fsync (group commit). Reads
return what is on disk. A transaction that cannot be written has not happened. A crash may cut off
the last line: the store drops it, because it was never acknowledged. Any other damaged line is an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream_process import supervision

from ...log.files import write_atomically
from ...runtime.slices import cooperatively, yield_to_others
from .. import OVERRIDE, CoordinationError
from . import (
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
from .nodes import Changes, GroupCommit, Nodes, Stored

FILE_NAME = "coordination.journal"
FORMAT = 1
SESSION = 1
"""The only session, which lasts as long as the process."""
MAX_NODE_BYTES = 16 * 1024 * 1024
CRC_BYTES = 9
"""Size of the checksum in each line, with the space."""
WRITTEN_AT_ONCE = 1000
"""Operations in one write, which the loop takes over in one step; a longer multi is written alone."""
NOTIFIED_AT_ONCE = 50
"""Callers resumed in one turn of the loop."""
NODES_IN_LINE = 500
CLOSE_S = 5.0
"""How long a stop waits for a write: a slower disk does not respond at all."""
SLACK_BYTES = 1024 * 1024
"""Smallest file to rewrite, in bytes; it must also have doubled since the last rewrite."""

log = logging.getLogger(__name__)


PendingMulti = tuple[Sequence[Operation], asyncio.Future[list[Any]]]
"""A multi that is not written yet, and its result."""


class FileStore:
    """The `Store` of one process, whose creator holds the lock of the log directory."""

    timeout = 0.0
    max_node_bytes = MAX_NODE_BYTES
    is_connected = True
    session_id = SESSION

    def __init__(self, path: Path) -> None:
        self.on_state: Callable[[State, bool], None] = lambda state, is_new: None
        self.failed: Callable[[OSError], None] = lambda error: None
        """Called when the file cannot be written."""
        self.fatal: Callable[[str], None] = lambda why: None
        """Called when the written contents are no longer known."""
        self._path = path
        self._nodes = Nodes()
        self._waiting: list[PendingMulti] = []
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._file = -1
        """Open for appending; after -1, the next write rewrites the file."""
        self._size = self._full_size = 0

    def __str__(self) -> str:
        return str(self._path)

    def start(self) -> None:
        """Read the file, if there is one and it has not been read yet. Raises CoordinationError."""
        if self._nodes.zxid:
            return
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CoordinationError(f"{self._path}: cannot be read: {error.strerror}") from None
        for transaction in _transactions(self._path, data):
            self._nodes.take(transaction["zxid"], _changes(transaction), notify=False)
        if (full_size := _full_size(data)) is not None:
            try:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                os.fchmod(self._file, 0o600)
            except OSError:
                return
            self._size, self._full_size = len(data), full_size

    async def connected(self) -> None:
        pass

    async def close(self, deadline: float) -> None:
        """Waits for a running write: until it ends, a thread owns the file."""
        self._is_closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=max(deadline, CLOSE_S))
        self._nodes.forget_watches()
        if self._file >= 0 and self._writing is None:
            os.close(self._file)
            self._file = -1

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return self._nodes.get(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        return self._nodes.children(path, watch)

    async def get_all(self, paths: Iterable[str], watch: Watch | None = None) -> list[Node | None]:
        return [
            await self.get(path, watch if path in self._nodes else None)
            async for path in cooperatively(paths)
        ]

    async def children_of_all(self, paths: Iterable[str]) -> list[list[str] | None]:
        return [await self.children(path) async for path in cooperatively(paths)]

    # Writing

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Node:
        (made,) = await self._one(Create(path, data, ephemeral, sequence))
        return self._nodes.stored[made].node

    async def ensure(self, *paths: str) -> None:
        if missing := [above for above in with_parents(paths) if above not in self._nodes]:
            await self.multi([Create(above) for above in missing])

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        (written,) = await self._one(Set(path, data, version))
        return int(written)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._one(Delete(path, version))

    async def _one(self, operation: Operation) -> list[Any]:
        try:
            return await self.multi([operation])
        except MultiError as error:
            raise error.error from None

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        return await self._begin(operations)

    async def multi_all(
        self, multis: Iterable[Sequence[Operation]]
    ) -> list[list[Any] | MultiError | Unavailable]:
        begun = [self._begin(operations) for operations in multis]
        found: list[list[Any] | MultiError | Unavailable] = []
        failure: BaseException | None = None
        for answer in await asyncio.gather(*begun, return_exceptions=True):
            if isinstance(answer, list | MultiError | Unavailable):
                found.append(answer)
            else:
                failure = answer
        if failure is not None:
            raise failure
        return found

    async def restrict(self) -> int:
        return 0  # the file has its own permissions

    async def sync(self) -> None:
        pass

    def _begin(self, operations: Sequence[Operation]) -> asyncio.Future[list[Any]]:
        """Complete when it is written; MultiError, CoordinationError."""
        if self._is_closed:
            raise Unavailable(f"{self} is closed")
        written: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((operations, written))
        if self._writing is None:
            self._writing = supervision.run(self._path.name, self._write_all(), fatal=self.fatal)
        return written

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write(self._next())
        finally:
            self._writing = None

    def _next(self) -> list[PendingMulti]:
        """Take the next writes: the oldest multis, with WRITTEN_AT_ONCE operations together."""
        count = size = 0
        for operations, _ in self._waiting:
            size += len(operations)
            if count and size > WRITTEN_AT_ONCE:
                break
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        return some

    async def _write(self, waiting: list[PendingMulti]) -> None:
        """Carry these out in order, with one write."""
        group = GroupCommit(self._nodes, int(time.time() * 1000))
        outcomes: list[list[Any] | Exception] = []
        async for operations, _ in cooperatively(waiting):
            try:
                outcomes.append(group.multi(operations, SESSION))
            except MultiError as error:
                outcomes.append(error)
        if group.zxid > self._nodes.zxid:
            failure = await self._store(group)
            if failure is None:
                self._nodes.take(group.zxid, group.changes)
            else:
                outcomes = [failure] * len(outcomes)  # the causes of MultiErrors have not happened either
        for number, ((_, written), outcome) in enumerate(zip(waiting, outcomes, strict=True), 1):
            if not written.done():
                if isinstance(outcome, Exception):
                    written.set_exception(outcome)
                else:
                    written.set_result(outcome)
            if number % NOTIFIED_AT_ONCE == 0:
                await yield_to_others()

    # The file

    async def _store(self, group: GroupCommit) -> CoordinationError | None:
        try:
            await asyncio.to_thread(self._append, group)
        except OSError as error:
            log.error("%s: cannot be written: %s", self._path, error.strerror)
            self.failed(error)
            return CoordinationError(f"{self._path}: cannot be written: {error.strerror}")
        except Exception as error:  # otherwise callers would wait for the write endlessly
            log.exception("%s: cannot be written", self._path)
            return CoordinationError(f"{self._path}: cannot be written: {error!r}")
        return None

    def _append(self, group: GroupCommit) -> None:
        """Runs in a thread, while nothing changes `_nodes`. After a failure the next write replaces the whole file."""
        if self._file < 0 or self._size > 2 * self._full_size + SLACK_BYTES:
            self._write_anew(group)
            return
        data = b"".join(_lines(group.zxid, group.changes))
        file, self._file = self._file, -1
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fdatasync(file)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._size += len(data)

    def _write_anew(self, group: GroupCommit) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        nodes: dict[str, Stored | None] = {**self._nodes.stored, **group.changes}
        present = {path: stored for path, stored in nodes.items() if stored is not None}
        data = b"".join([_line({"format": FORMAT}), *_lines(group.zxid, present)])
        write_atomically(str(self._path), data, is_secret=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = self._full_size = len(data)


def _lines(zxid: int, changes: Changes) -> Iterator[bytes]:
    """The lines, in short steps for any number of nodes: the loop runs in parallel."""
    lasting: dict[str, list[object]] = {}
    gone = [path for path, stored in changes.items() if stored is None]
    for path, stored in changes.items():
        if stored is None or stored.node.owner:
            continue
        node = stored.node
        lasting[path] = [node.data.decode(), node.version, node.created, node.created_ms, stored.numbered]
        if len(lasting) == NODES_IN_LINE:
            yield _line({"part": zxid, "nodes": lasting})
            lasting = {}
    yield _line({"zxid": zxid, "nodes": lasting, "gone": gone})


def _line(value: object) -> bytes:
    data = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _changes(transaction: Mapping[str, Any]) -> Changes:
    changes: dict[str, Stored | None] = dict.fromkeys(transaction["gone"])
    for path, (data, version, created, created_ms, numbered) in transaction["nodes"].items():
        changes[path] = Stored(Node(data.encode(), version, created, 0, created_ms), numbered)
    return changes


def _transactions(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    """Each whole transaction; raises CoordinationError."""
    lines = data.split(b"\n")
    values = [_value(line) for line in lines[:-1]]
    good = next((number for number, value in enumerate(values) if value is None), len(values))
    if any(value is not None for value in values[good:]):
        raise CoordinationError(
            f"{path}: cannot be read: line {good + 1} is damaged. Restore the file from a copy. Without one, move it"
            f" away and start the broker once with {OVERRIDE}=true: it continues with the topics whose logs it has,"
            " without their configuration, and deletes none of their records until they are configured."
        )
    if not good:
        raise CoordinationError(f"{path}: cannot be read: it is empty, or its first line is damaged")
    head = values[0]
    assert head is not None
    if head.get("format") != FORMAT:
        raise CoordinationError(f"{path}: format {head.get('format')} is not known: expected {FORMAT}")
    if good < len(lines) - 1 or lines[-1]:
        log.warning("%s: dropping the incomplete last line, which a crash leaves", path)
    parts: dict[str, Any] = {}
    for value in values[1:good]:
        assert value is not None
        if "part" in value:
            parts |= value["nodes"]
        else:
            yield {"zxid": value["zxid"], "nodes": {**parts, **value["nodes"]}, "gone": value["gone"]}
            parts = {}


def _full_size(data: bytes) -> int | None:
    """The size of the first transaction, which has every node, with the line before it.

    None if nothing may be appended to the data: it does not end with a whole transaction.
    """
    last = _value(data[data.rfind(b"\n", 0, -1) + 1 : -1])
    if not data.endswith(b"\n") or last is None or "zxid" not in last:
        return None
    at = data.find(b"\n") + 1
    while data.startswith(b'{"part"', at + CRC_BYTES):
        at = data.find(b"\n", at) + 1
    return data.find(b"\n", at) + 1


def _value(line: bytes) -> dict[str, Any] | None:
    """None for a damaged line."""
    try:
        if int(line[:8], 16) != zlib.crc32(line[CRC_BYTES:]):
            return None
        value = json.loads(line[CRC_BYTES:])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
