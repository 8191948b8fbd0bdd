"""Each invariant, broken by hand: the checker reports it, and reports nothing for a correct history."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_faults.checker import check, check_replicas
from millstream_faults.history import (
    NEVER,
    Acknowledged,
    Committed,
    CommitUnknown,
    ConfigAltered,
    Discarded,
    Event,
    Failed,
    FoundCommitted,
    GroupDeleted,
    Held,
    HistoryWriter,
    Led,
    Read,
    RecordsDeleted,
    Struck,
    TopicCreated,
    TopicDeleted,
    TopicLost,
    Trouble,
    key_of,
    parse_value,
    read_history,
    value_of,
)
from millstream_faults.violations import Batch, Copy, Entry, Violation

LOG = {("", 0): [Entry(offset, "w", 0, offset) for offset in range(4)]}
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
LIVES: list[Event] = [
    TopicCreated(1.0, "a", "old", "anew", 0.5, False),
    TopicDeleted(11.0, "a", "old", 10.0),
    TopicCreated(12.0, "a", "new", "anew", 11.0, False),
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
    """One record was read at an offset, another was acknowledged there: both are lost, and they differ."""
    events = [Read(1.0, "r#1", 0, 9, "w", 9), Acknowledged(2.0, "v", 0, 0, 9, 1.0)]
    assert [violation.kind for violation in check(events, {("", 0): []})] == ["lost", "lost", "value"]


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
    assert one(check([], {("", 0): entries})) == (kind, text)


def test_writers_do_not_mind_each_other() -> None:
    assert check([], {("", 0): [Entry(0, "w", 0, 5), Entry(1, "v", 0, 0), Entry(2, "w", 0, 6)]}) == []


class TestCommits:
    """A reader may see the old or the new position while a commit is under way."""

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
        slept, rejecting, killed = (
            Struck(2.0, "lab", f"{what}: broker 1", 6.0)
            for what in ("pause leader", "reject brokers at leader", "kill leader")
        )
        told = FoundCommitted(6.1, "watcher", 0, 2, 5.5)
        assert self.check(*commits, told, slept) == []
        assert self.check(*commits, told, rejecting) == [], "no controller reaches it"
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


class TestTopicsMadeAnew:
    """``old`` lived from 1 to 10 and its name was free at 11; ``new`` has had the name since 12."""

    def check(self, *events: Event) -> list[Violation]:
        log = {("new", 0): [Entry(0, "w", 0, 5), Entry(1, "w", 0, 6)]}
        return check([*LIVES, *events], log)

    def test_records_of_a_deleted_topic_may_go(self) -> None:
        assert self.check(Acknowledged(9.0, "w", 0, 1, 7, 2.0, "old")) == []

    def test_records_of_a_deleted_topic_must_not_come_back(self) -> None:
        (found,) = self.check(Acknowledged(9.0, "w", 0, 5, 7, 2.0, "old"))
        assert (found.kind, found.topic, found.offset) == ("resurrected", "new", 0)
        assert found.text == "w 5 was acknowledged to old, which was deleted"

    def test_records_of_the_new_topic_stay(self) -> None:
        (found,) = self.check(Acknowledged(14.0, "w", 0, 7, 2, 13.0, "new"))
        assert (found.kind, found.topic) == ("lost", "new")

    @pytest.mark.parametrize(
        "event",
        [
            Acknowledged(10.5, "w", 0, 1, 7, 9.0, "old"),
            Acknowledged(14.0, "w", 0, 5, 0, 9.0, "old"),
            Acknowledged(14.0, "w", 0, 7, 2, 11.5, "new"),
        ],
    )
    def test_what_was_under_way_may_be_in_either_or_gone(self, event: Event) -> None:
        assert self.check(event) == []

    def test_an_offset_has_a_value_in_each_topic(self) -> None:
        old = Read(9.0, "r#1", 0, 0, "w", 1, "old", 8.0)
        assert self.check(old, Read(14.0, "r#2", 0, 0, "w", 5, "new", 13.0)) == []
        assert one(self.check(old, Acknowledged(9.0, "w", 0, 2, 0, 8.0, "old")))[0] == "value"
        assert one(self.check(Read(14.0, "r#2", 0, 0, "w", 1, "new", 13.0)))[0] == "value"

    def test_only_a_topic_that_stays_has_producers_that_never_give_up(self) -> None:
        assert self.check(Failed(9.0, "w", 0, 1, "no such topic", "old", 8.0)) == []
        assert one(self.check(Failed(14.0, "w", 0, 9, "no such topic", "new", 13.0)))[0] == "failed"


class TestRecordsDeleted:
    """The log holds offsets 4 to 7; DeleteRecords removed everything before 6 at time 10."""

    DELETED = RecordsDeleted(11.0, "a", "t", 0, 6, 10.0)

    def check(self, *events: Event) -> list[Violation]:
        log = {("t", 0): [Entry(at, "w", 0, at) for at in range(4, 8)]}
        return check([TopicCreated(1.0, "a", "t", "anew", 0.5, False), *events], log)

    def test_what_was_deleted_may_go(self) -> None:
        assert self.check(self.DELETED, Acknowledged(3.0, "w", 0, 2, 2, 2.0, "t")) == []
        assert self.check(self.DELETED._replace(at=NEVER), Acknowledged(3.0, "w", 0, 2, 2, 2.0, "t")) == []

    def test_nothing_above_it_goes(self) -> None:
        assert one(self.check(self.DELETED, Acknowledged(3.0, "w", 0, 8, 8, 2.0, "t")))[0] == "lost"
        assert one(self.check(self.DELETED._replace(offset=3)))[0] == "gap"

    def test_nobody_reads_it_again(self) -> None:
        read = Read(13.0, "r#1", 0, 5, "w", 5, "t", 12.0)
        assert one(self.check(self.DELETED, read)) == ("undeleted", "r#1 read 5, before 6 all was deleted")
        assert self.check(self.DELETED, read._replace(asked=10.5)) == [], "it was under way"
        assert self.check(self.DELETED, read._replace(offset=6, number=6)) == []
        assert self.check(self.DELETED._replace(at=NEVER), read) == [], "perhaps it was not deleted"
        slept = Struck(2.0, "lab", "pause leader: broker 1", 11.5)
        assert self.check(self.DELETED, read, slept) == [], "a leader that slept does not know yet"

    def test_retention_deletes_from_the_begin(self) -> None:
        acknowledged = Acknowledged(3.0, "w", 0, 2, 2, 2.0, "t")
        assert "lost" in [found.kind for found in self.check(acknowledged)]
        retained = ConfigAltered(4.0, "a", "t", "retention.bytes", "1000", 3.0)
        assert self.check(acknowledged, retained) == []
        unlimited = retained._replace(value="-1")
        assert "lost" in [found.kind for found in self.check(acknowledged, unlimited)]


class TestCompacted:
    """Each replica has the last value of each key, or a later one."""

    PLACE = ("c", 0)

    def check(self, entries: list[Entry], *events: Event) -> list[Violation]:
        created = TopicCreated(1.0, "a", "c", "compacted", 0.5, True)
        return check([created, *events], {}, {2: {self.PLACE: entries}})

    def numbers(self, *, is_tombstone: bool) -> tuple[int, int]:
        """Two numbers of one key, the first a value."""
        keys = {number: key_of("w", number) for number in range(1, 200)}
        return next(
            (one, two)
            for one, (key, is_deleted) in keys.items()
            for two in range(one + 1, 200)
            if not is_deleted and keys[two] == (key, is_tombstone)
        )

    def entry(self, offset: int, number: int) -> Entry:
        return Entry(offset, "w", 0, number, key_of("w", number)[0])

    def acknowledged(self, number: int, offset: int) -> Event:
        return Acknowledged(3.0 + offset, "w", 0, number, offset, 2.0 + offset, "c")

    def test_the_last_value_stays_and_others_may_go(self) -> None:
        old, new = self.numbers(is_tombstone=False)
        events = [self.acknowledged(old, 0), self.acknowledged(new, 1)]
        assert self.check([self.entry(1, new)], *events) == []
        assert self.check([self.entry(0, old), self.entry(1, new)], *events) == []
        assert one(self.check([self.entry(0, old)], *events))[0] == "final"
        assert one(self.check([], *events))[0] == "final"

    def test_a_deleted_key_never_comes_back(self) -> None:
        value, tombstone = self.numbers(is_tombstone=True)
        events = [self.acknowledged(value, 0), self.acknowledged(tombstone, 1)]
        assert self.check([], *events) == []
        assert self.check([self.entry(1, tombstone)], *events) == []
        (found,) = self.check([self.entry(0, value)], *events)
        assert (found.kind, found.topic) == ("resurrected", "c")

    def test_what_was_tried_last_may_count_or_not(self) -> None:
        value, tombstone = self.numbers(is_tombstone=True)
        tried = Failed(9.0, "w", 0, tombstone, "timed out", "c", 8.0)
        events = [self.acknowledged(value, 0), tried]
        for log in ([], [self.entry(0, value)], [self.entry(1, tombstone)]):
            assert [found.kind for found in self.check(log, *events)] == ["failed"], "and nothing else"

    def test_records_are_in_order_and_somebodys(self) -> None:
        old, new = self.numbers(is_tombstone=False)
        assert one(self.check([self.entry(0, new), self.entry(1, old)]))[0] == "order"
        assert one(self.check([self.entry(0, old)._replace(key="another")]))[0] == "foreign"

    def test_a_partition_that_is_written_for_long_is_compacted(self) -> None:
        numbers = [number for number in range(200) if not key_of("w", number)[1]]
        events = [self.acknowledged(number, offset) for offset, number in enumerate(numbers)]
        log = [self.entry(offset, number) for offset, number in enumerate(numbers)]
        found = self.check(log, *events)
        assert one(found)[0] == "uncompacted"
        once = next(at for at in range(1, len(log)) if log[at].key in [entry.key for entry in log[at + 1 :]])
        assert self.check([*log[:once], *log[once + 1 :]], *events) == []
        assert self.check(log[:50], *events[:50]) == [], "it may take a minute"

    def test_reads_leave_out_what_was_compacted(self) -> None:
        reads = [Read(5.0, "r#1", 0, at, "w", at, "c", 4.0) for at in (0, 3)]
        assert self.check([], *reads) == []


class TestPositions:
    """Without group members, a position equals the last committed one."""

    def check(self, *events: Event) -> list[Violation]:
        return check([*LIVES, *events], {})

    def found(self, offset: int, topic: str, asked: float) -> FoundCommitted:
        return FoundCommitted(asked + 0.1, "position-1", 0, offset, asked, topic)

    def commit(self, offset: int, topic: str, asked: float) -> Committed:
        return Committed(asked + 0.1, "position-1", 0, offset, topic, asked)

    def test_the_last_commit_is_found(self) -> None:
        commits = [self.commit(7, "old", 2.0), self.commit(3, "old", 3.0)]
        assert self.check(*commits, self.found(3, "old", 4.0)) == []
        assert one(self.check(*commits, self.found(7, "old", 4.0))) == (
            "position",
            "position-1 found position 7, possible were [3]",
        )
        assert one(self.check(*commits, self.found(-1, "old", 4.0)))[0] == "position"

    def test_a_new_topic_has_no_position_of_its_predecessor(self) -> None:
        commit = self.commit(7, "old", 2.0)
        assert self.check(commit, self.found(-1, "new", 13.0)) == []
        kind, text = one(self.check(commit, self.found(7, "new", 13.0)))
        assert kind == "inherited"
        assert text.endswith("it is one of anew old, which was deleted")

    def test_a_commit_that_met_the_deletion_may_count_for_either(self) -> None:
        for late in (self.commit(7, "old", 9.95), CommitUnknown(2.0, "position-1", 0, 7, "old")):
            for offset in (7, -1):
                assert self.check(late, self.found(offset, "new", 13.0)) == []

    def test_a_deleted_group_has_no_position(self) -> None:
        commit, deleted = self.commit(7, "old", 2.0), GroupDeleted(4.0, "a", 3.0)
        assert self.check(commit, deleted, self.found(-1, "old", 5.0)) == []
        assert one(self.check(commit, deleted, self.found(7, "old", 5.0)))[0] == "position"
        unknown = deleted._replace(at=NEVER)
        for offset in (7, -1):
            assert self.check(commit, unknown, self.found(offset, "old", 5.0)) == []

    def test_a_coordinator_that_slept_may_tell_an_old_one(self) -> None:
        commits = [self.commit(7, "old", 2.0), self.commit(3, "old", 3.0)]
        slept = Struck(2.5, "lab", "pause leader: broker 1", 3.9)
        assert self.check(*commits, slept, self.found(7, "old", 4.0)) == []


def test_replicas() -> None:
    place = ("t", 0)
    batches = [Batch(0, 3, 0, 1234, 90), Batch(4, 4, 1, 5678, 80)]
    whole = Copy(0, batches)
    assert check_replicas({1: {place: whole}, 2: {place: Copy(0, list(batches))}, 3: {}}) == []
    other = Copy(0, [batches[0], Batch(4, 4, 2, 5678, 80)])
    assert one(check_replicas({1: {place: whole}, 2: {place: other}}))[0] == "replicas"
    (shorter,) = check_replicas({1: {place: whole}, 2: {place: Copy(0, batches[:1])}})
    assert (shorter.topic, shorter.partition, shorter.offset) == ("t", 0, 4)
    assert shorter.text.endswith("broker 2 has nothing")
    assert check_replicas({1: {place: whole}, 2: {place: Copy(4, batches[1:])}}) == []
    assert one(check_replicas({1: {place: whole}, 2: {place: Copy(4, [])}}))[0] == "replicas"


def test_a_history_is_what_was_written(tmp_path: Path) -> None:
    events = [*RIGHT, *LIVES, TestRecordsDeleted.DELETED, GroupDeleted(NEVER, "a", 1.0)]
    events += [ConfigAltered(2.0, "a", "t", "cleanup.policy", "compact", 1.0), CommitUnknown(1.0, "g", 0, 3)]
    writer = HistoryWriter(tmp_path / "a.jsonl")
    for event in events:
        writer.add(event)
    writer.close()
    assert list(read_history(tmp_path)) == events
    (tmp_path / "b.jsonl").write_text('["Nothing", 1]\n')
    with pytest.raises(ValueError, match=r"b\.jsonl:1: not an event"):
        list(read_history(tmp_path))


def test_values_say_whose_they_are() -> None:
    assert parse_value(value_of("writer-1", 3, 17, 40)) == ("writer-1", 3, 17)
    assert len(value_of("writer-1", 3, 17, 40)) == 40
    for wrong in (b"", b"w:1", b"w:1:2:xxy", b"w:a:2:x", bytes(40)):
        assert parse_value(wrong) == ("?", -1, -1)


LOST: list[Event] = [
    TopicCreated(1.0, "a", "late", "anew", 0.5, False),
    TopicLost(12.0, "a", "late", 10.0),
    TopicCreated(12.0, "a", "next", "anew", 11.0, False),
]
"""The tree was restored at 10 to a copy that does not know `late`."""


def test_a_restored_tree_may_lose_only_topics_that_it_does_not_know() -> None:
    lost = Acknowledged(5.0, "w", 0, 0, 0, 4.0, "late")
    steady = Acknowledged(5.0, "w", 0, 4, 4, 4.0)
    assert check([*LOST, lost], {("next", 0): []}) == []
    assert one(check([*LOST, steady], LOG))[0] == "lost"
    assert one(check([*LOST, Acknowledged(13.0, "w", 0, 0, 0, 12.5, "next")], {("next", 0): []}))[0] == "lost"


def test_a_topic_created_after_a_restore_is_empty() -> None:
    record = Acknowledged(5.0, "w", 0, 0, 0, 4.0, "late")
    found = one(check([*LOST, record], {("next", 0): [Entry(0, "w", 0, 0)]}))
    assert found == ("resurrected", "w 0 was acknowledged to late, which was deleted")
    position = [
        Committed(5.0, "position-1", 0, 7, "late", 4.0),
        FoundCommitted(15.0, "position-1", 0, 7, 14.0, "next"),
    ]
    assert one(check([*LOST, *position], {}))[0] == "inherited"


STRAY = Held(20.0, "lab", 2, [["late", 0]], [["steady", 0]])
AFTER = Held(30.0, "lab", 2, [], [["steady", 0]])


def test_a_stray_that_vanishes() -> None:
    assert one(check([*LOST, STRAY, AFTER], {})) == ("stray", "broker 2 no longer has the stray of anew-0")
    assert check([*LOST, STRAY, AFTER._replace(broker=1)], {}) == []
    assert check([*LOST, AFTER._replace(at=10.0), STRAY], {}) == []


@pytest.mark.parametrize(
    "reason",
    [
        AFTER._replace(logs=[["late", 0]]),
        TopicDeleted(28.0, "a", "late", 25.0),
        Discarded(25.0, "lab", 2),
        Struck(24.0, "lab", "move replicas: late-0", 26.0),
    ],
)
def test_a_stray_that_may_vanish(reason: Event) -> None:
    after = [] if isinstance(reason, Held) else [AFTER]
    assert check([*LOST[::2], STRAY, *after, reason], {}) == []


@pytest.mark.parametrize(
    "no_reason",
    [
        TopicDeleted(32.0, "a", "late", 31.0),
        TopicDeleted(28.0, "a", "another", 25.0),
        Discarded(15.0, "lab", 2),
        Discarded(25.0, "lab", 1),
        Struck(24.0, "lab", "kill leader: broker 2", 26.0),
    ],
)
def test_a_stray_that_may_not_vanish(no_reason: Event) -> None:
    assert one(check([*LOST[::2], STRAY, AFTER, no_reason], {}))[0] == "stray"
