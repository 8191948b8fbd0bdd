"""The rules of a leader's ISR and high watermark, one by one, and where logs diverge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.coordination import PartitionRecord
from millstream_broker.log.epochs import LeaderEpochs
from millstream_broker.replication.divergence import diverging_epoch, truncation_offset
from millstream_broker.replication.isr import Isr, eligible_leaders
from millstream_kafka.protocol.errors import ApiError, ErrorCode

ALL = (1, 2, 3)
LAG_MS = 100


def leading(
    isr: tuple[int, ...] = ALL, *, log_end: int = 0, high_watermark: int = 0, min_isr: int = 1
) -> Isr:
    return Isr(
        1,
        PartitionRecord(ALL, 1, 5, isr, version=7),
        log_end=log_end,
        high_watermark=high_watermark,
        min_isr=min_isr,
        max_lag_ms=LAG_MS,
        alive=ALL,
        now_ms=0,
    )


def write(isr: Isr, now_ms: int) -> PartitionRecord:
    """Propose an ISR and store it."""
    proposed = isr.propose(now_ms)
    assert proposed is not None
    stored = replace(proposed, version=proposed.version + 1)
    assert isr.written(stored)
    return stored


def test_the_high_watermark_is_the_least_log_end_in_sync() -> None:
    isr = leading()
    assert isr.advance(10, 0) == 0
    isr.fetched(2, 10, 10, 1)
    assert isr.advance(10, 1) == 0, "nothing is known of 3"
    isr.fetched(3, 4, 10, 2)
    assert isr.advance(10, 2) == 4
    isr.fetched(3, 10, 10, 3)
    assert isr.advance(12, 3) == 10
    assert isr.advance(12, 3, own_end=9) == 10, "it never goes back"


def test_the_leaders_own_log_counts_as_far_as_its_flush_policy_says() -> None:
    isr = leading((1,))
    isr.set_alive([1])
    assert isr.advance(10, 0, own_end=6) == 6


def test_a_follower_that_lags_leaves_and_one_that_has_caught_up_joins() -> None:
    isr = leading()
    isr.advance(10, 0)
    isr.fetched(2, 10, 10, 50)
    assert isr.propose(LAG_MS) is None
    stored = write(isr, LAG_MS + 1)
    assert stored.isr == (1, 2)
    assert isr.advance(10, LAG_MS + 1) == 10
    isr.fetched(3, 9, 10, LAG_MS + 2)
    assert isr.propose(LAG_MS + 2) is None, "not before it has reached the high watermark"
    isr.fetched(3, 10, 10, LAG_MS + 3)
    assert write(isr, LAG_MS + 3).isr == ALL


def test_a_follower_that_fetches_while_records_pour_in_is_caught_up_as_of_its_previous_fetch() -> None:
    isr = leading((1, 2))
    end = 0
    for now in range(0, 10 * LAG_MS, LAG_MS // 2):
        isr.fetched(2, end, end + 10, now)
        end += 10
        isr.advance(end, now)
        assert isr.propose(now) is None


def test_a_follower_that_fetches_and_never_reaches_the_end_lags() -> None:
    isr = leading((1, 2))
    isr.advance(10, 0)
    for now in range(LAG_MS + 1):
        isr.fetched(2, 1, 10, now)
        assert isr.propose(now) is None
    isr.fetched(2, 1, 10, LAG_MS + 1)
    assert write(isr, LAG_MS + 1).isr == (1,)


def test_a_follower_that_fetches_at_the_end_is_caught_up_as_of_now() -> None:
    isr = leading()
    isr.advance(10, 0)
    isr.fetched(2, 10, 10, LAG_MS)
    isr.fetched(3, 20, 20, LAG_MS)
    assert isr.propose(2 * LAG_MS) is None
    assert write(isr, 2 * LAG_MS + 1).isr == (1, 3)


def test_silence_is_no_lag_while_there_is_nothing_to_fetch() -> None:
    isr = leading((1, 2))
    isr.fetched(2, 0, 0, 0)
    assert isr.propose(50 * LAG_MS) is None
    isr.advance(10, 50 * LAG_MS)
    assert isr.propose(51 * LAG_MS) is None
    assert write(isr, 51 * LAG_MS + 1).isr == (1,)


def test_the_high_watermark_waits_for_a_follower_that_is_about_to_join() -> None:
    isr = leading((1,))
    isr.advance(10, 0)
    isr.fetched(2, 0, 10, 0)
    assert isr.advance(20, 0) == 20, "it is far behind"
    isr.fetched(2, 10, 20, 1)  # it has reached the log end of its last fetch
    assert isr.advance(30, 1) == 20
    isr.fetched(2, 20, 30, 2)
    assert write(isr, 2).isr == (1, 2)
    isr = leading((1,))
    isr.fetched(2, 0, 0, 0)
    isr.set_alive([1, 3])
    assert isr.advance(10, 0) == 10, "who is not registered cannot join"


def test_old_and_new_members_count_while_a_change_is_written() -> None:
    isr = leading()
    isr.advance(10, 0)
    for one in (2, 3):
        isr.fetched(one, 4, 10, 0)
    isr.fetched(2, 10, 10, 1)
    assert isr.advance(10, 1) == 4
    assert isr.propose(5 * LAG_MS) is not None
    assert isr.advance(10, 5 * LAG_MS) == 4, "3 may still be in the stored ISR"
    assert isr.propose(5 * LAG_MS) is None, "one write at a time"
    isr.written(PartitionRecord(ALL, 1, 5, (1, 2), version=8))
    assert isr.advance(10, 5 * LAG_MS) == 10
    isr.fetched(3, 10, 10, 6 * LAG_MS)
    assert isr.propose(6 * LAG_MS) is not None
    assert isr.advance(20, 20 * LAG_MS) == 10
    isr.fetched(2, 20, 20, 20 * LAG_MS)
    assert isr.advance(20, 20 * LAG_MS) == 10, "3 may be in the stored ISR already, though it went silent"


def test_a_write_whose_outcome_is_not_known_is_repeated_as_it_was() -> None:
    isr = leading((1,))
    isr.fetched(2, 0, 0, 0)
    first = isr.propose(0)
    isr.unknown()
    isr.fetched(3, 0, 0, 1)
    assert isr.propose(1) is first
    stored = PartitionRecord(ALL, 1, 5, (1, 2), version=8)
    assert isr.conflicted(stored), "it had been written"
    assert isr.record == stored
    assert write(isr, 1).isr == ALL


def test_what_is_stored_counts_after_a_conflict_and_another_epoch_is_not_ours() -> None:
    isr = leading()
    isr.advance(1, 0)
    assert isr.propose(2 * LAG_MS) is not None
    assert isr.conflicted(PartitionRecord(ALL, 1, 5, (1, 3), version=9))
    assert isr.maximal == {1, 3}
    assert isr.propose(2 * LAG_MS) is not None
    assert not isr.conflicted(PartitionRecord(ALL, 2, 6, (2, 3), version=10))
    assert isr.maximal == {1, 3}


def test_below_min_insync_replicas_the_high_watermark_stands_and_who_left_stays_eligible() -> None:
    isr = leading((1, 2), min_isr=2)
    isr.fetched(2, 0, 0, 0)
    isr.advance(10, 0)
    stored = write(isr, LAG_MS + 1)
    assert (stored.isr, stored.elr) == ((1,), (2,))
    assert isr.advance(10, LAG_MS + 1) == 0
    isr.min_isr = 1
    assert isr.advance(10, LAG_MS + 1) == 0, "2 is still stored as one that has everything"
    stored = write(isr, LAG_MS + 1)
    assert (stored.isr, stored.elr) == ((1,), ())
    assert isr.advance(10, LAG_MS + 1) == 10


def test_more_replicas_than_there_are_cannot_be_asked_for() -> None:
    isr = Isr(
        1,
        PartitionRecord((1,), 1, 0, (1,)),
        log_end=0,
        high_watermark=0,
        min_isr=3,
        max_lag_ms=LAG_MS,
        alive=(1,),
        now_ms=0,
    )
    assert isr.advance(5, 0) == 5


def test_a_member_that_asks_for_less_than_was_acknowledged_has_lost_records() -> None:
    isr = leading((1, 2), log_end=10, high_watermark=10)
    isr.fetched(2, 3, 10, 1)
    assert write(isr, 1).isr == (1,)
    assert isr.advance(20, 1) == 20, "and nobody waits for it"


def test_a_new_epoch_begins_with_nothing_known_and_who_joins_must_reach_its_start() -> None:
    isr = leading(log_end=10)
    for one in (2, 3):
        isr.fetched(one, 10, 10, 0)
    assert isr.advance(10, 0) == 10
    assert isr.update(PartitionRecord(ALL, 1, 6, (1, 2), version=8), 15, 1)
    assert isr.advance(15, 1) == 10
    isr.fetched(3, 12, 15, 2)
    assert isr.propose(2) is None, "the records up to 15 may have been acknowledged by the leader before"
    isr.fetched(3, 15, 15, 3)
    assert write(isr, 3).isr == ALL


def test_a_leader_is_settled_when_all_that_was_there_before_it_is_acknowledged_again() -> None:
    isr = leading((1, 2), log_end=10, high_watermark=4)
    assert not isr.is_settled
    isr.fetched(2, 8, 10, 0)
    isr.advance(12, 0)
    assert not isr.is_settled
    isr.fetched(2, 10, 12, 1)
    isr.advance(12, 1)
    assert isr.is_settled


def test_the_low_watermark_is_that_of_those_who_are_there() -> None:
    isr = leading()
    isr.fetched(2, 10, 10, 0, log_start=5)
    assert isr.low_watermark(7) == -1, "3 has said nothing yet"
    isr.fetched(3, 10, 10, 0, log_start=9)
    assert isr.low_watermark(7) == 5
    isr.set_alive((1, 3))
    assert isr.low_watermark(7) == 7


def test_older_records_of_the_state_are_ignored() -> None:
    isr = leading()
    assert not isr.update(PartitionRecord(ALL, 1, 5, (1,), version=6), 0, 0)
    assert not isr.update(PartitionRecord(ALL, 1, 4, (1,), version=9), 0, 0)
    assert isr.record.isr == ALL


def test_replicas_come_and_go_within_an_epoch() -> None:
    isr = leading((1, 2))
    isr.fetched(2, 0, 0, 0)
    isr.update(PartitionRecord((1, 2, 4), 1, 5, (1, 2), version=8), 0, 0)
    assert isr.followers.keys() == {2, 4}
    isr.set_alive((1, 2, 4))
    isr.fetched(4, 0, 0, 0)
    assert write(isr, 0).isr == (1, 2, 4)
    with pytest.raises(ApiError) as stranger:
        isr.fetched(3, 0, 0, 0)
    assert stranger.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("offset", [11, 2**63 - 1, -1, -(2**63)])
def test_a_follower_has_nothing_that_the_leader_has_not(offset: int) -> None:
    isr = leading(min_isr=2)
    assert isr.advance(10, 0) == 0
    isr.fetched(2, 4, 10, 1)
    isr.fetched(3, 4, 10, 1)
    with pytest.raises(ApiError) as refused:
        isr.fetched(2, offset, 10, 2)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert isr.advance(20, 2) == 4
    assert isr.followers[2].log_end == 4
    assert isr.propose(3) is None


@pytest.mark.parametrize(
    ("isr", "elr"),
    [((1, 2), ()), ((1,), (2, 3)), ((), (1, 2, 3))],
)
def test_eligible_leaders(isr: tuple[int, ...], elr: tuple[int, ...]) -> None:
    assert eligible_leaders(PartitionRecord(ALL, 1, 0, ALL), isr, 2) == elr


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    found = LeaderEpochs(Path("/nowhere"))
    found.entries = list(entries)
    return found


@pytest.mark.parametrize(
    ("leader", "end", "offset", "epoch", "parted"),
    [
        ([(0, 0), (2, 10)], 20, 15, 2, None),
        ([(0, 0), (2, 10)], 20, 20, 2, None),
        ([(0, 0), (2, 10)], 20, 12, 0, (0, 10)),  # the follower has more of epoch 0 than the leader
        ([(0, 0), (2, 10)], 20, 10, 0, None),
        ([(0, 0), (2, 10)], 20, 8, 1, (0, 10)),  # the leader never saw epoch 1
        ([(3, 5)], 20, 8, 1, (1, 5)),
        ([(0, 0)], 4, 9, 0, (0, 4)),
        ([], 4, 0, -1, None),  # an empty follower
    ],
)
def test_where_a_leader_says_that_logs_part(
    leader: list[tuple[int, int]], end: int, offset: int, epoch: int, parted: tuple[int, int] | None
) -> None:
    assert diverging_epoch(epochs(*leader), end, offset, epoch) == parted


def test_an_epoch_that_the_leader_cannot_know_is_out_of_range() -> None:
    with pytest.raises(ApiError) as error:
        diverging_epoch(epochs((1, 0)), 5, 5, 3)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("leader", "end"), [([(1, 0)], 5), ([], 0)])
def test_of_a_mirrors_replica_the_leader_may_lack_an_epoch(leader: list[tuple[int, int]], end: int) -> None:
    """Then the leader reports its own end, and the follower cuts all later epochs."""
    latest = leader[-1][0] if leader else -1
    assert diverging_epoch(epochs(*leader), end, 5, 3, is_mirrored=True) == (latest, end)
    follower = epochs(*leader, (3, end))
    assert truncation_offset(follower, 9, latest, end) == end
    with pytest.raises(ApiError):
        diverging_epoch(epochs(), end, 5, 3)


def test_after_a_cut_nothing_is_known_of_followers_and_they_get_time() -> None:
    isr = leading()
    for replica in (2, 3):
        isr.fetched(replica, 10, 10, 1)
    assert isr.advance(10, 1) == 10
    assert isr.all_are_level
    isr.truncated(4, 5000)
    assert isr.high_watermark == 4
    assert not isr.all_are_level
    assert isr.propose(5000 + LAG_MS) is None
    isr.fetched(2, 4, 4, 5001)
    assert not isr.all_are_level
    isr.fetched(3, 4, 4, 5001)
    assert isr.all_are_level
    assert isr.advance(4, 5001) == 4
    isr.advance(6, 5002)
    assert not isr.all_are_level
    assert isr.high_watermark == 4, "both have yet to fetch what is new"


def test_a_replica_that_may_be_elected_is_not_level_while_it_is_away() -> None:
    isr = leading((1, 2), min_isr=2)
    isr.fetched(2, 3, 3, 1)
    assert isr.all_are_level
    isr.record = replace(isr.record, elr=(3,))
    assert not isr.all_are_level


@pytest.mark.parametrize(
    ("follower", "end", "leader_epoch", "leader_end", "offset"),
    [
        ([(0, 0)], 20, 0, 10, 10),
        ([(0, 0), (1, 5)], 20, 0, 10, 5),  # its records of epoch 1 are not the leader's
        ([(0, 0), (2, 5)], 20, 1, 10, 5),  # the leader has no epoch 1: everything after epoch 0 is cut
        ([(2, 5)], 20, 1, 10, 5),
        ([], 20, 1, 10, 10),
        ([(0, 0)], 8, 0, 10, 8),
    ],
)
def test_where_a_follower_cuts(
    follower: list[tuple[int, int]], end: int, leader_epoch: int, leader_end: int, offset: int
) -> None:
    assert truncation_offset(epochs(*follower), end, leader_epoch, leader_end) == offset


def test_a_follower_outside_the_isr_is_not_caught_up_before_it_has_fetched_twice() -> None:
    isr = leading((1,), log_end=10, high_watermark=10)
    isr.fetched(2, 10, 20, 0)
    assert isr.advance(20, 0) == 20


def test_a_follower_that_asks_again_for_what_it_lacks_has_lost_nothing() -> None:
    isr = leading((1,))
    isr.advance(4, 0)
    isr.set_alive([1, 3])
    isr.fetched(2, 4, 4, 0)
    assert isr.advance(10, 1) == 10
    isr.set_alive(ALL)
    isr.fetched(2, 4, 10, 2)
    assert isr.advance(20, 3) == 10, "it is about to join"


def test_lag_is_that_of_the_follower_furthest_behind() -> None:
    isr = leading(log_end=10)
    assert isr.max_lag() == 10, "nothing is known of the followers"
    isr.fetched(2, 10, 10, 0)
    isr.fetched(3, 7, 10, 0)
    assert isr.max_lag() == 3
    isr.fetched(3, 10, 10, 1)
    assert isr.max_lag() == 0


def test_the_low_watermark_is_that_of_the_replicas_that_live() -> None:
    isr = leading(log_end=10)
    isr.fetched(2, 10, 10, 0, 3)
    isr.fetched(3, 10, 10, 0, 4)
    assert isr.low_watermark(5) == 3
    assert isr.low_watermark(2) == 2
    isr.set_alive([1])
    assert isr.low_watermark(5) == 5


def test_replicas_may_change_without_a_new_version() -> None:
    isr = leading()
    assert not isr.update(replace(isr.record, replicas=(1, 2)), 0, 0)
    assert list(isr.followers) == [2]
    assert not isr.update(replace(isr.record, replicas=ALL, leader_epoch=4), 0, 0)
    assert list(isr.followers) == [2], "that is of an older epoch"


def test_the_outcome_of_a_write_counts_in_its_own_epoch_only() -> None:
    isr = leading(log_end=10)
    proposed = isr.propose(2 * LAG_MS)
    assert proposed is not None
    assert not isr.written(replace(proposed, leader_epoch=6, version=9))
    assert not isr.conflicted(replace(proposed, leader=2, version=9))
    assert isr.record.version == 7
    assert isr.written(replace(proposed, version=8))
