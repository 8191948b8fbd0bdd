"""Retention overtakes mirrors whose workers are down. With `onGap: Stop` the mirrors say what is missing and append
nothing, while other topics go on; with SkipToEarliest they go on with the first record that is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream_harness.cluster import until
from millstream_harness.mirror import MirrorProcess
from millstream_harness.scenario import eventually

from .checks import Log, lacks, read_log
from .lab import BACK_S, IDENTITY, MODES, PARTITIONS, RETAINED, STEADY, Lab, copy_of

MANY = 1000
"""More records than retention keeps."""
TAIL = 2000


@dataclass(frozen=True)
class Missing:
    """What a mirror lacks of a partition: the offsets from ``first`` to before the source's start, which may have moved
    from ``least`` to ``most`` while it was looked up."""

    partition: str
    first: int
    least: int
    most: int


def misreported(gaps: Iterable[Mapping[str, Any]], wanted: Missing, *, stopped: bool) -> str:
    """How gaps that workers report differ from what is missing; "" if one of them is that."""
    found = [gap for gap in gaps if gap["partition"] == wanted.partition]
    if any(
        gap["from"] == wanted.first
        and wanted.least <= gap["until"] <= wanted.most
        and gap["stopped"] is stopped
        for gap in found
    ):
        return ""
    return f"reported gaps: {found}, expected {wanted}, {'stopped' if stopped else 'passed'}"


def next_missing(source: Log, copy: Log, *, is_identity: bool) -> int:
    """The source's offset behind the last one that is mirrored. The source still has that record."""
    if is_identity:
        return copy.end
    (last,) = [copy.records[max(copy.records)]] if copy.records else [None]
    return next((offset + 1 for offset, value in source.records.items() if value == last), 0)


class Retention:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._places = [(mode, number) for mode in MODES for number in range(PARTITIONS[RETAINED])]

    def overtake(self) -> dict[str, Callable[[], str]]:
        """Returns what must hold once all that is left is mirrored. Raises AssertionError for what never came to be."""
        lab = self._lab
        until(
            lambda: all(self._copy(*place).batches for place in self._places),
            "the mirrors have begun with all topics",
            BACK_S,
        )
        for worker in lab.workers:
            worker.kill()
        before = {number: read_log(lab.west, RETAINED, number) for number in range(PARTITIONS[RETAINED])}
        first = {place: self._next_missing(place, before) for place in self._places}
        lab.produce(RETAINED, MANY)
        until(
            lambda: all(self._start(place[1]) > first[place] for place in self._places),
            f"retention in the source overtakes the mirrors: {first}",
            BACK_S,
        )
        least = {number: self._start(number) for number in before}

        def said(place: tuple[str, int], stopped: bool) -> str:
            mode, number = place
            missing = Missing(f"{RETAINED}-{number}", first[place], least[number], self._start(number))
            return misreported(self._gaps(mode), missing, stopped=stopped)

        lab.restart_workers(onGap="Stop")
        for place in self._places:
            self._await(partial(said, place, True))
            self._check_words(*place, first[place])
        self._await_the_others()
        now = {place: self._next_missing(place, before) for place in self._places}
        assert now == first, f"with onGap: Stop, mirrors went on from {first} to {now}"
        lab.restart_workers()
        return {
            f"{mode}: the gap of {number}": partial(said, (mode, number), False) for mode, number in first
        }

    def _copy(self, mode: str, number: int) -> Log:
        return read_log(self._lab.east, copy_of(RETAINED, mode), number, last=TAIL)

    def _next_missing(self, place: tuple[str, int], before: Mapping[int, Log]) -> int:
        return next_missing(before[place[1]], self._copy(*place), is_identity=place[0] == IDENTITY)

    def _start(self, number: int) -> int:
        return read_log(self._lab.west, RETAINED, number).start

    def _workers(self, mode: str) -> list[MirrorProcess]:
        return [worker for worker in self._lab.workers if worker.config["name"] == mode]

    def _gaps(self, mode: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for worker in self._workers(mode):
            with contextlib.suppress(OSError):
                found += worker.status()["sources"][0]["gaps"]
        return found

    def _await(self, check: Callable[[], str]) -> None:
        """Until it finds nothing wrong; AssertionError with what it finds at the deadline."""
        eventually(check, lambda said: not said, "mirrors that retention has overtaken", BACK_S)

    def _check_words(self, mode: str, number: int, first: int) -> None:
        words = f"{RETAINED}-{number}: the source deleted offsets {first} to "
        stops = "before they were mirrored: mirroring of this partition stopped: set onGap to SkipToEarliest"
        lines = [line for worker in self._workers(mode) for line in worker.said().splitlines()]
        found = [line for line in lines if words in line]
        assert any(stops in line for line in found), f"{mode}: no worker has logged {words!r} with {stops!r}"

    def _await_the_others(self) -> None:
        """Other partitions go on."""
        lab = self._lab
        source = read_log(lab.west, STEADY, 0, last=TAIL)

        def late() -> str:
            copies = {mode: read_log(lab.east, copy_of(STEADY, mode), 0, last=TAIL) for mode in MODES}
            waits = [
                mode for mode, copy in copies.items() if lacks(source, copy, is_identity=mode == IDENTITY)
            ]
            return f"{STEADY} waits, too: {waits}" if waits else ""

        self._await(late)
