"""Leader epochs keep away from those that a store restored from an older copy has forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_broker.controller.leader_epochs import EpochDistances, distance_limit
from millstream_broker.controller.messages import LogEnds, Settings, StatesWritten, WriteStates
from millstream_broker.coordination import PartitionRecord
from millstream_broker.coordination.controllership import StatesChanged, TopicsChanged
from millstream_broker.topic_rules.mirrored_topics import LARGEST_EPOCH, first_epoch
from millstream_harness.controller import Controller, of, topic
from millstream_kafka.mirror_source import KEY


def epochs(controller: Controller, *keys: tuple[str, int]) -> list[int]:
    return [controller.record(*key).leader_epoch for key in keys]


def test_first_new_epoch_of_each_controller_is_at_a_distance() -> None:
    """A leader that stays keeps its epoch."""
    controller = Controller(topic("t", (1, 2, 3), (2, 3, 1)), distance=1000)
    keys = ("t", 0), ("t", 1)
    assert epochs(controller, *keys) == [0, 0]
    controller.live(2, 3)
    assert epochs(controller, *keys) == [1001, 0]
    controller.live(3)
    assert epochs(controller, *keys) == [1002, 1001]


def test_epochs_of_a_topic_created_under_this_controller_count_by_one() -> None:
    controller = Controller(distance=1000)
    controller.handle(TopicsChanged({"new": topic("new", (1, 2, 3), version=-1)}, frozenset({"new"})))
    assert epochs(controller, ("new", 0)) == [0]
    controller.live(2, 3)
    assert epochs(controller, ("new", 0)) == [1]


def test_epoch_that_somebody_else_wrote_does_not_count_as_given() -> None:
    """The write of a new epoch finds another state in the store: the next one keeps its distance again."""
    controller = Controller(topic("t", (1, 2, 3)), distance=1000)
    controller.is_slow = True
    controller.live(2, 3)
    (write,) = of(WriteStates, controller.seen)
    before = PartitionRecord((1, 2, 3), 1, 5, (1, 2, 3), 4, 1)
    controller.waiting.clear()
    again = controller.decide(StatesWritten(write.states, {("t", 0): before}))
    (write,) = of(WriteStates, again)
    assert write.states["t", 0].leader_epoch == 1006


def test_leaders_elected_by_logs_always_keep_a_distance() -> None:
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=1), distance=1000)
    controller.live(2, 3)
    record = replace(controller.record("t"), leader=-1, suspects=(1, 2, 3), doubted=True, version=9)
    controller.handle(StatesChanged({("t", 0): record}))
    controller.live(1, 2, 3)
    for broker in (1, 2, 3):
        controller.handle(LogEnds(broker, controller.epochs[broker], {("t", 0): (7, 10 + broker)}))
    assert controller.record("t").leader == 3
    assert epochs(controller, ("t", 0)) == [record.leader_epoch + 1001]


@pytest.mark.parametrize(
    ("epoch", "limit"), [(-1, 1 << 14), (0, 1 << 14), (LARGEST_EPOCH, 1), ((1 << 31) - 2, 1)]
)
def test_distances_shrink_towards_the_largest_epoch(epoch: int, limit: int) -> None:
    assert distance_limit(epoch) == limit
    assert distance_limit(epoch, 1 << 20) == (limit if limit == 1 else 1 << 20)


def test_distances_are_larger_where_the_store_shows_that_it_was_restored() -> None:
    largest, record = EpochDistances(lambda limit: limit - 1), PartitionRecord((1,), 1, 0, (1,), 5)
    for first in (record, replace(record, version=0)):
        assert largest.distance(("t", 0), first, is_created=False) == (1 << 14) - 1
    for restored in (replace(record, doubted=True), replace(record, version=-1)):
        assert largest.distance(("t", 0), restored, is_created=False) == (1 << 20) - 1


def test_largest_distances_never_exceed_the_largest_epoch() -> None:
    record = PartitionRecord((1,), 1, LARGEST_EPOCH * 98 // 100, (1,), 5)
    for _ in range(50_000):
        distance = EpochDistances(lambda limit: limit - 1).distance(("t", 0), record, is_created=False)
        record = replace(record, leader_epoch=record.leader_epoch + 1 + distance)
    assert 0.99 * LARGEST_EPOCH < record.leader_epoch < LARGEST_EPOCH + 50_000


def test_epochs_of_a_source_stay_below_those_of_its_mirror_for_sixty_controllers() -> None:
    """Otherwise a source that was down could not rejoin the mirror that was promoted meanwhile (`is not above`)."""
    record = PartitionRecord((1,), 1, 0, (1,), 5)
    for _ in range(60):
        distance = EpochDistances(lambda limit: limit - 1).distance(("t", 0), record, is_created=False)
        record = replace(record, leader_epoch=record.leader_epoch + 1 + distance)
    assert record.leader_epoch < first_epoch({KEY: "a-source"})
