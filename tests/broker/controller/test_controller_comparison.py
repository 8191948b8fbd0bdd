"""Which log leads after the store was restored from an older copy of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.controller.comparison import doubted, elected, missing, winner
from millstream_broker.coordination import NO_LEADER, PartitionRecord

RECORD = PartitionRecord((1, 2, 3), NO_LEADER, 5, (1, 2), 7, suspects=(1, 2, 3), doubted=True)
EMPTY, NO_LOG = (-1, 0), (-1, -1)
"""Last epoch and end of a log; of none."""


def of(record: PartitionRecord, *live: int, min_isr: int = 1, **more: Any) -> int | None:
    """The broker to lead, when each live broker's log has the end in `ends`, or is empty."""
    ends = dict.fromkeys(live, EMPTY) | more.pop("ends", {})
    return winner(record, live, ends, min_isr, **{"all_live": False, "unclean": False, **more})


@pytest.mark.parametrize(("is_doubted", "leader"), [(False, 1), (False, NO_LEADER), (True, 1)])
@pytest.mark.parametrize("isr", [(2,), ()])
def test_nobody_leads_until_the_logs_are_compared(
    is_doubted: bool, leader: int, isr: tuple[int, ...]
) -> None:
    record = replace(RECORD, leader=leader, isr=isr, elr=(3,), suspects=(), doubted=is_doubted)
    expected = replace(RECORD, leader_epoch=8, isr=isr or (1, 2, 3), elr=())
    assert doubted(record, missed=2, first_epoch=0) == expected
    assert doubted(expected, missed=2, first_epoch=0) is expected, "it waits already"


def test_the_most_complete_log_leads() -> None:
    ends = {1: (3, 10), 2: (4, 5), 3: (4, 6), 4: (4, 6)}
    assert of(RECORD, 1, 2, 3, 4, ends=ends) == 3
    assert of(RECORD, 1, 2, 3, 4, ends={**ends, 4: (4, 7)}) == 4, "though it is no replica"


@pytest.mark.parametrize(("isr", "leader"), [((1, 2, 3), 1), ((2, 3), 2), ((3,), 3)])
def test_of_equal_logs_one_in_the_isr_leads(isr: tuple[int, ...], leader: int) -> None:
    """Empty logs are logs, too."""
    assert of(replace(RECORD, isr=isr), 1, 2, 3, 4) == leader


@pytest.mark.parametrize(
    ("min_isr", "live", "leads"), [(1, 2, False), (1, 3, True), (2, 2, True), (9, 1, True)]
)
def test_as_many_logs_are_known_as_each_acknowledged_record_needs(
    min_isr: int, live: int, leads: bool
) -> None:
    brokers = tuple(range(1, live + 1))
    assert (of(RECORD, *brokers, min_isr=min_isr) is not None) == leads
    away = tuple(broker for broker in (1, 2, 3) if broker not in brokers)
    ends = dict.fromkeys(brokers, EMPTY)
    assert missing(RECORD, brokers, ends, min_isr, (1, 2, 3, 9)) == (() if leads else away)


@pytest.mark.parametrize(
    ("without_log", "isr", "is_elsewhere"),
    [
        ((), (1, 2), False),
        ((3,), (1, 2), False),
        ((2,), (1, 2), True),
        ((1, 2, 3), (1, 2), True),
        ((1, 2, 3), (), True),
    ],
    ids=[
        "all have one",
        "one outside the ISR has none",
        "one in the ISR has none",
        "none",
        "none, and no ISR",
    ],
)
def test_a_partition_may_have_moved_where_a_member_of_the_isr_has_no_log(
    without_log: tuple[int, ...], isr: tuple[int, ...], is_elsewhere: bool
) -> None:
    record, live = replace(RECORD, isr=isr), (1, 2, 3)
    ends = dict.fromkeys(live, EMPTY) | dict.fromkeys(without_log, NO_LOG)
    assert (of(record, *live, ends=ends) is None) == is_elsewhere
    assert missing(record, live, ends, 1, (1, 2, 3, 9)) == ((9,) if is_elsewhere else ())
    assert of(record, *live, ends=ends, all_live=True) is not None


def test_a_broker_that_has_not_answered_is_waited_for() -> None:
    assert winner(RECORD, (1, 2, 3), {1: EMPTY, 2: EMPTY}, 1, all_live=True, unclean=False) is None
    assert missing(RECORD, (1, 2), {1: EMPTY}, 1, (1, 2, 3)) == ()


def test_an_unclean_election_needs_one_live_replica_or_log() -> None:
    assert winner(RECORD, (3,), {}, 1, all_live=False, unclean=True) == 3
    assert winner(RECORD, (9,), {9: EMPTY}, 1, all_live=False, unclean=True) == 9
    assert winner(RECORD, (9,), {9: NO_LOG}, 1, all_live=False, unclean=True) is None


@pytest.mark.parametrize(
    ("known", "ends", "epoch"), [(5, {}, 6), (0, {}, 1), (5, {1: (8, 1), 2: (7, 9)}, 9), (5, {1: (5, 1)}, 6)]
)
def test_the_new_epoch_is_above_those_of_all_logs(
    known: int, ends: dict[int, tuple[int, int]], epoch: int
) -> None:
    record = replace(RECORD, leader_epoch=known)
    for distance in (0, 100):
        found = elected(record, 2, ends, distance)
        expected = epoch + distance
        assert found == replace(
            record, leader=2, leader_epoch=expected, isr=(2,), suspects=(), doubted=False, compared=expected
        )
