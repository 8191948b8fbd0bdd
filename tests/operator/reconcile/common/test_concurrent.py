"""Calls for the resources of a batch: some at once, in order, and none left running."""

from __future__ import annotations

import threading

import pytest

from millstream_operator.reconcile.common.concurrent import AT_ONCE, concurrently


def test_results_keep_the_order_of_the_items() -> None:
    barrier = threading.Barrier(AT_ONCE, timeout=30)

    def call(number: int) -> int:
        barrier.wait()  # breaks unless others run meanwhile
        return number * number

    assert concurrently(call, range(2 * AT_ONCE)) == [number * number for number in range(2 * AT_ONCE)]


def test_only_so_many_run_at_once() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def call(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    concurrently(call, range(100))
    assert most <= AT_ONCE


def test_one_item_needs_no_thread() -> None:
    assert concurrently(lambda _: threading.current_thread(), ["item"]) == [threading.current_thread()]
    assert concurrently(lambda _: 1, []) == []


def test_the_first_error_is_raised_once_all_have_ended() -> None:
    ended = []

    def call(number: int) -> None:
        if number in (1, 2):
            raise ValueError(str(number))
        ended.append(number)

    with pytest.raises(ValueError, match="1"):
        concurrently(call, range(10))
    assert sorted(ended) == [0, *range(3, 10)]
