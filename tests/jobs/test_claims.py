"""Claims: runs of a load commit in the order of their claims, whatever drivers do and wherever they stop."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millstream_harness.load_conditions import ready_after
from millstream_jobs import claims, records
from millstream_jobs.claims import KEPT, MOST_REQUESTS, Claims, RequestRepeated, TableReplaced
from millstream_jobs.files import PosixFiles
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.outputs.output import State, TableId
from millstream_jobs.records import LastRecord
from millstream_jobs.run import Fence, OffsetRange, Output, Run

IDS = {"flights": "FFoprDM1SJK7NOYIyM9Pww"}
Log = dict[tuple[str, int], list[tuple[int, int]]]


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """The log: leader epoch and timestamp of each record."""
    there: Log = {("flights", 0): [(0, at) for at in range(100)]}

    def read(bootstrap: str, wanted: dict[tuple[str, int], range]) -> dict[tuple[str, int], LastRecord]:
        found = {}
        for key, offsets in wanted.items():
            for at in range(offsets.start, min(offsets.stop, len(there[key]))):
                found[key] = LastRecord(*key, at, *there[key][at])
        return found

    monkeypatch.setattr(records, "_read", read)
    return there


class Table:
    """A table that commits or fences each name once."""

    def __init__(self) -> None:
        self.decided: dict[str, State] = {}
        self.order: list[str] = []
        self.id = TableId("t-1", 1)

    def identity(self) -> TableId:
        return self.id

    def state(self, run: str) -> State:
        return self.decided.get(run, "")

    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None:
        self.decided.setdefault(run, "fenced")

    def commit(self, run: str) -> bool:
        if self.decided.setdefault(run, "committed") == "committed":
            if run not in self.order:
                self.order.append(run)
                self.id = replace(self.id, version=self.id.version + 1)
            return True
        return False


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def taken(tmp_path: Path) -> Claims:
    return Claims(PosixFiles(str(tmp_path)), Output("/lake"))


def run(name: str, first: int = 0, until: int = 10, after: str | None = None, *failed: str) -> Run:
    fence = Fence(after, failed)
    return Run(
        name, "b:1", (OffsetRange("flights", 0, first, until),), Output("/lake"), topic_ids=IDS, fence=fence
    )


def test_an_earlier_run_is_fenced_before_the_next_one_commits(taken: Claims, table: Table) -> None:
    first = run("a")
    assert taken.take(first, table) == taken.of(first)
    assert table.commit("a")
    assert taken.take(run("b", 10, 20, "a"), table) is not None
    assert taken.take(run("b", 10, 20, "a"), table) is not None, "a second driver"
    assert taken.take(run("c", 10, 30, "a", "b"), table) is not None
    assert table.decided == {"a": "committed", "b": "fenced"}
    assert taken.take(run("b", 10, 20, "a"), table) is None, "a newer run has a claim"
    assert not table.commit("b")
    assert table.commit("c")
    assert table.order == ["a", "c"]


def test_a_run_that_had_no_claim_yet_is_fenced_by_its_name(taken: Claims, table: Table) -> None:
    taken.take(run("a"), table)
    table.commit("a")
    assert taken.take(run("c", 10, 30, "a", "b"), table) is not None
    assert table.state("b") == "fenced"


def test_a_run_without_a_claim_is_fenced_in_a_table_that_cannot_take_its_name(
    taken: Claims, table: Table
) -> None:
    """An Iceberg table takes a run's name together with its offsets, which only its claim or its own driver know."""
    taken.take(run("a"), table)
    table.commit("a")
    taken.take(run("c", 10, 30, "a", "b"), table)
    del table.decided["b"]
    assert taken.take(run("b", 10, 20, "a"), table) is None
    assert table.state("b") == "fenced"


def test_a_failed_run_that_had_committed_is_known(taken: Claims, table: Table) -> None:
    taken.take(run("a"), table)
    taken.take(run("b", 10, 20), table)
    table.commit("b")
    assert taken.take(run("c", 10, 30, "a", "b"), table) is not None, "its mode decides"
    with pytest.raises(TableReplaced):
        taken.take(run("d", 10, 30, "a"), table)


