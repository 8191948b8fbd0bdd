"""The notes of one directory, by which brokers announce changes to each other.

Whoever changes a node leaves a note, a sequential node, in the same multi; all brokers watch the directory, and read
what new notes name. Notes have consecutive numbers. Any broker removes notes that are a quarter of an hour older than
the newest one, by the store's own clock. A broker that finds a gap in the numbers has missed some, and must read
everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from .stores import NoNodeError, Store, Watch

NOTES_EXPIRE_MS = 15 * 60 * 1000
REMOVED_AT_ONCE = 64


class Missed(Exception):
    """Some notes were removed before they were read."""


class ChangeNotes:
    """Call `names`, then `unread`, and `are_read` once what they name has been read."""

    def __init__(self, nodes: Store, directory: str) -> None:
        self.directory = directory
        self._nodes = nodes
        self._seen = -1

    async def names(self, watch: Watch) -> list[str]:
        """The names of all notes. `watch` is called at the next change. Raises Unavailable."""
        return await self._nodes.children(self.directory, watch) or []

    async def unread(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Path and data of those that this broker has not read, in order. Raises Missed, Unavailable."""
        if self._has_missed(names):
            raise Missed
        new = sorted((name for name in names if number_of(name) > self._seen), key=number_of)
        paths = [f"{self.directory}/{name}" for name in new]
        found = []
        for path, node in zip(paths, await self._nodes.get_all(paths), strict=True):
            if node is None:
                raise Missed
            found.append((path, node.data))
        return found

    def are_read(self, names: Iterable[str], *, all_of_them: bool = False) -> None:
        """These were read; `all_of_them`: with everything that any note could name, so the numbers may begin anew."""
        newest = max(map(number_of, names), default=-1)
        self._seen = newest if all_of_them else max(newest, self._seen)

    def _has_missed(self, names: Iterable[str]) -> bool:
        """Whether there have been notes that this broker has not read, and that are gone."""
        numbers = {number for number in map(number_of, names) if number >= 0}
        newest = max(numbers, default=-1)
        return newest < self._seen or not numbers.issuperset(range(self._seen + 1, newest + 1))

    async def remove_old(self, names: Sequence[str]) -> None:
        """Remove old ones, never the newest: its number shows others what they have missed. Raises Unavailable."""
        if not names:
            return
        *old, newest = sorted(names, key=number_of)
        old = [name for name in old[:REMOVED_AT_ONCE] if number_of(name) <= self._seen]
        paths = [f"{self.directory}/{name}" for name in (*old, newest)]
        *nodes, last = await self._nodes.get_all(paths)
        for path, node in zip(paths, nodes, strict=False):
            if node is not None and last is not None and last.created_ms - node.created_ms > NOTES_EXPIRE_MS:
                with contextlib.suppress(NoNodeError):
                    await self._nodes.delete(path)


def number_of(name: str) -> int:
    """The number of a note; -1 for a node that is none."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
