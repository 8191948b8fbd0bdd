"""The plan of a promotion: what a request promotes, what it refuses, and the resulting recovery point."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream_harness.in_memory import stored
from millstream_harness.manifests import resource
from millstream_harness.mirrored import Source
from millstream_kafka import mirror_source
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.mirror_source import MOST_REQUESTS, PROMOTED
from millstream_mirror.kafka.progress import Progress, target_number
from millstream_operator.kafka.mirror_records import KEY, Noted, TargetTopic, mark_of, read_note, time_of
from millstream_operator.kafka.records import ConfigChange, Partition
from millstream_operator.models import LastPromotion, MirrorMaker, Promote, decode_as
from millstream_operator.reconcile.mirror.promotion import (
    MOST_PARTITIONS,
    MOST_TOPICS,
    Observed,
    Origin,
    Plan,
    Refused,
    SourceEnd,
    ended,
    plan,
    with_last,
)

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 24, tzinfo=UTC)
ID = "{}" + 21 * "A"
"""A topic id, by a letter."""


def a_mirror(**spec: Any) -> MirrorMaker:
    wanted = {
        "sources": [{"name": "west", "bootstrap": "west:9092"}],
        "target": {"bootstrap": "east:9092"},
        "topics": {"include": ["orders.*"], "exclude": ["orders-test"]},
        "mode": "Identity",
        **spec,
    }
    return decode_as(MirrorMaker, stored(resource("MirrorMaker", "copy", **wanted)))


def topic(
    name: str,
    source: str = "",
    letter: str = "A",
    partitions: int = 1,
    promoted: tuple[str, ...] | None = (),
) -> TargetTopic:
    return TargetTopic(name, ID.format(letter), partitions, source and f"{source}/{ID.format('S')}", promoted)


def observed(*topics: TargetTopic, noted: dict[str, TargetTopic] | None = None) -> Observed:
    """``noted`` are the topics that a worker has written to, by name."""
    notes = {
        Partition(name, 0): Noted("here", ID.format("S"), mark_of(one.topic_id))
        for name, one in (noted or {}).items()
    }
    return Observed({one.name: one for one in topics}, {"west": notes})


def planned(
    seen: Observed, *names: str, mirror: MirrorMaker | None = None
) -> tuple[list[str], list[str]] | str:
    """The topics to promote and those promoted before, or the reason for a refusal."""
    promote = Promote(request_id="r", topics=names or None)
    found = plan(mirror or a_mirror(), promote, seen)
    return found.message if isinstance(found, Refused) else ([*found.waiting], [*found.done])


REPLICA = topic("orders", "here", "B")
NOTED = {"orders": REPLICA}


def test_operator_and_workers_agree_on_what_is_stored() -> None:
    assert KEY == mirror_source.KEY
    progress = Progress(
        7, 5, 0, 0, 9, "00000000-0000-4000-8000-000000000001", "c", 3, source_end=12, observed_ms=4
    )
    assert read_note(progress.metadata()) == Noted("c", "AAAAAAAAQACAAAAAAAAAAQ", 5, 12, 4)
    some = Source().topic.topic_id
    assert mark_of(uuid_text(some)) == target_number(str(some))


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"producer": [1]}', "[" * 9999, '{"cluster": 1, "topicId": 2}']
)
def test_a_note_that_no_worker_wrote_says_nothing(text: str) -> None:
    assert read_note(text) is None


def test_a_note_of_an_impossible_time_stops_no_promotion() -> None:
    text = '{"cluster": "c", "topicId": "00000000-0000-4000-8000-000000000001", "producer": [5], "source": [5, %d]}'
    note = read_note(text % (1 << 62))
    assert note is not None
    assert time_of(note.seen_ms).year == 9999
    assert time_of(-1).year == 1970


def test_all_are_those_that_the_mirror_copies() -> None:
    """The source's cluster in their setting, which the workers have noted, and the patterns decide."""
    seen = observed(
        REPLICA,
        topic("orders-new", "here", "C"),  # created, but not noted yet
        topic("orders-2", "elsewhere", "D"),
        topic("orders-own", letter="E"),
        topic("payments", "here", "F"),
        topic("orders-test", "here", "G"),
        noted=NOTED,
    )
    assert planned(seen) == (["orders", "orders-new"], [])


def test_topics_that_were_promoted_are_known_by_the_notes_of_workers() -> None:
    promoted = topic("orders", letter="B")
    assert planned(observed(promoted, noted=NOTED)) == ([], ["orders"])
    assert planned(observed(promoted, noted=NOTED), "orders") == ([], ["orders"])
    anew = topic("orders", letter="C")
    assert planned(observed(anew, noted=NOTED)) == ([], [])
    assert "topic orders is an ordinary topic" in planned(observed(anew, noted=NOTED), "orders")


def with_promotion(state: Any, request_id: str = "r") -> MirrorMaker:
    last = LastPromotion(request_id=request_id, state=state, time=NOW, all_topics=True)
    return with_last(a_mirror(promote={"requestId": request_id}), last)


