"""Idempotent batches after one that was refused temporarily."""

from __future__ import annotations

from time import monotonic

import pytest

from millstream_broker.log.producer_state import ProducerStateManager
from millstream_broker.log.sequence_guard import FORGOTTEN_S, MOST, SequenceGuard
from millstream_kafka.batch import HEADER_SIZE, INT32_MAX, Record, build_batch, read_header
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
TOO_FEW = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few")


def batch(sequence: int, *, producer: int = 7, epoch: int = 0, count: int = 1) -> bytes:
    return build_batch(
        [Record(b"k", b"v", NOW)] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )


def stored(*batches: bytes) -> ProducerStateManager:
    producers = ProducerStateManager()
    for each in batches:
        producers.update(read_header(each), NOW)
    return producers


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(clock: Clock) -> SequenceGuard:
    return SequenceGuard(clock)


def passes(guard: SequenceGuard, which: bytes, producers: ProducerStateManager) -> bool:
    try:
        guard.check(which, producers)
    except ApiError as error:
        return (error.code, error.message) != (TOO_FEW.code, TOO_FEW.message)
    return True


@pytest.mark.parametrize(
    "known", [ProducerStateManager(), stored(batch(4, count=1)), stored(batch(9, epoch=-1))]
)
def test_what_follows_is_refused_until_the_first_comes_again(
    guard: SequenceGuard, known: ProducerStateManager
) -> None:
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    assert not passes(guard, batch(6), known)
    guard.note(batch(6), TOO_FEW, ProducerStateManager())
    assert not passes(guard, batch(7), known)
    assert passes(guard, batch(5), known)
    assert passes(guard, batch(6), known)


def test_sequences_begin_anew_behind_the_largest(guard: SequenceGuard) -> None:
    guard.note(batch(INT32_MAX), TOO_FEW, ProducerStateManager())
    assert not passes(guard, batch(0), stored(batch(INT32_MAX - 1)))


def test_half_of_all_sequences_stand_behind_a_batch(guard: SequenceGuard) -> None:
    half = INT32_MAX // 2
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    assert passes(guard, batch(5 + half + 1), ProducerStateManager())
    assert not passes(guard, batch(5 + half), ProducerStateManager())


def test_what_stands_before_may_come_again(guard: SequenceGuard) -> None:
    known = stored(batch(4))
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    assert passes(guard, batch(4), known)
    assert not passes(guard, batch(6), known), "and the first is missing still"


def test_other_producers_are_not_concerned(guard: SequenceGuard) -> None:
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    assert passes(guard, batch(6, producer=8), ProducerStateManager())
    assert passes(guard, build_batch([Record(b"k", b"v", NOW)]), ProducerStateManager())


def test_a_newer_epoch_ends_it_and_an_older_one_does_not(guard: SequenceGuard) -> None:
    guard.note(batch(5, epoch=3), TOO_FEW, ProducerStateManager())
    assert passes(guard, batch(9, epoch=2), ProducerStateManager())
    assert not passes(guard, batch(6, epoch=3), ProducerStateManager())
    assert passes(guard, batch(0, epoch=4), ProducerStateManager())
    assert not guard.by_producer


def test_a_batch_that_was_given_up_is_forgotten(guard: SequenceGuard, clock: Clock) -> None:
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    clock.now += FORGOTTEN_S
    guard.note(batch(6), TOO_FEW, ProducerStateManager())
    assert not passes(guard, batch(6), ProducerStateManager())
    clock.now += 0.001
    assert passes(guard, batch(6), ProducerStateManager())
    assert not guard.by_producer


def test_a_refusal_ends_by_a_clock_that_nobody_sets() -> None:
    guard = SequenceGuard()
    before = monotonic()
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    assert before <= guard.by_producer[7].until - FORGOTTEN_S <= monotonic()


def test_a_producer_that_never_comes_back_is_forgotten(guard: SequenceGuard, clock: Clock) -> None:
    """Clients that meet a follower go on to the leader, and may never need this broker again."""
    for producer in (7, 8):
        guard.note(batch(5, producer=producer), TOO_FEW, ProducerStateManager())
    clock.now += FORGOTTEN_S
    guard.note(batch(5, producer=7), TOO_FEW, ProducerStateManager())
    clock.now += 0.001
    assert passes(guard, batch(0, producer=9), ProducerStateManager())
    assert list(guard.by_producer) == [7], "it was refused again"
    clock.now += FORGOTTEN_S
    guard.note(batch(5, producer=9), TOO_FEW, ProducerStateManager())
    assert list(guard.by_producer) == [9]


def test_a_repetition_that_was_refused_is_not_missing(guard: SequenceGuard) -> None:
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    assert passes(guard, batch(6), stored(batch(5), batch(6)))


def test_the_first_that_is_missing_counts_behind_refused_repetitions(guard: SequenceGuard) -> None:
    """After a restart, a producer repeats batches that are in the log, and the next ones with them."""
    known = stored(batch(4), batch(5))
    for sequence in (4, 5, 6):
        guard.note(batch(sequence), TOO_FEW, known)
    assert not passes(guard, batch(7), known), "or it would be out of order"
    assert passes(guard, batch(5), known)
    assert passes(guard, batch(6), known)


def test_only_what_a_client_tries_again_counts(guard: SequenceGuard) -> None:
    guard.note(batch(5), ApiError(ErrorCode.INVALID_RECORD), ProducerStateManager())
    guard.note(build_batch([Record(b"k", b"v", NOW)]), TOO_FEW, ProducerStateManager())
    guard.note(b"short", TOO_FEW, ProducerStateManager())
    assert not guard.by_producer
    guard.note(batch(5), TOO_FEW, ProducerStateManager())
    guard.check(b"short", ProducerStateManager())


def test_a_header_is_enough(guard: SequenceGuard) -> None:
    guard.note(batch(5)[:HEADER_SIZE], TOO_FEW, ProducerStateManager())
    assert not passes(guard, batch(6)[:HEADER_SIZE], ProducerStateManager())


def test_there_is_a_bound(guard: SequenceGuard) -> None:
    for producer in range(MOST + 1):
        guard.note(batch(5, producer=producer), TOO_FEW, ProducerStateManager())
    assert len(guard.by_producer) == MOST
    assert passes(guard, batch(6, producer=0), ProducerStateManager())
    assert not passes(guard, batch(6, producer=1), ProducerStateManager())


def test_coordinators_batches_have_no_order(guard: SequenceGuard) -> None:
    guard.note(batch(INT32_MAX), TOO_FEW, ProducerStateManager())
    marker = batch(-1)
    assert passes(guard, marker, ProducerStateManager())
    assert not passes(guard, batch(0), ProducerStateManager())
    guard.note(batch(-1, producer=8), TOO_FEW, ProducerStateManager())
    assert passes(guard, batch(0, producer=8), ProducerStateManager())
    guard.note(batch(0, producer=8), TOO_FEW, ProducerStateManager())
    assert not passes(guard, batch(1, producer=8), ProducerStateManager()), "a client's first has"
