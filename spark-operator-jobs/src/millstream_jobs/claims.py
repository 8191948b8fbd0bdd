"""Claims: of the runs of a load, only the newest one may commit.

A driver may outlive its run: an operator was killed, a node was cut off, a BatchLoad was deleted and created again, a
status was restored from an older copy. So a run that has `fence` in RUN.json first takes the next number in the list of
claims, a file that only one driver can create:

    _millstream/runs/0000000007.json    below the output's path (Iceberg: .NAMESPACE.TABLE.runs/0000000007.json)

and makes sure that every earlier claim is decided. A run that has not committed is fenced: its name is taken in the
table itself (`Output.fence`), in the place that its commit needs, so that the table refuses this commit, even if its
driver is about to make it. A run that finds a newer claim fences itself. So runs commit in the order of their claims,
and each knows every run that committed before it.

That last run must be the one that the load's status names (`Fence.after`, or one that failed since). Otherwise status
or table are not what they were: restored from an older copy, deleted and created again, or replaced by another one.

A claim also keeps the requests that are in the table once its run has committed (`Fence.request`). A status that was
lost or restored does not know them, and would load their records once more.

A claim also keeps the last records that the load has read of each partition: if the log has others there, it is
another log under the same topic's id (`records`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from millstream_jobs import records
from millstream_jobs.files import Files
from millstream_jobs.outputs.output import OutputError, TableId, check_offsets
from millstream_jobs.records import LastRecord
from millstream_jobs.run import BadRun, Fence, OffsetRange, Output, Run

KEPT = 16
"""Claims before the last commit that are kept, to be read by people."""


class TableReplaced(BadRun):
    """The table is not as the load's last run left it: no retry can help."""

    reason = "TableReplaced"


MOST_REQUESTS = 32
"""Requests in a claim, the latest first."""


class RequestRepeated(BadRun):
    """The table has the rows of this request already."""

    reason = "AlreadyLoaded"


class Claim(Struct, frozen=True, rename="camel"):
    """``table`` is the table's identity when the run began; ``last_records`` those of all runs so far; ``failed`` the
    runs that it fences, even if they have no claim yet."""

    run: str
    offsets: tuple[OffsetRange, ...]
    table: TableId
    topic_ids: dict[str, str] = {}
    last_records: tuple[LastRecord, ...] = ()
    failed: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()


class Table(Protocol):
    """The part of an `outputs.Output` that claims need."""

    def identity(self) -> TableId: ...
    def state(self, run: str) -> Literal["committed", "fenced", ""]: ...
    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None: ...


