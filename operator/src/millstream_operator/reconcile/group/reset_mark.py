"""The mark of a group's resets: how far the last one is, and which were done; pure.

    millstream.dev/resets REQUEST TIME DONE …      the metadata; the offset counts the steps of the last reset

REQUEST is the digest of the last reset's requestId, TIME when that reset began, and DONE the digests of finished
requests, the latest first. Brokers store the mark in one step with the positions that it is about. It belongs to the
group and not to the resource: a status may be lost, or restored from an older copy, but a request is carried out once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from ...kafka.records import MARK, Mark
from ...models.conditions import rfc3339

NAME = f"{MARK}resets"
MOST_DONE = 32
"""Finished requests in a mark, which is then far smaller than offset.metadata.max.bytes, 4,096 by default."""


@dataclass(frozen=True, slots=True)
class ResetMark:
    """``step`` counts the commits of the reset that began at ``time``; ``done`` are finished requests."""

    request: str = ""
    time: str = ""
    step: int = 0
    done: tuple[str, ...] = ()

    def has_done(self, request_id: str) -> bool:
        return digest(request_id) in self.done

    def has_begun(self, request_id: str) -> bool:
        """Whether the last reset is this request, and has set positions."""
        return self.step > 0 and self.request == digest(request_id)

    def steps_of(self, request_id: str, time: datetime) -> int:
        """Number of commits of the reset that began then."""
        return self.step if (self.request, self.time) == (digest(request_id), _moment(time)) else 0

    def after(self, request_id: str, time: datetime, step: int, *, is_last: bool) -> ResetMark:
        """The mark to commit with a step."""
        request = digest(request_id)
        done = (request, *self.done)[:MOST_DONE] if is_last and request not in self.done else self.done
        return ResetMark(request, _moment(time), step, done)

    def written(self) -> Mark:
        return Mark(" ".join((NAME, self.request, self.time, *self.done)), self.step)


def read(mark: Mark | None) -> ResetMark:
    """An empty one for metadata that no operator writes: every client of the group may commit there."""
    name, *words = mark.name.split(" ") if mark is not None else ("",)
    if mark is None or name != NAME or len(words) < 2:
        return ResetMark()
    request, time, *done = words
    return ResetMark(request, time, mark.step, tuple(done[:MOST_DONE]))


def digest(request_id: str) -> str:
    """A requestId is any text."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:16]


def _moment(time: datetime) -> str:
    return rfc3339(time)