AGAIN = (
    "this request has promoted orders before, which became replicas again later: give it another requestId to"
    " promote them"
)


@pytest.mark.parametrize(("names", "rejoins"), [((), False), ((), True), (("orders",), False)])
@pytest.mark.parametrize("status", ["lost", "of an older request", "older"])
def test_request_that_promoted_a_replica_before_is_refused(
    names: tuple[str, ...], rejoins: bool, status: str
) -> None:
    """It became a replica again when it failed back, and the status was lost, or restored from an older copy."""
    back = topic("orders", "here", "B", promoted=("s", "r"))
    if rejoins:
        back = dataclasses.replace(back, source=f"{back.source}/rejoin")
    seen = observed(back, topic("orders-new", "here", "C"), noted=NOTED)
    mirrors = {
        "lost": None,
        "of an older request": with_promotion("Done", "q"),
        "older": with_promotion("Running"),
    }
    assert planned(seen, *names, mirror=mirrors[status]) == AGAIN


def test_older_status_of_a_promotion_that_is_done_promotes_no_new_replica() -> None:
    back = topic("orders", "here", "B", promoted=("r",))
    seen = observed(back, topic("orders-new", "here", "C"), noted=NOTED)
    assert planned(seen, mirror=with_promotion("Done")) == ([], [])


@pytest.mark.parametrize("promoted", [(), ("q",), None])
def test_request_promotes_a_replica_that_it_has_not_promoted(promoted: tuple[str, ...] | None) -> None:
    seen = observed(topic("orders", "here", "B", promoted=promoted), noted=NOTED)
    assert planned(seen) == planned(seen, "orders") == (["orders"], [])


def test_topic_records_the_requests_that_promote_it() -> None:
    many = tuple(f"r{number}" for number in range(MOST_REQUESTS))
    assert topic("t", promoted=()).promotion("r") == ConfigChange({PROMOTED: "r"}, (KEY,))
    assert topic("t", promoted=("q", "r")).promotion("r") == ConfigChange({PROMOTED: "r,q"}, (KEY,))
    assert topic("t", promoted=many).promotion("r").set[PROMOTED].split(",") == ["r", *many[:-1]]
    assert topic("t", promoted=None).promotion("r") == ConfigChange({}, (KEY,)), "brokers without the setting"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("oders", "there is no topic oders in the target"),
        ("own", "topic own is an ordinary topic that this mirror has not written to"),
        (
            "orders-2",
            "topic orders-2 is a read-only replica of a topic of another cluster"
            f" (elsewhere/{ID.format('S')}), which is no source of MirrorMaker copy",
        ),
    ],
)
def test_a_request_with_a_wrong_topic_is_refused_as_a_whole(name: str, why: str) -> None:
    seen = observed(REPLICA, topic("orders-2", "elsewhere", "D"), topic("own", letter="E"), noted=NOTED)
    todo = "correct spec.promote.topics and give the request another requestId"
    assert planned(seen, "orders", name) == f"{why}; this mirror's topics are orders: {todo}"


def test_topics_that_rejoin_are_not_promoted() -> None:
    """The workers would take the topics back, and cut off producers' records."""
    back = topic("orders-back", "here", "C")
    back = dataclasses.replace(back, source=f"{back.source}/rejoin")
    seen = observed(REPLICA, back, noted=NOTED)
    said = planned(seen, "orders", "orders-back")
    assert said.startswith("topic orders-back rejoins its source: wait until it is a replica; to give up")
    assert "; this mirror's topics are orders: " in said
    assert planned(seen, "orders") == (["orders"], [])
    found = plan(a_mirror(), Promote(request_id="r"), seen)
    assert isinstance(found, Plan)
    assert (found.topics, found.rejoining) == ({}, ["orders-back"])
    # all topics are promoted, so no worker continues: this one must not stay read-only
    over = with_last(
        a_mirror(promote={"requestId": "r"}),
        LastPromotion(request_id="r", state="Done", time=NOW, all_topics=True),
    )
    assert planned(seen, mirror=over) == (["orders"], []), "a worker may still run"
    without = dataclasses.replace(seen, workers=False)
    assert planned(without, mirror=over) == (["orders", "orders-back"], [])


def test_another_mirrors_topic_from_the_same_cluster_is_not_promoted() -> None:
    payments = topic("payments", "here", "F")
    seen = observed(REPLICA, payments, noted=NOTED)
    assert planned(seen, "orders", "payments").startswith(
        "topic payments is a read-only replica of a topic of west, but spec.topics of MirrorMaker copy does not"
        " select it; this mirror's topics are orders: "
    )
    assert planned(seen) == (["orders"], [])
    # unless this mirror once copied this very topic
    noted = {**NOTED, "payments": payments}
    assert planned(observed(REPLICA, payments, noted=noted), "payments") == (["payments"], [])
    anew = dataclasses.replace(payments, topic_id=ID.format("G"))
    assert "does not select it" in planned(observed(REPLICA, anew, noted=noted), "payments")


