"""Each invariant, broken by hand: the checker finds it, and nothing in a history that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_faults.checker import Batch, Entry, Violation, check, check_replicas
from millstream_faults.history import (
    Acknowledged,
    Committed,
    CommitUnknown,
    Event,
    Failed,
    FoundCommitted,
    HistoryWriter,
    Led,
    Read,
    Struck,
    Trouble,
    parse_value,
    read_history,
    value_of,
)

LOG = {0: [Entry(offset, "w", 0, offset) for offset in range(4)]}
RIGHT: list[Event] = [
    *(Acknowledged(1.0 + offset, "w", 0, offset, offset, 0.9 + offset) for offset in range(3)),
    *(Read(2.0 + offset, "reader#1", 0, offset, "w", offset) for offset in range(4)),
    *(Read(2.0 + offset, "group-1#1", 0, offset, "w", offset) for offset in range(2)),
    FoundCommitted(0.5, "group-1#1", 0, -1, 0.4),
    Committed(5.0, "group-1#1", 0, 2),
    FoundCommitted(5.5, "watcher", 0, 2, 4.5),
    Led(0.0, "lab", 0, 1, 0, [1, 2, 3]),
    Struck(1.0, "lab", "kill", 2.0),
]


def test_a_history_that_is_right() -> None:
    assert check(RIGHT, LOG) == []


def one(violations: list[Violation]) -> tuple[str, str]:
    assert len(violations) == 1, violations
    return violations[0].kind, violations[0].text


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (Acknowledged(9.0, "w", 0, 4, 4, 8.0), "lost", "w 4 was acknowledged at 4, is nowhere"),
        (Acknowledged(9.0, "w", 0, 4, -1, 8.0), "lost", "w 4 was acknowledged at -1, is nowhere"),
        (Read(9.0, "late#1", 0, 4, "w", 4), "lost", "late#1 read w 4, which the log does not have any more"),
        (Read(9.0, "late#1", 0, 3, "w", 7), "value", "late#1 was told of w 7, others of w 3"),
        (Read(9.0, "reader#1", 0, 3, "w", 3), "backwards", "reader#1 read offset 3 after 3"),
        (Read(9.0, "reader#1", 0, 1, "w", 1), "backwards", "reader#1 read offset 1 after 3"),
        (Failed(9.0, "w", 0, 4, "timed out"), "failed", "w 4: timed out"),
        (Trouble(9.0, "reader", "truncated"), "trouble", "reader: truncated"),
        (
            FoundCommitted(9.0, "watcher", 0, 1, 8.0),
            "commit",
            "watcher was told that 1 is committed, after 2 was",
        ),
        (
            FoundCommitted(9.0, "watcher", 0, -1, 8.0),
            "commit",
            "watcher was told that -1 is committed, after 2 was",
        ),
        (
            Committed(9.0, "group-1#1", 0, 4),
            "skipped",
            "the group committed 4 and never read 2 before it, the first 2",
        ),
    ],
)
def test_one_event_too_many(event: Event, kind: str, text: str) -> None:
    assert one(check([*RIGHT, event], LOG)) == (kind, text)


def test_acknowledged_without_an_offset() -> None:
    assert check([*RIGHT, Acknowledged(9.0, "w", 0, 3, -1, 8.0)], LOG) == []


def test_acknowledged_elsewhere() -> None:
    kinds = [violation.kind for violation in check([*RIGHT, Acknowledged(9.0, "w", 0, 3, 1, 8.0)], LOG)]
    assert kinds == ["lost", "value"]


def test_two_values_of_an_offset_that_is_gone() -> None:
    """A record that was read and another that was acknowledged in its place: both are lost, and they differ."""
    events = [Read(1.0, "r#1", 0, 9, "w", 9), Acknowledged(2.0, "v", 0, 0, 9, 1.0)]
    assert [violation.kind for violation in check(events, {0: []})] == ["lost", "lost", "value"]


def test_reads_that_leave_records_out() -> None:
    events = [Read(1.0, "r#1", 0, 0, "w", 0), Read(2.0, "r#1", 0, 2, "w", 2)]
    assert one(check(events, LOG)) == ("gap", "r#1 read offset 2 after 0")


@pytest.mark.parametrize(
    ("entries", "kind", "text"),
    [
        ([Entry(0, "w", 0, 0), Entry(1, "w", 0, 0)], "duplicated", "w 0 is here a second time, first at 0"),
        ([Entry(0, "w", 0, 1), Entry(1, "w", 0, 0)], "order", "w 0 comes after 1"),
        ([Entry(0, "w", 0, 0), Entry(2, "w", 0, 1)], "gap", "the log has 2 after 0"),
        ([Entry(0, "w", 1, 0)], "foreign", "the record is w 0 of partition 1"),
        ([Entry(0, "?", -1, -1)], "foreign", "the record is ? -1 of partition -1"),
    ],
)
def test_a_log_that_is_wrong(entries: list[Entry], kind: str, text: str) -> None:
    assert one(check([], {0: entries})) == (kind, text)


def test_writers_do_not_mind_each_other() -> None:
    assert check([], {0: [Entry(0, "w", 0, 5), Entry(1, "v", 0, 0), Entry(2, "w", 0, 6)]}) == []


class TestCommits:
    """Who asks while a commit is under way may be told of either."""

    def check(self, *events: Event) -> list[Violation]:
        covered = [Read(0.0, "group-1#1", 0, offset, "w", offset) for offset in range(4)]
        return check([*covered, *events], LOG)

    def test_asked_before_it_was_acknowledged(self) -> None:
        assert self.check(Committed(5.0, "g", 0, 3), FoundCommitted(6.0, "watcher", 0, 1, 4.9)) == []

    def test_seen_by_somebody_is_as_good_as_acknowledged(self) -> None:
        first, second = FoundCommitted(5.0, "a", 0, 3, 4.0), FoundCommitted(7.0, "b", 0, 2, 6.0)
        assert one(self.check(first, second))[0] == "commit"

    def test_what_was_tried_may_arrive_late(self) -> None:
        tried = CommitUnknown(3.0, "g", 0, 1)
        told = [Committed(5.0, "g", 0, 3), FoundCommitted(7.0, "watcher", 0, 1, 6.0)]
        assert self.check(tried, *told) == []
        after = [Committed(8.0, "g", 0, 2), FoundCommitted(10.0, "watcher", 0, 2, 9.0)]
        assert self.check(tried, *told, *after) == [], "and the group goes on from there"
        assert one(self.check(*told))[0] == "commit"

    def test_a_coordinator_that_slept_tells_outsiders_what_it_knew(self) -> None:
        commits = [Committed(1.0, "g", 0, 2), Committed(5.0, "g", 0, 3)]
        slept, killed = (
            Struck(2.0, "lab", f"{what}: broker 1", 6.0) for what in ("pause leader", "kill leader")
        )
        told = FoundCommitted(6.1, "watcher", 0, 2, 5.5)
        assert self.check(*commits, told, slept) == []
        assert one(self.check(*commits, told, killed))[0] == "commit"
        assert one(self.check(*commits, told._replace(who="group-2#1"), slept))[0] == "commit"
        assert one(self.check(*commits, told._replace(offset=1), slept))[0] == "commit", "nobody committed it"
        later = told._replace(at=20.0, asked=19.0)
        assert one(self.check(*commits, later, slept))[0] == "commit"

    def test_order_of_the_files_does_not_matter(self) -> None:
        assert one(self.check(FoundCommitted(7.0, "watcher", 0, 1, 6.0), Committed(5.0, "g", 0, 3))) == (
            "commit",
            "watcher was told that 1 is committed, after 3 was",
        )


def test_replicas() -> None:
    batches = [Batch(0, 3, 0, 1234, 90), Batch(4, 4, 1, 5678, 80)]
    assert check_replicas({1: {0: batches}, 2: {0: list(batches)}, 3: {}}) == []
    other = [batches[0], Batch(4, 4, 2, 5678, 80)]
    assert one(check_replicas({1: {0: batches}, 2: {0: other}}))[0] == "replicas"
    (shorter,) = check_replicas({1: {0: batches}, 2: {0: batches[:1]}})
    assert (shorter.partition, shorter.offset) == (0, 4)
    assert shorter.text.endswith("broker 2 has nothing")


def test_a_history_is_what_was_written(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "a.jsonl")
    for event in RIGHT:
        writer.add(event)
    writer.close()
    assert list(read_history(tmp_path)) == RIGHT
    (tmp_path / "b.jsonl").write_text('["Nothing", 1]\n')
    with pytest.raises(ValueError, match=r"b\.jsonl:1: not an event"):
        list(read_history(tmp_path))


def test_values_say_whose_they_are() -> None:
    assert parse_value(value_of("writer-1", 3, 17, 40)) == ("writer-1", 3, 17)
    assert len(value_of("writer-1", 3, 17, 40)) == 40
    for wrong in (b"", b"w:1", b"w:1:2:xxy", b"w:a:2:x", bytes(40)):
        assert parse_value(wrong) == ("?", -1, -1)
