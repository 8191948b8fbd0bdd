"""The queue: one worker per group, the earliest time wins, nothing is lost; and the store that feeds it."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_operator.manager.workqueue import WorkQueue
from millstream_operator.models.keys import ClusterKey, Key
from millstream_operator.state.cache import Store

A, B, C = (Key("Topic", "ns", name) for name in "abc")


def test_a_group_is_taken_together_and_by_one_worker() -> None:
    queue = WorkQueue()
    queue.add(A, "g", 1.0)
    queue.add(B, "g", 2.0)
    queue.add(C, "other", 2.0)
    assert queue.take(0.9, 10) is None
    batch = queue.take(2.0, 10)
    assert batch is not None
    assert batch.keys == (A, B)
    queue.add(A, "g", 2.0)  # changed while a worker has it
    second = queue.take(2.0, 10)
    assert second is not None
    assert second.keys == (C,)
    assert queue.take(9.0, 10) is None
    queue.done(batch)
    again = queue.take(9.0, 10)
    assert again is not None
    assert again.keys == (A,)


def test_the_earliest_time_wins() -> None:
    queue = WorkQueue()
    queue.add(A, "g", 60.0)
    queue.add(A, "g", 1.0)
    queue.add(A, "g", 30.0)
    assert queue.next_at() == 1.0
    batch = queue.take(1.0, 10)
    assert batch is not None
    queue.done(batch)
    assert queue.take(100.0, 10) is None
    assert len(queue) == 0


def test_keys_of_one_interval_stay_together() -> None:
    """Each key is due about every ten seconds: in time, any number of keys makes at most four batches an interval."""
    queue, random, now, batches = WorkQueue(), Random(1), 0.0, []
    keys = [Key("Topic", "ns", str(number)) for number in range(500)]
    for key in keys:
        queue.add(key, "g", random.uniform(0, 10))
    while now < 100:
        now = queue.next_at() or now
        if (batch := queue.take(now, 500, early=2.5)) is None:
            continue
        batches.append((now, len(batch.keys)))
        for key in batch.keys:
            queue.add(key, "g", now + 10 * random.uniform(0.9, 1.1))
        queue.done(batch)
    late = [size for at, size in batches if at > 50]
    assert len(late) <= 4 * 6


def test_nothing_is_taken_before_something_is_due() -> None:
    queue = WorkQueue()
    queue.add(A, "g", 5.0)
    assert queue.take(3.0, 10, early=2.5) is None
    assert queue.next_at() == 5.0


def test_a_limit_goes_by_group() -> None:
    queue = WorkQueue()
    for key in (A, B, C):
        queue.add(key, "g", 1.0)
    batch = queue.take(1.0, lambda group: 2 if group == "g" else 0)
    assert batch is not None
    assert batch.keys == (A, B)


def test_one_that_failed_goes_alone() -> None:
    queue = WorkQueue()
    queue.add(A, "g", 1.0, alone=True)
    queue.add(B, "g", 1.0)
    queue.add(C, "g", 1.0)
    taken = []
    for _ in range(2):
        batch = queue.take(2.0, 10)
        assert batch is not None
        taken.append(batch.keys)
        queue.done(batch)
    assert sorted(taken) == [(A,), (B, C)]


def test_forgotten_and_moved_keys() -> None:
    queue = WorkQueue()
    queue.add(A, "g", 1.0)
    queue.add(B, "g", 5.0)
    queue.forget(A)
    assert queue.take(2.0, 10) is None
    queue.add(B, "h", 6.0)
    assert queue.take(5.5, 10) is None
    batch = queue.take(6.0, 10)
    assert batch is not None
    assert (batch.group, batch.keys) == ("h", (B,))


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.sampled_from("gh"),
            st.floats(0, 20),
            st.sampled_from(["add", "take", "forget"]),
        ),
        max_size=40,
    )
)
def test_whatever_is_added_is_taken(steps: list[tuple[Key, str, float, str]]) -> None:
    """Against a model: every key that was added, and neither taken nor forgotten, comes out at the end."""
    queue, waiting, busy = WorkQueue(), set[Key](), []
    for key, group, at, step in steps:
        if step == "add":
            queue.add(key, group, at)
            waiting.add(key)
        elif step == "forget":
            queue.forget(key)
            waiting.discard(key)
        elif batch := queue.take(at, 2):
            assert batch.group not in [other.group for other in busy]
            waiting.difference_update(batch.keys)
            busy.append(batch)
    assert len(queue) == len(waiting)
    for batch in busy:
        queue.done(batch)
    taken = set[Key]()
    while batch := queue.take(1000.0, 2):
        taken.update(batch.keys)
        queue.done(batch)
    assert taken == waiting


# The store -------------------------------------------------------------------------------------------------------


def topic(name: str, version: int = 1, generation: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "generation": generation,
        "resourceVersion": str(version),
        "creationTimestamp": f"2026-01-01T00:00:0{len(name)}Z",
    }
    return {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "Topic",
        "metadata": metadata,
        "spec": {"clusterRef": {"name": "default"}, **spec},
    }


def cluster(ready: str | None = None, version: int = 1) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": ready}]} if ready else {}
    metadata = {"name": "default", "namespace": "ns", "uid": "c", "resourceVersion": str(version)}
    return {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": metadata,
        "status": status,
    }


def test_a_status_write_wakes_nobody_and_a_new_spec_does() -> None:
    store = Store()
    assert store.put(topic("a")).needs_reconcile
    assert not store.put({**topic("a", 2), "status": {"partitions": 3}}).needs_reconcile
    assert store.put(topic("a", 3, generation=2)).needs_reconcile


def test_a_status_that_somebody_else_wrote_wakes_its_resource() -> None:
    """`kubectl patch --subresource=status`, or a tool that restores it from a backup."""
    store = Store()
    operator = {"manager": "millstream-operator", "operation": "Apply", "subresource": "status"}
    kubectl = {"manager": "kubectl-patch", "operation": "Update", "subresource": "status"}
    written = topic("a", 2)
    written["metadata"]["managedFields"] = [{**operator, "time": "2026-01-01T00:00:01Z"}]
    restored = topic("a", 3)
    restored["metadata"]["managedFields"] = [
        {**operator, "time": "2026-01-01T00:00:01Z"},
        {**kubectl, "time": "2026-01-01T00:00:02Z"},
    ]
    again = topic("a", 4)
    again["metadata"]["managedFields"] = [{**kubectl, "time": "2026-01-01T00:00:03Z"}]
    edited = topic("a", 5)
    edited["metadata"]["managedFields"] = [*again["metadata"]["managedFields"], {"manager": "kubectl-edit"}]
    store.put(topic("a", 1))
    woken = [store.put(manifest).needs_reconcile for manifest in (written, restored, again, edited)]
    assert woken == [False, True, True, False]


def test_an_older_version_changes_nothing() -> None:
    store = Store()
    store.put(topic("a", 5, partitions=5))
    store.put(topic("a", 4, partitions=4))
    raw = store.raw(Key("Topic", "ns", "a"))
    assert raw is not None
    assert raw["spec"]["partitions"] == 5


def test_a_cluster_wakes_those_that_refer_to_it() -> None:
    store = Store()
    store.put(topic("a"))
    elsewhere = topic("b")
    elsewhere["metadata"]["namespace"] = "other"
    elsewhere["spec"]["clusterRef"]["namespace"] = "ns"
    store.put(elsewhere)
    both = {Key("Topic", "ns", "a"), Key("Topic", "other", "b")}
    assert store.put(cluster()).others == both
    assert store.put(cluster(version=2)).others == frozenset()
    assert store.put(cluster("True", 3)).others == both
    store.put_written(cluster("False", 4))
    assert store.take_woken() == both
    assert store.take_woken() == set()
    assert store.remove(Key("Cluster", "ns", "default"), "c").others == both


def test_claims_are_oldest_first_and_a_free_name_wakes_the_rival() -> None:
    store = Store()
    store.put(topic("bb", topicName="same"))
    assert store.put(topic("a", topicName="same")).others == {Key("Topic", "ns", "bb")}
    where = ClusterKey("ns", "default")
    assert [claim.key.name for claim in store.claims("Topic", where, "same")] == ["a", "bb"]
    assert store.remove(Key("Topic", "ns", "a"), "uid-a").others == {Key("Topic", "ns", "bb")}
    assert [claim.key.name for claim in store.claims("Topic", where, "same")] == ["bb"]


def test_a_claim_that_arrives_wakes_its_rivals_and_a_status_does_not() -> None:
    store = Store()
    store.put(topic("bb", topicName="same"))
    a, bb = Key("Topic", "ns", "a"), Key("Topic", "ns", "bb")
    assert store.put(topic("a", topicName="same")).others == {bb}
    shown = {**topic("a", 2, topicName="same"), "status": {"topicId": "x"}}
    assert store.put(shown).others == frozenset()
    anew = topic("a", 3, topicName="other")
    anew["metadata"]["uid"] = "another"
    assert store.put(anew).others == {bb}
    assert store.put(topic("bb", 4, topicName="other")).others == {a}


def test_the_answer_to_a_write_brings_nothing_back_that_was_deleted() -> None:
    store = Store()
    key = Key("Topic", "ns", "a")
    store.put(topic("a", topicName="same"))
    store.remove(key, "uid-a")
    store.put_written(topic("a", 2, topicName="same"))
    assert key not in store
    anew = topic("a", 3, topicName="other")
    anew["metadata"]["uid"] = "another"
    store.put(anew)
    store.put_written(topic("a", 4, topicName="same"))
    assert store.claims("Topic", ClusterKey("ns", "default"), "same") == []


def test_a_deletion_between_a_write_and_its_answer_leaves_no_claim() -> None:
    """At any moment: one thread stores the responses to its writes, the other sees the deletion."""
    where = ClusterKey("ns", "default")
    for _ in range(300):
        store = Store()
        store.put(topic("a", topicName="same"))
        together = threading.Barrier(2)

        def write(store: Store = store, together: threading.Barrier = together) -> None:
            together.wait()
            for version in range(2, 6):
                store.put_written(topic("a", version, topicName="same"))

        writer = threading.Thread(target=write)
        writer.start()
        together.wait()
        store.remove(Key("Topic", "ns", "a"), "uid-a")
        writer.join()
        assert store.claims("Topic", where, "same") == []


def test_the_end_of_a_resource_that_was_made_anew_does_not_take_the_new_one_along() -> None:
    store = Store()
    anew = topic("a", 3)
    anew["metadata"]["uid"] = "another"
    store.put(anew)
    assert store.remove(Key("Topic", "ns", "a"), "uid-a").others == frozenset()
    assert Key("Topic", "ns", "a") in store
