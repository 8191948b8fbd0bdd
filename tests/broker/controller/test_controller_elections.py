"""Leaders and ISRs: each rule, and properties over all states and situations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.controller.elections import Situation, enough, imbalanced, may_lead_again, settle
from millstream_broker.coordination import PartitionRecord
from millstream_broker.runtime.steps import to_the_end

NONE = -1


def record(
    leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = (), replicas: tuple[int, ...] = (1, 2, 3)
) -> PartitionRecord:
    return PartitionRecord(replicas, leader, 5, isr, version=7, elr=elr)


def outcome(
    before: PartitionRecord, situation: Situation
) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Leader, ISR, ELR, and the rise of the leader epoch."""
    after = settle(before, situation)
    return after.leader, after.isr, after.elr, after.leader_epoch - before.leader_epoch


ALL = record(1, (1, 2, 3))
CASES = {
    "nothing happened": (ALL, Situation({1, 2, 3}), (1, (1, 2, 3), (), 0)),
    "a follower died": (ALL, Situation({1, 2}), (1, (1, 2), (), 0)),
    "the leader died": (ALL, Situation({2, 3}), (2, (2, 3), (), 1)),
    "all died: none is forgotten": (ALL, Situation(set()), (NONE, (1, 2, 3), (), 1)),
    "the last of the ISR died": (record(2, (2,)), Situation({1, 3}), (NONE, (2,), (), 1)),
    "and is back": (record(NONE, (2,)), Situation({1, 2}), (2, (2,), (), 1)),
    "too few are left: who left has everything": (
        ALL,
        Situation({1}, min_isr=2),
        (1, (1,), (2, 3), 0),
    ),
    "one of those leads when the last dies": (
        record(1, (1,), (2, 3)),
        Situation({3}, min_isr=2),
        (3, (3,), (1, 2), 1),
    ),
    "nobody has to be remembered when there are enough": (
        record(1, (1, 2), (3,)),
        Situation({1, 2, 3}, min_isr=2),
        (1, (1, 2), (), 0),
    ),
    "min.insync.replicas was lowered": (
        record(1, (1,), (2, 3)),
        Situation({1}, min_isr=1),
        (1, (1,), (), 0),
    ),
    "unclean election is not allowed": (record(NONE, (2,)), Situation({1, 3}), (NONE, (2,), (), 0)),
    "unclean election is": (record(NONE, (2,)), Situation({1, 3}, unclean=True), (1, (1,), (), 1)),
    "but never instead of a clean one": (
        record(NONE, (2,), (3,)),
        Situation({1, 3}, unclean=True, min_isr=2),
        (3, (3,), (2,), 1),
    ),
    "a follower restarted": (ALL, Situation({1, 2, 3}, restarted={2}), (1, (1, 3), (), 0)),
    "the leader restarted": (ALL, Situation({1, 2, 3}, restarted={1}), (2, (2, 3), (), 1)),
    "the only one restarted": (record(1, (1,)), Situation({1, 2, 3}, restarted={1}), (1, (1,), (), 1)),
    "a follower lost its memory": (ALL, Situation({1, 2, 3}, forgetful={3}), (1, (1, 2), (), 1)),
    "the leader lost its memory": (ALL, Situation({1, 2, 3}, forgetful={1}), (2, (2, 3), (), 1)),
    "rather nobody than one without memory": (
        record(NONE, (1, 2)),
        Situation({1}, forgetful={1}),
        (NONE, (2,), (), 0),
    ),
    "two that have everything outlive the ISR: one leads": (
        record(1, (1,), (2, 3)),
        Situation({2, 3}, min_isr=2),
        (2, (2,), (1, 3), 1),
    ),
    "all that had everything lost their memory": (
        record(NONE, (1,), (2,)),
        Situation({1, 2}, forgetful={1, 2}, min_isr=2),
        (NONE, (1, 2), (), 0),
    ),
    "the whole ISR lost its memory: nobody leads before it is known who has the most": (
        record(2, (1, 2)),
        Situation({1, 2}, forgetful={1, 2}),
        (NONE, (1, 2), (), 1),
    ),
    "the whole ISR lost its memory, and nobody led": (
        record(NONE, (1, 2)),
        Situation({1, 2}, forgetful={1, 2}),
        (NONE, (1, 2), (), 0),
    ),
    "the only one lost its memory": (
        record(NONE, (1,)),
        Situation({1}, forgetful={1}),
        (1, (1,), (), 1),
    ),
    "others have everything, one day": (
        record(1, (1,), (2, 3)),
        Situation({1}, forgetful={1}, min_isr=2),
        (NONE, (2, 3), (), 1),
    ),
    "the leader wants to stop": (ALL, Situation({1, 2, 3}, leaving={1}), (2, (2, 3), (), 1)),
    "a follower wants to stop": (ALL, Situation({1, 2, 3}, leaving={3}), (1, (1, 2), (), 1)),
    "the only one wants to stop": (record(1, (1,)), Situation({1, 2}, leaving={1}), (1, (1,), (), 0)),
    "all want to stop": (ALL, Situation({1, 2, 3}, leaving={1, 2, 3}), (1, (1, 2, 3), (), 0)),
    "the preferred leader is asked for": (
        record(2, (2, 1)),
        Situation({1, 2}, preferred=True),
        (1, (2, 1), (), 1),
    ),
    "and is not in the ISR": (record(2, (2, 3)), Situation({1, 2, 3}, preferred=True), (2, (2, 3), (), 0)),
    "the preferred leader is not in the ISR, and the next one is": (
        record(3, (2, 3)),
        Situation({1, 2, 3}, preferred=True),
        (3, (2, 3), (), 0),
    ),
    "the leader is to go": (ALL, Situation({1, 2, 3}, going={1}), (2, (1, 2, 3), (), 1)),
    "a replica was dropped": (
        record(2, (2, 3, 4)),
        Situation({1, 2, 3, 4}),
        (2, (2, 3), (), 0),
    ),
    "nobody of the ISR is a replica: none is forgotten": (
        record(4, (4, 5)),
        Situation({1, 2, 3, 4, 5}),
        (4, (4, 5), (), 0),
    ),
    "a member of the elr was dropped": (
        record(NONE, (2,), (4,)),
        Situation({1, 4}, min_isr=2),
        (NONE, (2,), (), 0),
    ),
    "a new epoch is asked for": (ALL, Situation({1, 2, 3}, new_epoch=True), (1, (1, 2, 3), (), 1)),
}