def test_where_no_worker_has_noted_anything_topics_must_be_named() -> None:
    seen = observed(REPLICA, topic("payments", "here", "C"))
    said = planned(seen)
    assert "name them in spec.promote.topics" in said
    assert "the target has the replicas orders, payments" in said
    assert planned(seen, "orders") == (["orders"], [])
    assert "payments is a read-only replica of a topic of another cluster" in planned(seen, "payments")


def test_topics_of_prefixed_names_are_the_targets() -> None:
    mirror = a_mirror(naming="Prefixed")
    seen = observed(
        topic("west.orders", "here", "B"), topic("orders", "here", "C"), noted={"west.orders": REPLICA}
    )
    assert planned(seen, mirror=mirror) == (["west.orders"], [])
    assert planned(seen, "west.orders", mirror=mirror) == (["west.orders"], [])


def the_end(counts: list[int], ends: dict[Partition, int], source_ends: dict[Partition, SourceEnd]) -> Any:
    topics = {f"t{at:03}": TargetTopic(f"t{at:03}", ID.format("A"), count) for at, count in enumerate(counts)}
    found = Plan(topics, {}, {name: Origin("west", ID.format("S")) for name in topics})
    return ended(Promote(request_id="r"), found, [*topics], ends, source_ends, NOW)


def test_the_recovery_point_counts_what_is_known() -> None:
    t0, t1 = Partition("t000", 0), Partition("t000", 1)
    last = the_end([2], {t0: 10, t1: 20}, {t0: SourceEnd(14), t1: SourceEnd(20)})
    (row,) = last.topics
    assert (row.ends, row.source_ends, row.source_ends_from, row.not_mirrored) == (
        (10, 20),
        (14, 20),
        "Source",
        4,
    )
    assert (last.not_mirrored, last.unknown_partitions) == (4, 0)
    assert last.message == "1 topic promoted; 4 records of the source were not mirrored"

    last = the_end([2], {t0: 10, t1: 20}, {t0: SourceEnd(11, NOW)})
    (row,) = last.topics
    assert (row.source_ends, row.source_ends_from, row.source_ends_at) == ((11, -1), "LastKnown", NOW)
    assert last.message == (
        "1 topic promoted; at least 1 record of the source was not mirrored, as last known at 2026-11-24T00:00:00Z: the"
        " operator does not reach the source; of 1 partition it is not known"
    )
    last = the_end([2], {t0: 10, t1: 20}, {t0: SourceEnd(7, NOW), t1: SourceEnd(15)})
    assert last.topics[0].source_ends == (10, 15), "the source had what was mirrored after the last note"
    last = the_end([2], {t0: 10, t1: 20}, {})
    assert (last.not_mirrored, last.unknown_partitions) == (None, 2)
    assert last.message.endswith("were not mirrored is not known: the operator does not reach the source")


def test_the_end_of_mirrored_records_may_be_unknown() -> None:
    t0, t1 = Partition("t000", 0), Partition("t000", 1)
    last = the_end([2], {t0: 10}, {t0: SourceEnd(14), t1: SourceEnd(20)})
    (row,) = last.topics
    assert (row.ends, row.not_mirrored) == ((10, -1), 4)
    assert (last.not_mirrored, last.unknown_partitions) == (4, 1)
    assert last.message == (
        "1 topic promoted; 4 records of the source were not mirrored; of 1 partition it is not known; where mirrored"
        " records end is not known of 1 partition"
    )
    last = the_end([1], {}, {t0: SourceEnd(14)})
    assert (last.not_mirrored, last.unknown_partitions) == (None, 1)
    assert last.message == (
        "1 topic promoted; how many records were not mirrored is not known; where mirrored records end is not known of"
        " 1 partition"
    )


def test_a_status_shows_the_topics_that_lack_most_and_totals_of_all() -> None:
    counts = [1] * 300
    ends = {Partition(f"t{at:03}", 0): 0 for at in range(300)}
    last = the_end(counts, ends, {where: SourceEnd(number) for number, where in enumerate(ends)})
    assert [row.topic for row in last.topics] == [f"t{at:03}" for at in range(300 - MOST_TOPICS, 300)]
    assert (last.topic_count, last.partition_count, last.not_mirrored) == (300, 300, sum(range(300)))
    wide = the_end([MOST_PARTITIONS, 1], {}, {})
    assert (len(wide.topics), wide.topic_count, wide.partition_count) == (1, 2, MOST_PARTITIONS + 1)
    assert the_end([MOST_PARTITIONS + 1], {}, {}).topics == ()
    beside = the_end(
        [MOST_PARTITIONS + 1, 1], {Partition("t000", 0): 0}, {Partition("t000", 0): SourceEnd(9)}
    )
    assert [row.topic for row in beside.topics] == ["t001"], "one that is too wide hides no other"
