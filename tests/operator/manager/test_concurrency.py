"""Which reconciles may begin: other Clusters get a worker, however many hang."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from millstream_operator.manager.concurrency import SLOW_S, SLOW_WORKERS, THREADS, WORKERS, WorkerConcurrency


def of_a_cluster(group: Hashable) -> Collection[Hashable]:
    """The groups of this group's Cluster; groups are named CLUSTER-KIND."""
    cluster = str(group).partition("-")[0]
    return [f"{cluster}-{kind}" for kind in ("cluster", "topics", "groups")]


def test_so_many_begin_and_no_more_until_one_ends() -> None:
    concurrency = WorkerConcurrency()
    for number in range(WORKERS):
        assert concurrency.free(0.0)
        concurrency.begin(number, 0.0)
    assert not concurrency.free(1.0)
    assert concurrency.free_at(1.0) == SLOW_S
    concurrency.end(0, 1.0)
    assert concurrency.free(1.0)
    assert concurrency.free_at(1.0) is None


def test_looks_that_hang_make_room() -> None:
    concurrency = WorkerConcurrency()
    for number in range(WORKERS):
        concurrency.begin(number, 0.0)
    assert concurrency.free(SLOW_S)
    assert concurrency.held_back(SLOW_S) == set(range(WORKERS))
    concurrency.begin("quick", SLOW_S)
    concurrency.end("quick", SLOW_S + 0.1)
    assert "quick" not in concurrency.held_back(SLOW_S + 0.1)


def test_there_is_an_end_to_the_room() -> None:
    concurrency, now = WorkerConcurrency(), 0.0
    while concurrency.free(now):
        concurrency.begin(now, now)
        now += SLOW_S
    assert len(concurrency.begun) == THREADS
    assert concurrency.free_at(now) is None


def test_groups_of_a_cluster_that_hangs_wait_for_each_other() -> None:
    concurrency = WorkerConcurrency(of_a_cluster)
    for cluster in "abcdef"[: SLOW_WORKERS + 1]:
        concurrency.begin(f"{cluster}-topics", 0.0)
        assert concurrency.held_back(1.0) == ()
    held = concurrency.held_back(SLOW_S)
    assert {"a-cluster", "a-groups", "b-topics"} <= set(held)
    assert "z-topics" not in held
    for cluster in "abcdef"[: SLOW_WORKERS + 1]:
        concurrency.end(f"{cluster}-topics", 15.0)
    assert concurrency.slow == {
        group for cluster in "abcdef"[: SLOW_WORKERS + 1] for group in of_a_cluster(cluster)
    }
    assert concurrency.held_back(15.0) == ()
    for cluster in "ab"[:SLOW_WORKERS]:
        concurrency.begin(f"{cluster}-groups", 15.0)
    assert "c-topics" in concurrency.held_back(15.0)
    concurrency.end("a-groups", 15.5)
    assert "a-topics" not in concurrency.slow
    assert concurrency.held_back(15.5) == ()


def test_slow_looks_take_no_worker_of_quick_ones() -> None:
    concurrency = WorkerConcurrency()
    concurrency.begin("slow", 0.0)
    concurrency.end("slow", SLOW_S + 1)
    concurrency.begin("slow", 10.0)
    for number in range(WORKERS):
        assert concurrency.free(10.0)
        concurrency.begin(number, 10.0)
    assert concurrency.longest(12.0) == 2.0
