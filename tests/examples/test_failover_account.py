"""The account of the failover demo adds up after a good failover, and names the errors of a bad one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from account import Account, Evidence

pytestmark = pytest.mark.process

GOOD = Evidence(
    west={1: (0, 0), 2: (0, 1), 3: (1, 0), 4: (0, 3)},
    east={5: (0, 3), 6: (1, 1), 7: (0, 4)},
    stored={(0, 0): 1, (0, 1): 2, (0, 2): 5, (0, 3): 5, (0, 4): 7, (1, 0): 3, (1, 1): 6},
    ends=[3, 1],
    positions=[1, 0],
    before=[((0, 0), 1), ((0, 1), 2), ((0, 2), 5), ((1, 0), 3), ((0, 3), 4)],
    after=[((0, 1), 2), ((0, 2), 5), ((0, 3), 5), ((0, 4), 7), ((1, 0), 3), ((1, 1), 6)],
)
"""West stored record 5 without an acknowledgement, so it is in east twice. Record 4 was not mirrored."""


def test_a_good_failover_adds_up() -> None:
    account = Account(GOOD)
    assert [*account.problems()] == []
    assert account.produced == {1, 2, 3, 4, 5, 6, 7}
    assert account.kept == {1, 2, 3, 5, 6, 7}
    assert account.mirrored == {(0, 0): 1, (0, 1): 2, (0, 2): 5, (1, 0): 3}
    assert (account.missing, account.missing_but_consumed) == ({4}, 1)
    assert (account.repeated, account.read_again, account.sent_again) == (4, 3, 1)


def without(place: tuple[int, int]) -> Evidence:
    return replace(GOOD, stored={at: number for at, number in GOOD.stored.items() if at != place})


WRONG: dict[str, tuple[Callable[[], Evidence], str]] = {
    "a mirrored record is lost": (
        lambda: without((0, 1)),
        "the recovery point counts 4 mirrored records, the target has 3",
    ),
    "a mirrored record is at another offset": (
        lambda: replace(GOOD, stored={**GOOD.stored, (0, 0): 2, (0, 1): 1}),
        "2 records (the first is 1) below the recovery point: not in the target at the source's offset",
    ),
    "an acknowledged record is lost": (
        lambda: without((1, 1)),
        "record 6: acknowledged by the target, and not in it",
    ),
    "a record is stored twice": (
        lambda: replace(GOOD, stored={**GOOD.stored, (1, 2): 3}),
        "record 3 behind the recovery point: not acknowledged by the target",
    ),
    "more is missing than behind the recovery point": (
        lambda: replace(GOOD, stored={**GOOD.stored, (1, 0): 2}),
        "record 3: missing, although not behind the recovery point",
    ),
    "a record comes from nowhere": (
        lambda: replace(GOOD, stored={**GOOD.stored, (0, 2): 99}),
        "record 99: in the target, and never acknowledged",
    ),
    "the group's position is too late": (
        lambda: replace(GOOD, before=GOOD.before[1:]),
        "record 1: never consumed, and the group's position in the target is beyond",
    ),
    "a record is not consumed": (
        lambda: replace(GOOD, after=GOOD.after[:-1]),
        "record 6: in the target, and not consumed there",
    ),
    "a record is consumed twice in the target": (
        lambda: replace(GOOD, after=[*GOOD.after, GOOD.after[0]]),
        "record 2: consumed twice in the target",
    ),
    "the group continues before its position": (
        lambda: replace(GOOD, after=[((0, 0), 1), *GOOD.after]),
        "record 1: consumed in the target, and not there or before the group's position",
    ),
    "the recovery point is not known": (
        lambda: replace(GOOD, ends=[3, -1]),
        "the recovery point is not known: [3, -1]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_bad_failover_does_not(what: str) -> None:
    evidence, problem = WRONG[what]
    assert problem in [*Account(evidence()).problems()]
