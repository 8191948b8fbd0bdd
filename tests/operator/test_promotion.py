"""Promotions: the outcome of a request; and each topic is promoted once, whatever ends between two steps.

The operator is its own code with a real broker; replicas are created as workers create them. Real workers:
tests/mirror/test_mirror_promotion.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_harness.broker import BrokerProcess
from millstream_harness.in_memory import stored
from millstream_harness.manifests import cluster, resource
from millstream_harness.mirrored import Source
from millstream_harness.mortal import Died, Life
from millstream_harness.promoting import NOWHERE, World
from millstream_harness.scenario import unique
from millstream_kafka import mirror_source
from millstream_kafka.kafka_uuid import uuid_text
from millstream_mirror.progress import Progress, target_number
from millstream_operator.kafka_records import ConfigChange, NewTopic, Partition
from millstream_operator.mirror_records import KEY, Noted, TargetTopic, mark_of, read_note, time_of
from millstream_operator.models import LastPromotion, MirrorMaker, Promote, decode_as
from millstream_operator.reconcile.promotion import (
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
from millstream_operator.resources.mirror import selector
from millstream_operator.store import Key

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


def topic(name: str, source: str = "", letter: str = "A", partitions: int = 1) -> TargetTopic:
    return TargetTopic(name, ID.format(letter), partitions, source and f"{source}/{ID.format('S')}")


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
        7, 5, 0, 0, 9, "00000000-0000-4000-8000-000000000001", "c", 3, source_end=12, seen_ms=4
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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("oders", "there is no topic oders in the target"),
        ("own", "topic own is an ordinary topic that this mirror has not written to"),
        (
            "orders-2",
            f"topic orders-2 is a mirror of elsewhere/{ID.format('S')}, which is no source of this MirrorMaker",
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
        f"topic payments is a mirror of {payments.source}, but spec.topics does not select it; this mirror's topics are"
        " orders: "
    )
    assert planned(seen) == (["orders"], [])
    # unless this mirror once copied this very topic
    noted = {**NOTED, "payments": payments}
    assert planned(observed(REPLICA, payments, noted=noted), "payments") == (["payments"], [])
    anew = dataclasses.replace(payments, topic_id=ID.format("G"))
    assert "spec.topics does not select it" in planned(observed(REPLICA, anew, noted=noted), "payments")


def test_where_no_worker_has_noted_anything_topics_must_be_named() -> None:
    seen = observed(REPLICA, topic("payments", "here", "C"))
    said = planned(seen)
    assert "name them in spec.promote.topics" in said
    assert "the target has the replicas orders, payments" in said
    assert planned(seen, "orders") == (["orders"], [])
    assert "payments is a mirror of here" in planned(seen, "payments"), "the patterns do not select it"


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


# ---- with a broker

NewWorld = Callable[..., World]


@pytest.fixture
def world(shared_broker: BrokerProcess) -> Iterator[NewWorld]:
    made: list[World] = []

    def make(**spec: Any) -> World:
        made.append(World(shared_broker.bootstrap, unique("mirror"), **spec))
        return made[-1]

    yield make
    for one in made:
        one.close()


def write(one: World, topic: str, partition: int = 0) -> int:
    """Write a record; return its offset."""
    offsets: list[Any] = []
    producer = Producer({"bootstrap.servers": one.target, "log_level": 0})
    producer.produce(
        topic, b"own", partition=partition, on_delivery=lambda no, made: offsets.append(no or made.offset())
    )
    assert producer.flush(30) == 0
    assert isinstance(offsets[0], int), offsets
    return offsets[0]


def test_named_topics_are_promoted_once_and_the_status_has_the_recovery_point(world: NewWorld) -> None:
    one = world()
    first, other = one.replica(f"{one.name}-1", [5, 0, 9]), one.replica(f"{one.name}-2")
    one.ask("r", first.name)
    status = one.look()
    assert one.writable(first.name, other.name) == [True, False]
    last = status["lastPromotion"]
    assert (last["requestId"], last["state"], last["topicCount"], last["partitionCount"]) == (
        "r",
        "Done",
        1,
        3,
    )
    (row,) = last["topics"]
    assert (row["topic"], row["topicId"]) == (first.name, one.topic(first.name).topic_id)
    assert (row["source"], row["ends"], row["sourceEnds"]) == ("west", [5, 0, 9], [12, 7, 16])
    assert (row["sourceEndsFrom"], row["sourceEndsAt"]) == ("LastKnown", "2025-11-24T08:00:00Z")
    assert (row["notMirrored"], last["notMirrored"]) == (21, 21)
    words = (
        "request r: 1 topic promoted; at least 21 records of the source were not mirrored, as last known at"
        " 2025-11-24T08:00:00Z: the operator does not reach the source"
    )
    assert one.condition() == ("True", "Promoted", words)
    assert [event.reason for event in one.kube.events if event.reason.startswith("Promot")] == [
        "Promoting",
        "Promoted",
    ]
    # the same request again: nothing happens
    writes = len(one.kube.applied)
    assert write(one, first.name) == 5
    assert one.look()["lastPromotion"] == last
    assert len(one.kube.applied) == writes
    # a request for a promoted topic: the status says so, and later writes do not count as mirrored records
    one.ask("s", first.name, other.name)
    last = one.look()["lastPromotion"]
    assert one.writable(other.name) == [True]
    assert f"1 topic promoted; promoted before: {first.name}; at least 28 records" in last["message"]
    assert [row["ends"] for row in last["topics"]] == [[5, 0, 9], [3]]
    one.ask("t", first.name)
    assert one.look()["lastPromotion"]["message"].startswith(
        f"promoted before: {first.name}; at least 21 records"
    )


def test_all_topics_are_promoted_and_the_workers_end(world: NewWorld) -> None:
    one = world()
    names = [one.replica(f"{one.name}-{number}").name for number in range(3)]
    foreign = Source()
    foreign.topic = foreign.topic._replace(cluster_id="another")
    theirs = one.replica(f"{one.name}-theirs", source=foreign, noted=False).name
    unnoted = one.replica(f"{one.name}-new", noted=False).name
    one.look()
    assert one.kube.applied_names("Deployment") == [f"{one.name}-mirror"]
    one.ask("all")
    one.look()
    assert one.writable(*names, unnoted, theirs) == [True] * 4 + [False]
    assert one.kube.deleted == [("Deployment", f"{one.name}-mirror")]
    assert (one.condition() or ())[:2] == ("True", "Promoted")
    assert (one.condition("Ready") or ())[:2] == ("True", "Promoted")
    assert one.condition("SourceReachable") is None
    # later topics are not mirrored: there is no worker
    later = one.replica(f"{one.name}-later").name
    one.look()
    assert one.writable(later) == [False]
    assert one.kube.applied_names("Deployment") == [f"{one.name}-mirror"]
    # unless a worker still runs: then its new topics are promoted, too
    labels = selector(decode_as(MirrorMaker, one.manifest))
    metadata = {"namespace": "ns", "name": "last", "labels": labels}
    one.kube.put({"kind": "Pod", "metadata": metadata, "status": {}})
    one.look()
    assert one.writable(later) == [True]
    # even those created between that reconcile and its end
    last = one.replica(f"{one.name}-last").name
    del one.kube.objects["Pod", "last"]
    target, one.manifest["spec"]["target"] = one.manifest["spec"]["target"], {"bootstrap": NOWHERE}
    assert one.look()["replicas"] == 1, "the look did not succeed"
    one.manifest["spec"]["target"] = target
    assert one.look()["replicas"] == 0
    assert one.writable(last) == [True]
    after = one.replica(f"{one.name}-after").name
    one.look()
    assert one.writable(after) == [False], "there is no worker, and there was none"
    # once the request is removed, workers mirror again
    one.ask(None)
    one.look()
    assert one.kube.applied_names("Deployment") == [f"{one.name}-mirror"] * 2
    assert one.condition() is None


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("named", [False, True], ids=["all", "named"])
def test_a_promotion_survives_the_operator(world: NewWorld, after: bool, named: bool) -> None:
    """The operator dies before or after each of its writes in turn, and the next one takes over.

    Meanwhile producers write wherever they may. The recovery point is always the same.
    """
    deaths = 0
    while True:
        deaths += 1
        one = world()
        topics = [one.replica(f"{one.name}-{number}", [4, 2]).name for number in range(2)]
        one.ask("r", *(topics if named else ()))
        try:
            one.look(Life(deaths, after=after))
        except Died:
            pass
        else:
            break
        for name, free in zip(topics, one.writable(*topics), strict=True):
            if free:
                assert write(one, name) == 4
        status = one.look()
        assert one.writable(*topics) == [True, True]
        last = status["lastPromotion"]
        assert (last["state"], last["topicCount"], last["notMirrored"]) == ("Done", 2, 28), deaths
        assert [row["ends"] for row in last["topics"]] == [[4, 2], [4, 2]], deaths
        assert one.look()["lastPromotion"] == last
    assert deaths == 4, "the intent, the promotion, the end"


def test_a_topic_made_anew_since_the_request_began_is_another_one(world: NewWorld) -> None:
    one = world()
    kept, gone = one.replica(f"{one.name}-kept"), one.replica(f"{one.name}-gone")
    one.ask("r", kept.name, gone.name)
    with pytest.raises(Died):
        one.look(Life(1, after=True))
    assert one.admin.delete_topics([gone.name]) == {gone.name: None}
    one.replica(gone.name, source=gone.source)
    last = one.look()["lastPromotion"]
    assert one.writable(kept.name, gone.name) == [True, False]
    assert last["message"].startswith(f"1 topic promoted; deleted meanwhile: {gone.name}; at least 7 records")


def test_a_mirror_that_is_applied_again_says_that_its_topics_are_promoted(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    for topics in ((), (made.name,)):
        one.apply_again()
        one.ask("r", *topics)
        one.look()
        one.apply_again()
        last = one.look()["lastPromotion"]
        assert last["message"].startswith(f"promoted before: {made.name}; at least 7 records")
        assert one.condition() is not None


def test_a_refused_request_promotes_nothing(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    one.ask("r", made.name, "nothing")
    last = one.look()["lastPromotion"]
    assert one.writable(made.name) == [False]
    assert last["state"] == "Refused"
    found = one.condition() or ("", "", "")
    assert found[:2] == ("False", "PromotionRefused")
    assert found[2].startswith(
        "request r: there is no topic nothing in the target; this mirror's topics are "
    )
    assert one.look()["lastPromotion"] == last
    one.ask("s", made.name)
    one.look()
    assert one.writable(made.name) == [True]


def test_a_paused_mirror_promotes_nothing_until_it_is_resumed(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    one.ask("r")
    one.manifest["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    one.look()
    assert one.writable(made.name) == [False]
    assert (one.condition() or ())[:2] == ("False", "ReconcilePaused")
    del one.manifest["metadata"]["annotations"]
    one.look()
    assert one.writable(made.name) == [True]


def test_a_request_that_is_changed_after_its_end_changes_nothing(world: NewWorld) -> None:
    """Neither from some topics to all, nor back."""
    one = world()
    made, other = one.replica(f"{one.name}-1"), one.replica(f"{one.name}-2")
    one.ask("r", made.name)
    assert one.look()["lastPromotion"]["allTopics"] is False
    one.ask(None)
    one.look()
    one.ask("r")
    one.look()
    assert one.writable(made.name, other.name) == [True, False]
    assert one.kube.deleted == [], "the other is mirrored"
    assert (one.condition("Ready") or ())[1] != "Promoted"
    one.ask("s")
    assert one.look()["lastPromotion"]["allTopics"] is True
    assert one.writable(made.name, other.name) == [True, True]
    applied = one.kube.applied_names("Deployment")
    one.ask("s", made.name)
    one.look()
    assert one.kube.applied_names("Deployment") == applied
    assert (one.condition("Ready") or ())[:2] == ("True", "Promoted")


def test_a_mirror_closes_no_connections_of_another(world: NewWorld) -> None:
    one, other = world(), world()
    other.pool.close()
    other.pool = one.pool
    used = one.pool.of(Key("MirrorMaker", "ns", other.name)).at(other.target)
    assert used.cluster_id()
    client = used._client
    made = one.replica(f"{one.name}-1")
    one.ask("r", made.name)
    one.look()
    assert one.writable(made.name) == [True]
    assert client is not None
    assert used._client is client
    other.look()
    assert used._client is None, "its own look needs none"


def test_all_topics_are_promoted_when_none_rejoins(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    back = f"{one.name}-back"
    assert one.admin.create_topics([NewTopic(back, 2, 1, {})]) == {back: None}
    assert write(one, back) == 0
    change = one.admin.change_configs
    rejoins = {KEY: f"{made.setting}/rejoin", "millstream.mirror.rejoined": "1"}
    assert change({back: ConfigChange(rejoins, ())}) == {back: None}
    one.ask("all")
    assert "lastPromotion" not in one.look()
    assert one.writable(made.name, back) == [False, False]
    found = one.condition() or ("", "", "")
    assert found[:2] == ("False", "Promoting")
    assert found[2].startswith(
        f"request all: waits until these have rejoined their source: {back}; to give up"
    )
    assert one.kube.applied_names("Deployment") == [f"{one.name}-mirror"], "its workers go on"
    assert change({back: ConfigChange({KEY: made.setting}, ())}) == {back: None}
    last = one.look()["lastPromotion"]
    assert one.writable(made.name, back) == [True, True]
    assert (one.condition() or ())[:2] == ("True", "Promoted")
    # its records are older than the replica; nothing distinguishes its own producers' records from the others
    assert {row["topic"]: row["ends"] for row in last["topics"]} == {made.name: [3], back: [-1, 0]}
    assert last["message"].endswith("; where mirrored records end is not known of 1 partition")


def test_a_target_that_does_not_answer_is_waited_for(world: NewWorld) -> None:
    one = world()
    one.manifest["spec"]["target"] = {"bootstrap": NOWHERE}
    one.ask("r")
    status = one.look()
    assert "lastPromotion" not in status
    found = one.condition() or ("", "", "")
    assert found[:2] == ("False", "TargetUnreachable")
    assert found[2] == "request r: target: no broker answers at 127.0.0.1:1"


def test_a_source_whose_cluster_is_gone_is_not_needed(world: NewWorld) -> None:
    one = world(sources=[{"name": "west", "clusterRef": {"name": "west"}}])
    made, other = one.replica(f"{one.name}-1"), one.replica(f"{one.name}-2")
    one.look()
    assert (one.condition("Ready") or ())[:2] == ("False", "ClusterNotFound")
    one.ask("r", made.name)
    one.look()
    assert one.writable(made.name, other.name) == [True, False]
    assert (one.condition() or ())[:2] == ("True", "Promoted")
    assert (one.condition("Ready") or ())[:2] == ("False", "ClusterNotFound")
    one.ask("s")
    one.look()
    assert (one.condition("Ready") or ())[:2] == ("True", "Promoted")


def test_a_request_that_is_withdrawn_leaves_promoted_what_it_had_promoted(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    one.ask("r", made.name)
    with pytest.raises(Died):
        one.look(Life(2, after=True))
    one.ask(None)
    last = one.look()["lastPromotion"]
    assert (last["state"], one.writable(made.name)) == ("Cancelled", [True])
    assert one.condition() is None


@pytest.mark.parametrize("is_named", [True, False])
def test_a_request_that_is_withdrawn_and_made_again_goes_on(world: NewWorld, is_named: bool) -> None:
    """As when Git takes back an edit, and somebody repeats it."""
    one = world()
    made, other = one.replica(f"{one.name}-1"), one.replica(f"{one.name}-2")
    names = (made.name, other.name) if is_named else ()
    one.ask("r", *names)
    with pytest.raises(Died):
        one.look(Life(1, after=True))
    one.ask(None)
    assert one.look()["lastPromotion"]["state"] == "Cancelled"
    one.ask("r", *names)
    last = one.look()["lastPromotion"]
    assert (last["state"], one.writable(made.name, other.name)) == ("Done", [True, True])
    assert (one.condition() or ())[:2] == ("True", "Promoted")


def test_a_promotion_that_is_done_stays_so_while_the_mirror_is_paused(world: NewWorld) -> None:
    """Its workers are ending, and a replica that they make until then is promoted later."""
    one = world()
    made = one.replica(f"{one.name}-1")
    one.manifest["status"] = {"replicas": 1}
    one.ask("r")
    assert one.look()["lastPromotion"]["state"] == "Done"
    one.manifest["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    status = one.look()
    assert (one.condition() or ())[:2] == ("True", "Promoted")
    assert status["replicas"] == 1, "to be looked at again"
    del one.manifest["metadata"]["annotations"]
    assert one.look()["replicas"] == 0
    assert one.writable(made.name) == [True]


def test_a_target_that_is_a_forbidden_cluster_by_its_address_is_not_promoted(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    its_id = one.admin.cluster_id()
    owned = stored(cluster("owned", allowedNamespaces=["other"]))
    owned["metadata"]["namespace"] = "elsewhere"
    owned["status"] = {"clusterId": its_id}
    one.kube.put(owned)
    one.ask("r", made.name)
    one.look()
    assert one.writable(made.name) == [False]
    found = one.condition() or ("", "", "")
    assert found[:2] == ("False", "NamespaceNotAllowed")
    assert "target: Cluster owned in namespace elsewhere does not allow resources of namespace ns" in found[2]
    owned["spec"]["allowedNamespaces"] = ["ns"]
    one.kube.put(owned)
    one.look()
    assert one.writable(made.name) == [True]


def test_a_topic_promoted_by_hand_is_known(world: NewWorld) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    assert one.admin.change_configs({made.name: ConfigChange({}, (KEY,))}) == {made.name: None}
    one.ask("r", made.name)
    assert one.look()["lastPromotion"]["message"].startswith(f"promoted before: {made.name}; ")
