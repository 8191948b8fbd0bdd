"""Reconciles of Topics: requests to brokers, statuses, and the time of the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, group, topic
from millstream_operator.kafka.records import (
    AdminError,
    BrokersState,
    ConfigChange,
    NewTopic,
    PartitionReplicas,
    Reassignment,
    Refusal,
    StrayLog,
    TopicState,
)
from millstream_operator.models import Topic, decode_as
from millstream_operator.reconcile.topic.apply import reconcile_topics
from millstream_operator.state.status import FINALIZER

CLUSTER = stored(cluster("default"))
GROUPS = {"reader": ["flights"], "of-both": ["others", "flights"], "other": ["others"], "any": []}
PAUSED = {"annotations": {"millstream.dev/paused": "true"}}


def state(partitions: int = 1, replication: int = 1, behind: int = 0, **config: str) -> TopicState:
    return TopicState("id", partitions, replication, behind, config, 5)


def look(*topics: Mapping[str, Any], brokers: Mapping[str, Any], there: bool = True) -> InMemory:
    """Reconcile all of them once; ``brokers`` are responses by request. By default there are no strays."""
    found = in_memory(*([CLUSTER] if there else []), *topics, **{"strays": [], **brokers})
    seconds = reconcile_topics(found.services, [decode_as(Topic, one) for one in topics])
    assert len(seconds) == len(topics)
    found.again.update({key.name: each for key, each in seconds.items()})
    return found


def finalizers(found: InMemory, name: str = "flights") -> list[str]:
    kept: list[str] = found.kube.objects["Topic", name]["metadata"].get("finalizers", [])
    return kept


def appearing(**topics: TopicState) -> Any:
    """Topics that exist only from the second request on."""
    asked: list[Any] = []

    def answer(names: list[str]) -> dict[str, TopicState]:
        asked.append(names)
        return topics if len(asked) > 1 else {}

    return answer


def test_the_replica_of_a_mirror_says_so_and_keeps_its_settings() -> None:
    wanted = stored(topic("flights", config={"retention.ms": "1"}))
    mirrored = state(2, **{"millstream.mirror.source": "CLUSTER/TOPIC", "retention.ms": "2"})
    found = look(wanted, brokers={"topics": {"flights": mirrored}})
    words = (
        "2 partitions, a read-only replica: its source decides partitions and configuration until a promotion"
    )
    assert found.condition("Topic", "flights") == ("True", "ReadOnlyReplica", words)
    assert not found.status("Topic", "flights").get("configKeys")
    assert [request for request, *_ in found.brokers.asked] == ["topics"]


def test_a_new_topic_wakes_the_groups_that_list_it() -> None:
    readers = [stored(group(name, topics=topics)) for name, topics in GROUPS.items()]
    answers = {"topics": appearing(flights=state()), "strays": [], "create_topics": {"flights": None}}
    found = in_memory(CLUSTER, *readers, **answers)
    found.services.store.take_woken()
    reconcile_topics(found.services, [decode_as(Topic, stored(topic("flights")))])
    woken = {key.name for key in found.services.store.take_woken() if key.kind == "ConsumerGroup"}
    assert woken == {"reader", "of-both"}


def test_a_key_is_noted_before_it_is_set_and_stays_noted_whatever_else_is_refused() -> None:
    wanted = stored(topic("flights", partitions=3, config={"retention.ms": "1"}))
    noted: list[Any] = []

    def changed(changes: Mapping[str, ConfigChange]) -> dict[str, None]:
        noted.append(found.status("Topic", "flights")["configKeys"])
        return dict.fromkeys(changes)

    found = in_memory(
        CLUSTER,
        wanted,
        topics={"flights": state(2)},
        strays=[],
        change_configs=changed,
        add_partitions={"flights": Refusal("POLICY_VIOLATION", "no")},
    )
    reconcile_topics(found.services, [decode_as(Topic, wanted)])
    assert noted == [["retention.ms"]]
    shown = found.kube.objects["Topic", "flights"]
    assert shown["status"]["configKeys"] == ["retention.ms"]
    # both changes are undone: the key is reset
    back = stored(topic("flights"), shown["status"], generation=3)
    asked = look(
        back, brokers={"topics": {"flights": state(2, **{"retention.ms": "1"})}, "change_configs": {}}
    )
    assert asked.brokers.requests("change_configs") == [{"flights": ConfigChange({}, ("retention.ms",))}]


def test_a_topic_is_created_and_then_shown() -> None:
    wanted = stored(topic("flights", partitions=2, config={"retention.ms": "1", "cleanup.policy": "compact"}))
    made = state(2)
    found = look(wanted, brokers={"topics": appearing(flights=made), "create_topics": {"flights": None}})
    config = {"retention.ms": "1", "cleanup.policy": "compact"}
    assert found.brokers.requests("create_topics") == [[NewTopic("flights", 2, None, config)]]
    assert found.brokers.requests("topics") == [["flights"], ["flights"]]
    shown = found.status("Topic", "flights")
    assert {key: value for key, value in shown.items() if key != "conditions"} == {
        "observedGeneration": 2,
        "topicId": "id",
        "partitions": 2,
        "replicationFactor": 1,
        "underReplicated": 0,
        "sizeBytes": 5,
        "configKeys": ["cleanup.policy", "retention.ms"],
    }
    assert found.condition("Topic", "flights") == ("True", "TopicReady", "2 partitions")
    assert found.again["flights"] == 60


def owned(owner: str | None, **config: str) -> TopicState:
    return replace(state(**config), owner=owner)


def test_a_topic_names_its_resource() -> None:
    wanted = stored(topic("flights"))
    claim = {"flights": ConfigChange({"millstream.topic.owner": "ns/flights"}, ())}
    made = {"topics": appearing(flights=owned("")), "create_topics": {"flights": None}}
    refused = {"flights": Refusal("POLICY_VIOLATION", "no")}
    new = look(wanted, brokers={**made, "change_configs": refused})
    assert new.brokers.requests("change_configs") == [claim]
    assert new.condition("Topic", "flights") == ("True", "TopicReady", "1 partition"), (
        "a name changes nothing"
    )
    adopted = look(wanted, brokers={"topics": {"flights": owned("other/flights")}, "change_configs": {}})
    assert adopted.brokers.requests("change_configs") == [claim]


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(owned("ns/flights"), id="its own already"),
        pytest.param(owned(None), id="brokers without the setting"),
        pytest.param(owned("", **{"millstream.mirror.source": "CLUSTER/TOPIC"}), id="a mirror's replica"),
    ],
)
def test_a_topic_is_not_named_again(there: TopicState) -> None:
    found = look(stored(topic("flights")), brokers={"topics": {"flights": there}})
    assert [request for request, *_ in found.brokers.asked] == ["topics"]


def test_a_topic_that_brokers_do_not_show_yet_is_looked_at_soon() -> None:
    found = look(stored(topic("flights")), brokers={"topics": {}, "create_topics": {"flights": None}})
    assert found.condition("Topic", "flights") == ("False", "ClusterNotReady", "the topic is being created")
    assert found.again["flights"] == 1


def test_topics_of_a_cluster_cost_one_request_of_a_kind() -> None:
    wanted = [stored(topic(name, partitions=2, config={"retention.ms": "1"})) for name in ("a", "b", "c")]
    as_wanted = state(2, **{"retention.ms": "1"})
    found = look(*wanted, brokers={"topics": dict.fromkeys("abc", as_wanted)})
    assert found.brokers.asked == [("topics", ["a", "b", "c"])]


def test_only_topics_that_changed_are_asked_about_again() -> None:
    there = {"a": state(1), "b": state(2)}
    found = look(
        *(stored(topic(name, partitions=2)) for name in there),
        brokers={
            "topics": lambda names: {name: there[name] for name in names},
            "strays": [],
            "add_partitions": lambda totals: dict.fromkeys(totals),
        },
    )
    assert found.brokers.asked == [
        ("topics", ["a", "b"]),
        ("strays",),
        ("add_partitions", {"a": 2}),
        ("topics", ["a"]),
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("INVALID_CONFIG", "InvalidConfig"),
        ("INVALID_REPLICATION_FACTOR", "InvalidReplicationFactor"),
        ("INVALID_TOPIC_EXCEPTION", "InvalidTopic"),
        ("POLICY_VIOLATION", "Refused"),
    ],
)
def test_a_topic_that_brokers_refuse_says_why(error: str, reason: str) -> None:
    refused = {"flights": Refusal(error, "not like this")}
    found = look(stored(topic("flights")), brokers={"topics": {}, "create_topics": refused})
    assert found.condition("Topic", "flights") == ("False", reason, "not like this")
    assert found.again["flights"] == 30


def test_a_refused_configuration_leaves_what_is_to_be_reset() -> None:
    wanted = topic("flights", partitions=2, config={"retention.ms": "x"})
    found = look(
        stored(wanted, {"configKeys": ["segment.ms"]}),
        brokers={
            "topics": {"flights": state(1, **{"segment.ms": "9"})},
            "strays": [],
            "change_configs": {"flights": Refusal("INVALID_CONFIG", "x is no number")},
            "add_partitions": {"flights": None},
        },
    )
    change = ConfigChange({"retention.ms": "x"}, ("segment.ms",))
    assert found.brokers.requests("change_configs") == [{"flights": change}]
    assert found.condition("Topic", "flights") == ("False", "InvalidConfig", "x is no number")
    assert found.status("Topic", "flights")["configKeys"] == ["retention.ms", "segment.ms"]
    assert found.again["flights"] == 30


def test_partitions_that_brokers_refuse_are_said() -> None:
    found = look(
        stored(topic("flights", partitions=2)),
        brokers={
            "topics": {"flights": state(1)},
            "strays": [],
            "add_partitions": {"flights": Refusal("INVALID_PARTITIONS", "too many")},
        },
    )
    assert found.condition("Topic", "flights") == ("False", "PartitionDecreaseRefused", "too many")


def test_what_cannot_be_is_looked_at_again_later() -> None:
    found = look(stored(topic("flights", partitions=1)), brokers={"topics": {"flights": state(3)}})
    status, reason, _ = found.condition("Topic", "flights") or ("", "", "")
    assert (status, reason, found.again["flights"]) == ("False", "PartitionDecreaseRefused", 30)
    assert found.status("Topic", "flights")["partitions"] == 3


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (state(1), "1 partition"),
        (state(1, behind=1), "1 partition, 1 of them under-replicated"),
        (state(2), "2 partitions"),
        (state(2, behind=2), "2 partitions, 2 of them under-replicated"),
    ],
)
def test_a_ready_topic_says_how_it_is(there: TopicState, words: str) -> None:
    found = look(
        stored(topic("flights", partitions=there.partitions)), brokers={"topics": {"flights": there}}
    )
    assert found.condition("Topic", "flights") == ("True", "TopicReady", words)


def test_brokers_that_do_not_answer_are_asked_again_soon() -> None:
    found = look(*map(stored, (topic("a"), topic("b"))), brokers={"topics": AdminError("nobody listens")})
    for name in "ab":
        assert found.condition("Topic", name) == ("False", "ClusterNotReady", "nobody listens")
        assert found.again[name] == 5


def test_without_its_cluster_a_topic_says_so() -> None:
    found = look(stored(topic("flights")), brokers={}, there=False)
    assert found.condition("Topic", "flights") == (
        "False",
        "ClusterNotFound",
        "there is no Cluster default in namespace ns",
    )
    assert found.again["flights"] == 30


def test_without_its_cluster_a_deleted_topic_is_let_go() -> None:
    found = look(stored(topic("flights", deletionPolicy="Delete"), **deleted(1)), brokers={}, there=False)
    assert finalizers(found) == []
    words = "topic flights is not deleted: there is no Cluster default in namespace ns"
    assert found.kube.events == [("Warning", "DeletionSkipped", words)]
    assert found.again["flights"] == 30


def going(**more: Any) -> dict[str, Any]:
    """The Cluster while it is being deleted."""
    return stored(cluster("default", **more), deletionTimestamp="2026-01-01T00:00:00Z")


def test_a_cluster_that_is_being_deleted_deletes_its_topics_as_long_as_it_is_there() -> None:
    wanted = stored(topic("flights", deletionPolicy="Delete"), **deleted(1))
    for answer, held, seconds in (({"flights": None}, [], 30), (AdminError("not here"), [FINALIZER], 5)):
        found = in_memory(going(), wanted, delete_topics=answer)
        again = reconcile_topics(found.services, [decode_as(Topic, wanted)])
        assert found.brokers.requests("delete_topics") == [{"flights": None}]
        assert finalizers(found) == held
        assert list(again.values()) == [seconds]


def test_a_topic_that_is_wanted_does_not_use_a_cluster_that_is_being_deleted() -> None:
    wanted = stored(topic("flights"))
    found = in_memory(going(), wanted)
    reconcile_topics(found.services, [decode_as(Topic, wanted)])
    assert (found.condition("Topic", "flights") or ())[1] == "ClusterNotFound"
    assert found.brokers.asked == []


def test_what_a_namespace_without_rights_leaves_behind_is_told_on_the_cluster() -> None:
    reference = {"name": "default", "namespace": "other"}
    wanted = stored(topic("flights", clusterRef=reference, deletionPolicy="Delete"), **deleted(1))
    there = stored(cluster("default"), namespace="other")
    found = in_memory(there, wanted)
    reconcile_topics(found.services, [decode_as(Topic, wanted)])
    assert finalizers(found) == []
    assert found.brokers.asked == []
    (on_topic, on_cluster) = found.kube.events
    assert on_topic[1:] == ("DeletionSkipped", on_topic.message)
    assert on_topic.message.startswith(
        "topic flights is not deleted: Cluster default in namespace other does not"
    )
    assert on_cluster.message == f"Topic flights of namespace ns is deleted; {on_topic.message}"


def test_of_two_topics_of_one_name_the_older_has_it() -> None:
    older = stored(topic("old", topicName="flights"))
    younger = stored(topic("new", topicName="flights"), creationTimestamp="2026-02-01T00:00:00Z")
    found = look(younger, older, brokers={"topics": {"flights": state()}})
    assert found.brokers.asked == [("topics", ["flights"])]
    assert found.condition("Topic", "old") == ("True", "TopicReady", "1 partition")
    assert found.condition("Topic", "new") == (
        "False",
        "ConflictingTopic",
        "topic flights of Cluster default belongs to the older Topic old in namespace ns: delete this Topic, or create"
        " it with another topicName",
    )
    assert found.again == {"old": 60, "new": 30}


def test_a_deleted_topic_that_never_had_its_name_deletes_nothing() -> None:
    older = stored(topic("old", topicName="flights"))
    younger = stored(
        topic("new", topicName="flights", deletionPolicy="Delete"),
        **deleted(1, creationTimestamp="2026-02-01T00:00:00Z"),
    )
    found = look(younger, older, brokers={"topics": {"flights": state()}})
    assert finalizers(found, "new") == []


def test_only_a_topic_to_be_deleted_with_its_resource_holds_the_resource() -> None:
    kept, doomed = stored(topic("kept")), stored(topic("doomed", deletionPolicy="Delete"))
    found = look(kept, doomed, brokers={"topics": {"kept": state(), "doomed": state()}})
    assert (finalizers(found, "kept"), finalizers(found, "doomed")) == ([], [FINALIZER])


def test_deleted_resources_take_the_topics_along_that_they_are_to_delete() -> None:
    found = look(
        stored(topic("doomed", deletionPolicy="Delete"), **deleted(1)),
        stored(topic("retained"), **deleted(1)),
        stored(topic("never-held", deletionPolicy="Delete"), **deleted(1, finalizers=[])),
        stored(topic("wanted")),
        brokers={"delete_topics": {"doomed": None}, "topics": {"wanted": state()}},
    )
    assert found.brokers.requests("delete_topics") == [{"doomed": None}]
    assert found.brokers.requests("topics") == [["wanted"]]
    assert (finalizers(found, "doomed"), finalizers(found, "retained")) == ([], [])
    assert found.again == {"doomed": 30, "retained": 30, "never-held": 30, "wanted": 60}


def test_a_deletion_policy_of_retain_asks_brokers_nothing() -> None:
    assert look(stored(topic("flights"), **deleted(1)), brokers={}).brokers.asked == []


WAITS = (
    "waiting to delete topic flights: not here; set annotation millstream.dev/skip-deletion=true to give up"
)


@pytest.mark.parametrize(
    "answer",
    [{"flights": Refusal("TOPIC_DELETION_DISABLED", "not here")}, AdminError("not here")],
    ids=["refused", "no answer"],
)
@pytest.mark.parametrize("seconds", [1, 100_000])
def test_a_topic_that_is_not_deleted_holds_its_resource_and_says_so_once(answer: Any, seconds: float) -> None:
    wanted = stored(topic("flights", deletionPolicy="Delete"), **deleted(seconds))
    found = look(wanted, brokers={"delete_topics": answer})
    assert finalizers(found) == [FINALIZER]
    assert found.condition("Topic", "flights") == ("False", "Deleting", WAITS)
    assert found.kube.events == [("Warning", "WaitingForDeletion", WAITS)]
    assert found.again["flights"] == 5
    again = look(found.kube.objects["Topic", "flights"], brokers={"delete_topics": answer})
    assert (finalizers(again), again.kube.events) == ([FINALIZER], [])


def test_a_user_gives_up_a_deletion_by_an_annotation() -> None:
    skip = {"annotations": {"millstream.dev/skip-deletion": "true"}}
    found = look(stored(topic("flights", deletionPolicy="Delete"), **deleted(1, **skip)), brokers={})
    assert finalizers(found) == []
    words = "topic flights is not deleted: annotation millstream.dev/skip-deletion"
    assert found.kube.events == [
        ("Warning", "DeletionSkipped", words),
        ("Warning", "DeletionSkipped", f"Topic flights of namespace ns is deleted; {words}"),
    ]
    assert found.again["flights"] == 30


def test_a_cluster_that_cannot_be_understood_is_no_reason_to_keep_a_topic() -> None:
    wanted = stored(topic("flights", deletionPolicy="Delete"), **deleted(1))
    found = in_memory({**CLUSTER, "spec": {"brokers": "many"}}, wanted)
    reconcile_topics(found.services, [decode_as(Topic, wanted)])
    assert finalizers(found) == [FINALIZER]
    assert (found.condition("Topic", "flights") or ())[1] == "Deleting"


def test_deleting_a_topic_that_is_gone_already_lets_the_resource_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = {"flights": Refusal("UNKNOWN_TOPIC_OR_PARTITION", "no such topic")}
    wanted = stored(topic("flights", deletionPolicy="Delete"), **deleted(1))
    assert finalizers(look(wanted, brokers={"delete_topics": gone})) == []
    assert caplog.messages == []


@pytest.mark.parametrize("there", [{"flights": state()}, {}], ids=["another one", "none"])
def test_resource_whose_topic_was_created_again_deletes_only_its_own(there: dict[str, TopicState]) -> None:
    """Such as one that is restored from a copy of the time when it was being deleted."""
    wanted = {
        **stored(topic("flights", deletionPolicy="Delete"), **deleted(1)),
        "status": {"topicId": KNOWN_ID, "partitions": 3},
    }
    unknown = Refusal("UNKNOWN_TOPIC_ID", "no topic has this id")
    found = look(wanted, brokers={"delete_topics": {"flights": unknown}, "topics": there})
    assert found.brokers.requests("delete_topics") == [{"flights": KNOWN_ID}]
    assert finalizers(found) == []
    said = f"topic flights is not deleted: this resource's had the id {KNOWN_ID}, and the one of this name has id"
    assert [event.message for event in found.kube.events[:1]] == ([said] if there else [])


def test_one_topic_that_is_not_deleted_does_not_hold_the_others() -> None:
    no = Refusal("CLUSTER_AUTHORIZATION_FAILED", "no")
    names = ("a", "b", "c")
    found = look(
        *(stored(topic(name, deletionPolicy="Delete"), **deleted(1)) for name in names),
        brokers={"delete_topics": {"a": None, "b": no, "c": None}},
    )
    assert [finalizers(found, name) for name in names] == [[], [FINALIZER], []]


def test_a_paused_topic_is_looked_at_and_not_changed() -> None:
    wanted = stored(topic("flights", config={"retention.ms": "1"}), {"configKeys": ["segment.ms"]}, **PAUSED)
    found = look(wanted, brokers={"topics": {"flights": state()}})
    assert found.brokers.asked == [("topics", ["flights"])]
    assert found.condition("Topic", "flights", "Paused") == (
        "True",
        "ReconcilePaused",
        "paused by annotation millstream.dev/paused; remove it to resume",
    )
    assert found.status("Topic", "flights")["configKeys"] == ["segment.ms"]


def test_a_paused_topic_is_not_created() -> None:
    found = look(stored(topic("flights"), **PAUSED), brokers={"topics": {}})
    _, reason, message = found.condition("Topic", "flights") or ("", "", "")
    assert reason == "ReconcilePaused"
    assert message.startswith("there is no such topic, and none is created: paused by annotation")
    assert found.again["flights"] == 30


def test_a_topic_with_more_replicas_and_partitions_than_a_default_is_adopted_as_it_is() -> None:
    found = look(stored(topic("flights")), brokers={"topics": {"flights": state(6, 3)}})
    assert found.brokers.asked == [("topics", ["flights"])]
    shown = found.status("Topic", "flights")
    assert (shown["partitions"], shown["replicationFactor"]) == (6, 3)
    assert found.condition("Topic", "flights") == ("True", "TopicReady", "6 partitions")


def test_replicas_on_the_move_are_followed_closely() -> None:
    found = look(
        stored(topic("flights", replicationFactor=2)),
        brokers={
            "topics": {"flights": state()},
            "brokers": BrokersState({0: None, 1: None}, 0),
            "replicas": [PartitionReplicas("flights", 0, (0, 1), (0,))],
            "reassigning": {("flights", 0): Reassignment((1,), ())},
        },
    )
    words = "1 of 1 partitions are being reassigned, 1 replica to be copied"
    assert found.condition("Topic", "flights", "Rebalancing") == ("True", "Reassigning", words)
    assert found.again["flights"] == 5


def test_replicas_that_are_added_do_not_count_until_they_have_taken_over() -> None:
    found = look(
        stored(topic("flights", replicationFactor=2), {"replicationFactor": 2}),
        brokers={
            "topics": {"flights": state(1, 3)},
            "brokers": BrokersState({0: None, 1: None, 2: None}, 0),
            "replicas": [PartitionReplicas("flights", 0, (0, 1, 2), (0, 1))],
            "reassigning": {("flights", 0): Reassignment((2,), (1,))},
        },
    )
    assert (found.condition("Topic", "flights", "Rebalancing") or ())[:2] == ("True", "Reassigning")
    assert found.status("Topic", "flights")["replicationFactor"] == 2


def test_conditions_that_no_longer_hold_go() -> None:
    stale = [
        {
            "type": kind,
            "status": "True",
            "reason": "Old",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Paused", "Rebalancing", "Warning")
    ]
    found = look(
        stored(topic("flights", config={"min.insync.replicas": "2"}), {"conditions": stale}),
        brokers={
            "topics": {"flights": state(1, 1, **{"min.insync.replicas": "2"})},
            "brokers": BrokersState({0: None}, 0),
            "replicas": [PartitionReplicas("flights", 0, (0,), (0,))],
            "reassigning": {},
        },
    )
    kinds = [one["type"] for one in found.status("Topic", "flights")["conditions"]]
    assert kinds == ["Ready", "Warning"]
    assert (found.condition("Topic", "flights", "Warning") or ())[:2] == ("True", "MinimumIsr")


KNOWN_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
REPLACED = (
    f"the topic was deleted and created again: its id was {KNOWN_ID}, and is id; the former records are not in it."
    " This warning stays until spec changes"
)


def known(**status: Any) -> dict[str, Any]:
    """A Topic whose topic has been created before."""
    return {**stored(topic("flights")), "status": {"topicId": KNOWN_ID, "partitions": 3, **status}}


def test_a_topic_that_brokers_keep_as_strays_is_not_created_again() -> None:
    found = look(
        known(), brokers={"topics": {}, "strays": [StrayLog(0, KNOWN_ID, 5), StrayLog(1, KNOWN_ID, 5)]}
    )
    assert not found.brokers.requests("create_topics")
    status, reason, words = found.condition("Topic", "flights") or ("", "", "")
    assert (status, reason) == ("False", "StrayLogs")
    assert "brokers 0, 1 still have its records" in words
    assert found.status("Topic", "flights")["topicId"] == KNOWN_ID


def test_a_topic_that_lost_partitions_gets_no_empty_ones() -> None:
    found = look(
        stored(topic("flights", partitions=3)),
        brokers={
            "topics": {"flights": state()},
            "strays": [StrayLog(0, "id", 5, 2), StrayLog(0, "id", 5, 0), StrayLog(1, "another", 5, 1)],
        },
    )
    assert not found.brokers.requests("add_partitions")
    status, reason, words = found.condition("Topic", "flights") or ("", "", "")
    assert (status, reason) == ("False", "StrayLogs")
    assert "lost partition 2 of topic flights, and broker 0 still has the records" in words


def test_a_topic_that_was_deleted_is_created_again() -> None:
    found = look(
        known(),
        brokers={
            "topics": appearing(flights=state()),
            "strays": [StrayLog(0, "another", 5)],
            "create_topics": {"flights": None},
        },
    )
    assert found.brokers.requests("create_topics")
    assert found.condition("Topic", "flights", "Warning") == ("True", "TopicReplaced", REPLACED)
    assert found.status("Topic", "flights")["topicId"] == "id"


@pytest.mark.parametrize("name", ["flights", "f" * 249])
def test_topic_whose_status_was_lost_is_not_created_while_brokers_keep_strays_of_its_name(name: str) -> None:
    """The resource comes from Git or a backup without statuses, and ZooKeeper from an older copy."""
    kept = name[:198]  # of 200 characters, with the partition, in a folder's name
    found = look(
        stored(topic("flights", topicName=name)),
        brokers={
            "topics": {},
            "strays": [StrayLog(2, KNOWN_ID, 5, 0, kept), StrayLog(1, "other", 5, 0, "f")],
        },
    )
    assert not found.brokers.requests("create_topics")
    status, reason, words = found.condition("Topic", "flights") or ("", "", "")
    assert (status, reason) == ("False", "StrayLogs")
    assert f"lost topic {name}, and broker 2 still has its records" in words


@pytest.mark.parametrize("others", ["flight", "flights-1", "f" * 198])
def test_strays_of_other_names_hold_up_no_new_topic(others: str) -> None:
    answers = {"topics": appearing(flights=state()), "create_topics": {"flights": None}}
    found = look(
        stored(topic("flights")), brokers={**answers, "strays": [StrayLog(0, KNOWN_ID, 5, 0, others)]}
    )
    assert found.brokers.requests("create_topics")


def test_brokers_are_asked_for_strays_only_when_a_topic_is_absent_or_grows() -> None:
    there = {"replicas": [PartitionReplicas("flights", 0, (0,), (0,))], "reassigning": {}}
    found = look(known(), brokers={"topics": {"flights": state()}, **there})
    assert not found.brokers.requests("strays")


def test_a_topic_that_is_another_one_says_so_until_its_spec_changes() -> None:
    found = look(known(), brokers={"topics": {"flights": state()}})
    assert found.condition("Topic", "flights", "Warning") == ("True", "TopicReplaced", REPLACED)
    assert found.condition("Topic", "flights") == ("True", "TopicReady", "1 partition")
    before = found.kube.objects["Topic", "flights"]
    again = look(before, brokers={"topics": {"flights": state()}})
    assert again.condition("Topic", "flights", "Warning") == ("True", "TopicReplaced", REPLACED)
    changed = again.kube.objects["Topic", "flights"]
    changed["metadata"]["generation"] = changed["metadata"].get("generation", 1) + 1
    last = look(changed, brokers={"topics": {"flights": state()}})
    assert last.condition("Topic", "flights", "Warning") is None
