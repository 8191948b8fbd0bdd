"""Which reconciles may begin: other Clusters get a worker, however many hang."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from millstream_operator.manager.concurrency import SLOW_S, SLOW_WORKERS, THREADS, WORKERS, Slots


def of_a_cluster(group: Hashable) -> Collection[Hashable]:
    """The groups of this group's Cluster; groups are named CLUSTER-KIND."""
    cluster = str(group).partition("-")[0]
    return [f"{cluster}-{kind}" for kind in ("cluster", "topics", "groups")]


def test_so_many_begin_and_no_more_until_one_ends() -> None:
    slots = Slots()
    for number in range(WORKERS):
        assert slots.free(0.0)
        slots.begin(number, 0.0)
    assert not slots.free(1.0)
    assert slots.free_at(1.0) == SLOW_S
    slots.end(0, 1.0)
    assert slots.free(1.0)
    assert slots.free_at(1.0) is None


def test_looks_that_hang_make_room() -> None:
    slots = Slots()
    for number in range(WORKERS):
        slots.begin(number, 0.0)
    assert slots.free(SLOW_S)
    assert slots.held_back(SLOW_S) == set(range(WORKERS))
    slots.begin("quick", SLOW_S)
    slots.end("quick", SLOW_S + 0.1)
    assert "quick" not in slots.held_back(SLOW_S + 0.1)


def test_there_is_an_end_to_the_room() -> None:
    slots, now = Slots(), 0.0
    while slots.free(now):
        slots.begin(now, now)
        now += SLOW_S
    assert len(slots.begun) == THREADS
    assert slots.free_at(now) is None


def test_groups_of_a_cluster_that_hangs_wait_for_each_other() -> None:
    slots = Slots(of_a_cluster)
    for cluster in "abcdef"[: SLOW_WORKERS + 1]:
        slots.begin(f"{cluster}-topics", 0.0)
        assert slots.held_back(1.0) == ()
    held = slots.held_back(SLOW_S)
    assert {"a-cluster", "a-groups", "b-topics"} <= set(held)
    assert "z-topics" not in held
    for cluster in "abcdef"[: SLOW_WORKERS + 1]:
        slots.end(f"{cluster}-topics", 15.0)
    assert slots.slow == {
        group for cluster in "abcdef"[: SLOW_WORKERS + 1] for group in of_a_cluster(cluster)
    }
    assert slots.held_back(15.0) == ()
    for cluster in "ab"[:SLOW_WORKERS]:
        slots.begin(f"{cluster}-groups", 15.0)
    assert "c-topics" in slots.held_back(15.0)
    slots.end("a-groups", 15.5)
    assert "a-topics" not in slots.slow
    assert slots.held_back(15.5) == ()


def test_slow_looks_take_no_worker_of_quick_ones() -> None:
    slots = Slots()
    slots.begin("slow", 0.0)
    slots.end("slow", SLOW_S + 1)
    slots.begin("slow", 10.0)
    for number in range(WORKERS):
        assert slots.free(10.0)
        slots.begin(number, 10.0)
    assert slots.longest(12.0) == 2.0
