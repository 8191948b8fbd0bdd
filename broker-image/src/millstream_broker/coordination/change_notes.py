"""The notes of one directory, by which brokers announce changes to each other.

Whoever changes a node leaves a note, a sequential node, in the same multi; all brokers watch the directory, and read
what new notes name. Notes have consecutive numbers. Any broker removes notes that are a quarter of an hour older than
the newest one, by the store's own clock. A broker that finds a gap in the numbers has missed some, and must read
everything.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence

from .stores import NoNodeError, Store, Watch

NOTES_EXPIRE_MS = 15 * 60 * 1000
REMOVED_AT_ONCE = 64


class Missed(Exception):
    """Some notes were removed before they were read."""


class ChangeNotes:
    """Call `names`, then `unread`, and `are_read` once what they name has been read.

    There may be thousands of notes, and brokers read them with each change: a name is parsed once.
    """

    def __init__(self, nodes: Store, directory: str) -> None:
        self.directory = directory
        self._nodes = nodes
        self._seen = -1
        self._numbers: dict[str, int] = {}

    async def names(self, watch: Watch) -> list[str]:
        """The names of all notes, in order. `watch` is called at the next change. Raises Unavailable."""
        found = await self._nodes.children(self.directory, watch) or []
        known = self._numbers
        self._numbers = {name: known[name] if name in known else number_of(name) for name in found}
        return sorted(found, key=self._number)

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        return number_of(name) if number is None else number

    async def unread(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Path and data of those that this broker has not read, in order. Raises Missed, Unavailable."""
        new = names[bisect_right(names, self._seen, key=self._number) :]
        newest = self._number(names[-1]) if names else -1
        if newest < self._seen or newest - self._seen != len({self._number(name) for name in new}):
            raise Missed
        paths = [f"{self.directory}/{name}" for name in new]
        found = []
        for path, node in zip(paths, await self._nodes.get_all(paths), strict=True):
            if node is None:
                raise Missed
            found.append((path, node.data))
        return found

    def are_read(self, names: Sequence[str], *, all_of_them: bool = False) -> None:
        """These were read; `all_of_them`: with everything that any note could name, so the numbers may begin anew."""
        newest = self._number(names[-1]) if names else -1
        self._seen = newest if all_of_them else max(newest, self._seen)

    async def remove_old(self, names: Sequence[str]) -> None:
        """Remove old ones, never the newest: its number shows others what they have missed. Raises Unavailable."""
        if not names:
            return
        old = [
            name for name in names[: min(REMOVED_AT_ONCE, len(names) - 1)] if self._number(name) <= self._seen
        ]
        paths = [f"{self.directory}/{name}" for name in (*old, names[-1])]
        *nodes, last = await self._nodes.get_all(paths)
        for path, node in zip(paths, nodes, strict=False):
            if node is not None and last is not None and last.created_ms - node.created_ms > NOTES_EXPIRE_MS:
                with contextlib.suppress(NoNodeError):
                    await self._nodes.delete(path)


def number_of(name: str) -> int:
    """The number of a note; -1 for a node that is none."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
