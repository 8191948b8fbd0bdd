"""Each topic is promoted once, whatever ends between two steps.

The operator is its own code with a real broker; replicas are created as workers create them. Real workers:
tests/mirror/identity/test_mirror_promotion.py. What a request promotes: test_promotion_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_harness.in_memory import stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.manifests import cluster
from millstream_harness.mirrored import Source
from millstream_harness.mortal import Died, Life
from millstream_harness.promoting import NOWHERE, World
from millstream_harness.scenario import unique
from millstream_kafka.mirror_source import REJOINED
from millstream_operator.kafka.mirror_records import KEY
from millstream_operator.kafka.records import ConfigChange, NewTopic
from millstream_operator.models import MirrorMaker, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.resources.mirror import selector

pytestmark = pytest.mark.process

NewWorld = Callable[..., World]


@pytest.fixture
def world(shared_broker: InProcessBroker) -> Iterator[NewWorld]:
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
    assert one.admin.delete_topics({gone.name: None}) == {gone.name: None}
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


@pytest.mark.parametrize("named", [False, True], ids=["all", "named"])
def test_request_is_not_repeated_after_a_failback_and_a_lost_status(world: NewWorld, named: bool) -> None:
    one = world()
    made = one.replica(f"{one.name}-1")
    topics = (made.name,) if named else ()
    one.ask("r", *topics)
    one.look()
    assert one.topic(made.name).promoted == ("r",)
    for setting in (f"{made.setting}/rejoin", made.setting):
        change = ConfigChange({KEY: setting, REJOINED: "back"}, ())
        assert one.admin.change_configs({made.name: change}) == {made.name: None}
    new = one.replica(f"{one.name}-new").name
    one.apply_again()
    one.ask("r", *topics)
    assert one.look()["lastPromotion"]["state"] == "Refused"
    assert one.writable(made.name, new) == [False, False]
    found = one.condition() or ("", "", "")
    assert found[:2] == ("False", "PromotionRefused")
    assert found[2].startswith(f"request r: this request has promoted {made.name} before")
    assert one.kube.applied_names("Deployment")[-1:] == [f"{one.name}-mirror"], "it is mirrored"
    one.ask("s", *topics)
    one.look()
    assert one.topic(made.name).promoted == ("s", "r")
    assert one.writable(made.name) == [True]


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