def test_a_run_that_knows_no_other_fences_those_of_a_predecessor(taken: Claims, table: Table) -> None:
    """A BatchLoad was deleted and created again, while its driver went on."""
    taken.take(run("old-1"), table)
    table.commit("old-1")
    taken.take(run("old-2", 10, 20, "old-1"), table)
    assert taken.take(run("new-1", 10, 20), table) is not None
    assert table.state("old-2") == "fenced"
    assert table.commit("new-1")
    with pytest.raises(TableReplaced):
        taken.take(run("old-3", 10, 20, "old-1", "old-2"), table)


def request(name: str, of: str, first: int = 0, until: int = 10) -> Run:
    return replace(run(name, first, until), fence=Fence(request=of))


def test_request_that_is_in_the_table_is_not_loaded_again(taken: Claims, table: Table) -> None:
    """The status was lost, or restored from an older copy: the run names no other one."""
    assert taken.take(request("a", "from r"), table) is not None
    table.commit("a")
    assert taken.take(request("a", "from r"), table) is not None, "another driver of the same run"
    taken.take(run("b", 10, 20, "a"), table)
    table.commit("b")
    with pytest.raises(RequestRepeated, match="has the rows of request 'from r' already"):
        taken.take(request("c", "from r"), table)
    assert taken.take(request("d", "rerun r"), table) is not None
    table.commit("d")
    for again in ("from r", "rerun r"):
        with pytest.raises(RequestRepeated):
            taken.take(request("e", again), table)


def test_request_of_a_run_that_did_not_commit_is_loaded(taken: Claims, table: Table) -> None:
    taken.take(request("a", "from r"), table)
    assert taken.take(request("b", "from r", 0, 20), table) is not None
    assert table.state("a") == "fenced"
    table.commit("b")
    with pytest.raises(RequestRepeated):
        taken.take(request("c", "from r"), table)


def test_claims_keep_the_last_requests(taken: Claims, table: Table) -> None:
    for number in range(MOST_REQUESTS + 1):
        taken.take(request(f"a-{number}", f"from {number}"), table)
        table.commit(f"a-{number}")
    with pytest.raises(RequestRepeated):
        taken.take(request("b", "from 1"), table)
    assert taken.take(request("b", "from 0"), table) is not None, "forgotten"


def test_claim_of_an_older_release_has_no_requests(taken: Claims, table: Table, tmp_path: Path) -> None:
    taken.take(run("a"), table)
    table.commit("a")
    (file,) = (tmp_path / "_millstream/runs").iterdir()
    claim = json.loads(file.read_text())
    del claim["requests"]
    file.write_text(json.dumps(claim))
    assert taken.take(request("b", "from r", 10, 20), table) is not None


@pytest.mark.parametrize("committed", [True, False])
def test_an_older_status_adds_nothing(taken: Claims, table: Table, committed: bool) -> None:
    taken.take(run("a"), table)
    table.commit("a")
    taken.take(run("b-x", 10, 20, "a"), table)
    if committed:
        table.commit("b-x")
        with pytest.raises(TableReplaced) as caught:
            taken.take(run("b-y", 10, 30, "a"), table)
        status, reason, message = ready_after(caught.value)
        assert (status, reason) == ("False", "TableReplaced")
        assert "/lake has the rows of run b-x, which this load does not know (flights-0 up to 20; " in message
        assert "the load's status was restored from an older copy" in message
        assert "give from a new requestId" in message
        assert taken.of(run("b-y", 10, 30)) is None
        assert taken.take(run("b-z", 20, 30), table) is not None, "as its user decides"
    else:
        assert taken.take(run("b-y", 10, 30, "a"), table) is not None
        assert table.state("b-x") == "fenced"


def test_an_older_status_fences_nothing(taken: Claims, table: Table) -> None:
    """It may be a copy of a data folder, beside the original."""
    for name, after in (("a", None), ("b", "a"), ("c", "b")):
        taken.take(run(name, 0, 10, after), table)
        if name != "c":
            table.commit(name)
    with pytest.raises(TableReplaced):
        taken.take(run("b-y", 10, 30, "a", "a-z"), table)
    assert (table.state("c"), table.state("a-z")) == ("", "")