class Claims:
    """The claims of the load that owns a table."""

    def __init__(self, files: Files, output: Output) -> None:
        self._files = files
        self._folder = f".{output.table}.runs" if output.format == "Iceberg" else "_millstream/runs"

    def take(self, run: Run, table: Table) -> Claim | None:
        """The run's claim, after which no other run of the load can commit; None if a newer run has one.

        That one has fenced this run, unless it had committed before. Raises RequestRepeated, TableReplaced,
        TopicReplaced.
        """
        fence = run.fence or Fence()
        while True:
            numbers = self._numbers()
            earlier, own = self._split(numbers, run)
            if newer := self._newer(numbers, earlier, own, run):
                table.fence(run.name, run.offsets, newer)
                return None
            if not self._decide(earlier, run, fence, table):
                continue  # one of them has committed meanwhile: look again
            if own is not None:
                return own[1]
            self._create(
                (numbers or [0])[-1] + 1, self._new(run, fence, self._last(earlier, fence, table), table)
            )

    def _newer(
        self, numbers: Sequence[int], earlier: Sequence[Claim], own: tuple[int, Claim] | None, run: Run
    ) -> str:
        """A run whose claim is newer than that of this run, or which has fenced it before it had one; "" if none."""
        if own is None:
            return next((claim.run for claim in earlier if run.name in claim.failed), "")
        if own[0] == numbers[-1]:
            return ""
        newest = self._read(numbers[-1])
        return newest.run if newest is not None else "a newer run"

    def of(self, run: Run) -> Claim | None:
        """The run's claim, if it has one."""
        _, own = self._split(self._numbers(), run)
        return own[1] if own else None

    def prune(self, run: Run) -> None:
        """Remove old claims after the run's commit: every earlier run is decided."""
        numbers = self._numbers()
        _, own = self._split(numbers, run)
        for number in numbers if own else ():
            if own and number < own[0] - KEPT:
                self._files.delete(self._path(number))

    def _decide(self, earlier: Sequence[Claim], run: Run, fence: Fence, table: Table) -> bool:
        """Fence the earlier runs that have not committed. False if one of them has committed meanwhile."""
        last = self._last(earlier, fence, table)
        if fence.after is not None:
            _check_table(last, {claim.run for claim in earlier}, fence, table, run)
        since = earlier[: earlier.index(last)] if last is not None else earlier
        open_ = [claim for claim in since if not table.state(claim.run)]
        for name in fence.failed:  # of older releases, or not far enough to have a claim
            if name not in {claim.run for claim in earlier} and not table.state(name):
                table.fence(name, (), run.name)
        for claim in open_:
            table.fence(claim.run, claim.offsets, run.name)
        return all(table.state(claim.run) != "committed" for claim in open_)

    def _last(self, earlier: Sequence[Claim], fence: Fence, table: Table) -> Claim | None:
        """The last run that has committed, among earlier claims, newest first."""
        for claim in earlier:
            if claim.run == fence.after or table.state(claim.run) == "committed":
                return claim
        return None

    def _new(self, run: Run, fence: Fence, last: Claim | None, table: Table) -> Claim:
        done = last.requests if last is not None else ()
        if last is not None and fence.request and fence.request in done:
            raise RequestRepeated(
                f"output.path: {run.output.path} has the rows of request {fence.request!r} already (the last run there"
                f" is {last.run}, {_ends(last.offsets)}): the load's status was lost, or restored from an older copy;"
                " nothing was published; to go on, let from begin where the table ends, with another requestId"
            )
        requests = (fence.request, *done)[:MOST_REQUESTS] if fence.request else done
        read = records.last_of(run.brokers, run.offsets)
        if fence.after is not None and last is not None:
            known = _known(last, run)
            records.check(run.brokers, known, last.run)
            read = records.merged(known, read)
        return Claim(run.name, run.offsets, table.identity(), run.topic_ids, read, fence.failed, requests)

    def _split(self, numbers: Sequence[int], run: Run) -> tuple[list[Claim], tuple[int, Claim] | None]:
        """Claims before the run's own, newest first, up to the oldest one kept; and its own."""
        earlier: list[Claim] = []
        own: tuple[int, Claim] | None = None
        for number in reversed(numbers):
            claim = self._read(number)
            if claim is None:
                continue  # removed meanwhile
            if claim.run == run.name:
                check_offsets(claim.offsets, run)
                own, earlier = (number, claim), []
            else:
                earlier.append(claim)
        return earlier, own

    def _numbers(self) -> list[int]:
        names = self._files.list(self._folder)
        return sorted(
            int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit()
        )

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:010}.json"

    def _read(self, number: int) -> Claim | None:
        path = self._path(number)
        try:
            return msgspec.json.decode(self._files.read(path), type=Claim)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise OutputError(f"output.path: {path} there is no claim of a run: {error}") from None

    def _create(self, number: int, claim: Claim) -> None:
        try:
            self._files.create(self._path(number), msgspec.json.encode(claim))
        except FileExistsError:
            return  # another run's


def check_records(run: Run, claim: Claim) -> None:
    """TopicReplaced if the log's records are not those that the run, or a run before it, has read."""
    records.check(run.brokers, _known(claim, run), claim.run)


def _known(claim: Claim, run: Run) -> list[LastRecord]:
    """The claim's records of the topics that the run reads; those of replaced topics are other topics'."""
    same = {topic for topic in run.topics if claim.topic_ids.get(topic) == run.topic_ids.get(topic)}
    return [record for record in claim.last_records if record.topic in same]


def _check_table(last: Claim | None, claimed: set[str], fence: Fence, table: Table, run: Run) -> None:
    """TableReplaced if the table's last run is not the one that the load's status knows."""
    path = run.output.path
    advice = "nothing was published; to go on with this table as it is, give from a new requestId; or take another path"
    if last is None or (last.run not in fence.failed and fence.after not in claimed):
        raise TableReplaced(
            f"output.path: {path} does not have run {fence.after}, whose rows the load wrote last: the table was"
            f" restored from an older copy, or deleted, or is another one; {advice}"
        )
    if last.run not in (fence.after, *fence.failed):
        raise TableReplaced(
            f"output.path: {path} has the rows of run {last.run}, which this load does not know"
            f" ({_ends(last.offsets)}; the last run that it knows is {fence.after}): the load's status was restored"
            f" from an older copy, or the table is another one; {advice}"
        )
    now = table.identity()
    if now.id != last.table.id or (now.version and now.version <= last.table.version):
        raise TableReplaced(
            f"output.path: {path} is not the table that run {last.run} wrote to: it was restored from an older copy,"
            f" or deleted and created again; {advice}"
        )


def _ends(offsets: Sequence[OffsetRange]) -> str:
    """The ends of ranges in a message."""
    shown = [f"{part.topic}-{part.partition} up to {part.until}" for part in offsets if part.records]
    return ", ".join(shown[:3]) + (" and others" if len(shown) > 3 else "")