UNDECIDED = replace(record(NONE, (1, 2, 3)), suspects=(1, 2, 3))
SUSPECTS = {
    "who cannot vouch is remembered while nobody leads": (
        record(NONE, (1, 2)),
        Situation({1}, forgetful={1}),
        (NONE, (2,), (1,)),
    ),
    "and is not when the other is back": (
        replace(record(NONE, (2,)), suspects=(1,)),
        Situation({1, 2}),
        (2, (2,), ()),
    ),
    "when the other cannot vouch either, nobody leads": (
        replace(record(NONE, (2,)), suspects=(1,)),
        Situation({1, 2}, forgetful={2}),
        (NONE, (1, 2), (1, 2)),
    ),
    "nor when it is known of one only what it has": (
        UNDECIDED,
        Situation({1, 2, 3}, ends={2: (7, 100)}),
        (NONE, (1, 2, 3), (1, 2, 3)),
    ),
    "then the longest log of the latest epoch leads": (
        UNDECIDED,
        Situation({1, 2, 3}, ends={1: (6, 900), 2: (7, 100), 3: (7, 99)}),
        (2, (2,), ()),
    ),
    "the first of the replicas, of equal ones": (
        UNDECIDED,
        Situation({1, 2, 3}, ends={1: (6, 900), 2: (7, 99), 3: (7, 99)}),
        (2, (2,), ()),
    ),
    "of those that live": (
        UNDECIDED,
        Situation({1, 3}, ends={1: (6, 900), 3: (7, 99)}),
        (3, (3,), ()),
    ),
    "a replica outside the ISR, which has more than a wiped one": (
        replace(record(NONE, (3,)), suspects=(3,)),
        Situation({1, 3}, ends={1: (6, 900), 3: (-1, 0)}),
        (1, (1,), ()),
    ),
    "not before it is known what it has": (
        replace(record(NONE, (3,)), suspects=(3,)),
        Situation({1, 3}, ends={3: (-1, 0)}),
        (NONE, (3,), (3,)),
    ),
    "not when it has as much": (
        replace(record(NONE, (3,)), suspects=(3,)),
        Situation({1, 3}, ends={1: (6, 900), 3: (6, 900)}),
        (3, (3,), ()),
    ),
    "nor while no suspect is back": (
        replace(record(NONE, (3,)), suspects=(3,)),
        Situation({1, 2}, ends={1: (6, 900), 2: (6, 900)}),
        (NONE, (3,), (3,)),
    ),
    "nobody, when none lives": (UNDECIDED, Situation(set()), (NONE, (1, 2, 3), (1, 2, 3))),
    "an administrator does not wait": (UNDECIDED, Situation({2, 3}, unclean=True), (2, (2,), ())),
    "a replica that never was in the ISR is no suspect": (
        record(NONE, (2,)),
        Situation({1}, forgetful={1}),
        (NONE, (2,), ()),
    ),
    "one of the elr is": (
        record(NONE, (2,), (3,)),
        Situation({3}, forgetful={3}, min_isr=2),
        (NONE, (2,), (3,)),
    ),
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_suspects(name: str) -> None:
    before, situation, expected = SUSPECTS[name]
    after = settle(before, situation)
    assert (after.leader, after.isr, after.suspects) == expected
    assert after.leader_epoch - before.leader_epoch == (after.leader != NONE)


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    before, situation, expected = CASES[name]
    assert outcome(before, situation) == expected


def test_a_new_partition() -> None:
    new = PartitionRecord((3, 1, 2), NONE, -1, (), -1)
    assert settle(new, Situation(set())) is new
    begun = settle(new, Situation({1, 2}))
    assert (begun.leader, begun.isr, begun.leader_epoch, begun.version) == (1, (1, 2), 0, -1)
    leaving = settle(new, Situation({1, 2, 3}, leaving={3}))
    assert (leaving.leader, leaving.isr) == (1, (1, 2))


brokers = st.sets(st.integers(1, 5))


@st.composite
def states(draw: st.DrawFn) -> PartitionRecord:
    replicas = tuple(draw(st.permutations(range(1, 6)))[: draw(st.integers(1, 4))])
    isr = tuple(r for r in replicas if draw(st.booleans())) or replicas[:1]
    elr = tuple(r for r in replicas if r not in isr and draw(st.booleans()))
    leader = draw(st.sampled_from((NONE, *isr)))
    suspects = tuple(r for r in replicas if leader == NONE and r not in elr and draw(st.booleans()))
    return PartitionRecord(replicas, leader, 5, isr, version=3, elr=elr, suspects=suspects)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    return Situation(
        draw(brokers),
        leaving=draw(brokers),
        restarted=draw(brokers),
        forgetful=draw(brokers),
        min_isr=draw(st.integers(1, 4)),
        unclean=draw(st.booleans()),
        preferred=draw(st.booleans()),
        new_epoch=draw(st.booleans()),
        ends=draw(st.dictionaries(st.integers(1, 5), st.tuples(st.integers(0, 2), st.integers(0, 2)))),
    )


@given(states(), situations())
def test_what_always_holds(before: PartitionRecord, now: Situation) -> None:
    after = settle(before, now)
    assert after.isr
    assert set(after.isr) <= set(before.replicas)
    assert not set(after.isr) & set(after.elr)
    assert after.leader_epoch in (before.leader_epoch, before.leader_epoch + 1)
    if after.leader != NONE:
        assert after.leader in after.isr
        assert after.leader in now.live
    if after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch
        members = {*before.isr, *before.elr}
        all_doubtful = members <= {*before.suspects, *now.forgetful}
        assert after.leader in (NONE, *members, *before.suspects) or now.unclean or all_doubtful
    vouching = set(before.isr) - set(before.suspects)
    if vouching & set(now.live) and not now.forgetful:
        assert after.leader in vouching
    could_lead = set(before.isr) | set(before.elr) | set(before.suspects)
    if not now.unclean and after.leader in (NONE, *could_lead):
        assert set(after.isr) | set(after.elr) <= could_lead
    if after.leader in {*before.suspects, *now.forgetful} and not now.unclean:
        doubtful = {*before.suspects, *now.forgetful}
        assert not (set(before.isr) | set(before.elr)) - doubtful, "another member is to be had"
        others = ((could_lead | set(before.replicas)) & set(now.live)) - {after.leader}
        assert all(now.ends[after.leader] >= now.ends[one] for one in others)
    assert not after.suspects or after.leader == NONE


@given(states(), situations())
def test_what_is_settled_stays_so(before: PartitionRecord, now: Situation) -> None:
    """Notes count once; after that, nothing is left to do."""
    once = settle(before, now)
    calm = replace(now, restarted=(), forgetful=(), new_epoch=False)
    twice = settle(once, calm)
    assert settle(twice, calm) is twice


def test_leaders_that_should_be_elsewhere() -> None:
    led_by_two = {("t", index): record(2, (1, 2, 3)) for index in range(10)}
    assert to_the_end(imbalanced(led_by_two, {1, 2, 3}, 10)) == list(led_by_two)
    assert to_the_end(imbalanced(led_by_two, {2, 3}, 10)) == [], "1 is not there to lead"
    led_by_two |= {("u", index): record(1, (1, 2, 3)) for index in range(90)}
    assert to_the_end(imbalanced(led_by_two, {1, 2, 3}, 10)) == [], "10 of 100 are 10 per cent"
    assert len(to_the_end(imbalanced(led_by_two, {1, 2, 3}, 9))) == 10
    led_by_two["t", 0] = record(2, (2, 3))
    assert len(to_the_end(imbalanced(led_by_two, {1, 2, 3}, 9))) == 9, "1 is not in sync there"


@pytest.mark.parametrize(
    ("adding", "removing", "expected"),
    [
        ((), (), 4),
        ((4,), (), 3),
        ((), (1,), 3),
        ((3, 4), (1,), 2),
        ((4,), (1, 2), 2),
        ((8, 9), (7,), 4),  # the leader does not know these yet, or no longer does
    ],
)
def test_an_isr_is_large_enough_by_the_smaller_side_of_a_reassignment(
    adding: tuple[int, ...], removing: tuple[int, ...], expected: int
) -> None:
    moving = replace(record(1, (1,), replicas=(1, 2, 3, 4)), adding=adding, removing=removing)
    assert enough(moving, 9) == expected
    assert enough(moving, 1) == 1


def test_the_preferred_replica_waits_for_the_end_of_a_reassignment() -> None:
    assert may_lead_again(ALL)
    assert not may_lead_again(record(2, (2, 3)))
    assert not may_lead_again(replace(ALL, adding=(3,)))
    assert not may_lead_again(replace(ALL, removing=(3,)))