@pytest.mark.parametrize("how", ["older copy", "emptied", "other table", "older catalog"])
def test_a_table_that_is_not_the_one_that_the_last_run_left(
    taken: Claims, table: Table, tmp_path: Path, how: str
) -> None:
    taken.take(run("a"), table)
    table.commit("a")
    taken.take(run("b", 10, 20, "a"), table)
    before = table.id
    table.commit("b")
    folder = tmp_path / "_millstream/runs"
    said = "is not the table that run b wrote to: it was restored from an older copy, or deleted and created again"
    if how in ("older copy", "emptied"):
        for file in sorted(folder.iterdir())[how == "older copy" :]:
            file.unlink()
        said = (
            "does not have run b, whose rows the load wrote last: the table was restored from an older copy"
        )
    elif how == "other table":
        table.id = replace(table.id, id="t-2")
    else:
        table.id = before
    with pytest.raises(TableReplaced, match=said):
        taken.take(run("c", 20, 30, "b"), table)
    assert taken.take(run("d", 20, 30), table) is not None, "as its user decides"


def test_other_records_at_the_offsets_of_the_last_run_are_noticed(
    taken: Claims, table: Table, log: Log
) -> None:
    first = taken.take(run("a", 0, 90), table)
    table.commit("a")
    assert first is not None
    assert first.last_records == (LastRecord("flights", 0, 89, 0, 89),)
    log["flights", 0][80:] = [(0, 1000 + at) for at in range(80, 110)]
    with pytest.raises(TopicReplaced) as caught:
        taken.take(run("b", 90, 110, "a"), table)
    _, reason, message = ready_after(caught.value)
    assert reason == "TopicReplaced"
    assert (
        "flights-0 were replaced: run a read offset 89 with timestamp 89 and leader epoch 0, and it now"
        in message
    )
    with pytest.raises(TopicReplaced):
        claims.check_records(run("a", 0, 90), first)
    claims.check_records(replace(run("a"), topic_ids={"flights": "A" * 21 + "B"}), first)  # another topic's
    log["flights", 0][80:] = [(1, at) for at in range(80, 110)]
    with pytest.raises(TopicReplaced, match="leader epoch 1"):
        taken.take(run("b", 90, 110, "a"), table)
    log["flights", 0][80:] = [(0, at) for at in range(80, 110)]
    claim = taken.take(run("b", 90, 90, "a"), table)
    assert claim is not None
    assert claim.last_records == first.last_records, "of the runs before"


def test_old_claims_are_removed_and_none_is_taken_twice(taken: Claims, table: Table, tmp_path: Path) -> None:
    after = None
    for number in range(2 * KEPT):
        now = run(f"r{number}", after=after)
        assert taken.take(now, table) is not None
        table.commit(now.name)
        taken.prune(now)
        after = now.name
    names = sorted(file.name for file in (tmp_path / "_millstream/runs").iterdir())
    assert names == [f"{number:010}.json" for number in range(KEPT, 2 * KEPT + 1)]


class Interrupted(Exception):
    pass


class Steps:
    """Files and table for a driver that dies, or at whose step another driver does all of its work."""

    def __init__(self, inner: Any, at: list[int], other: Any) -> None:
        self._inner, self._at, self._other = inner, at, other

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._inner, name)

        def step(*given: Any) -> Any:
            self._at[0] -= 1
            if self._at[0] == 0:
                self._other()
            return act(*given)

        return step


@pytest.mark.parametrize("seed", range(200))
def test_runs_commit_in_the_order_of_their_claims(tmp_path: Path, seed: int) -> None:
    """Drivers of several runs, each twice, run inside each other at random steps; each may die there for a while."""
    drawn = random.Random(seed)
    table, files = Table(), PosixFiles(str(tmp_path))
    table.commit("p")
    waiting = [run(f"r{number}", 10, 20) for number in range(3)] * 2
    drawn.shuffle(waiting)

    def work(depth: int) -> None:
        if not waiting:
            return
        mine, at = waiting.pop(), [drawn.randrange(40)]

        def other() -> None:
            work(depth + 1)
            if drawn.random() < 0.2:
                raise Interrupted

        claim = Claims(Steps(files, at, other), Output("/lake")).take(mine, Steps(table, at, other))
        if claim is None:
            assert table.state(mine.name)
            return
        if mine.name in table.order:
            return
        seen = list(table.order)  # here the job compares rows (mode New)
        if drawn.random() < 0.5:
            work(depth + 1)
        if mine.name not in table.order and table.commit(mine.name):
            assert [name for name in table.order if name != mine.name] == seen, "nothing committed in between"

    while waiting:
        try:
            work(0)
        except Interrupted:
            continue
