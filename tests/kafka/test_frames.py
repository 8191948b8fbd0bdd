"""Buffers of responses: reused only without any remaining view of them, and bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream_kafka.client.frames import MOST_KEPT, SMALLEST, Frames

MB = 1 << 20


def kept(frames: Frames) -> int:
    return sum(map(len, frames._kept))


def place(view: memoryview) -> int:
    """Address of the underlying buffer: a reference to the buffer itself would count as a reader."""
    return id(view.obj)


def test_a_buffer_is_used_again_when_its_last_view_is_gone() -> None:
    frames = Frames()
    first = frames.take(MB)
    where = place(first)
    part = first[10:20]
    part[:] = b"0123456789"
    del first
    second = frames.take(MB)
    assert place(second) != where
    second[:] = bytes(MB)
    assert bytes(part) == b"0123456789"
    del part
    assert place(frames.take(MB - 5)) == where


@pytest.mark.parametrize("hold", [memoryview, lambda view: [view[1:]], lambda view: view.cast("c")[5:]])
def test_whatever_holds_a_part_of_it_keeps_it(hold: Callable[[memoryview], object]) -> None:
    frames = Frames()
    view = frames.take(MB)
    where = place(view)
    held = hold(view)
    del view
    others = {place(frames.take(MB)) for _ in range(3)}
    assert len(others) == 1  # the second one, again and again
    assert where not in others
    del held
    assert place(frames.take(MB)) == where


@pytest.mark.parametrize(
    "size", [1, SMALLEST - 1, SMALLEST, SMALLEST + 1, 3 * MB + 17, MOST_KEPT, 5 * MOST_KEPT]
)
def test_it_has_the_size_that_was_asked_for(size: int) -> None:
    frames = Frames()
    for _ in range(3):
        frame = frames.take(size)
        assert len(frame) == size
        assert not frame.readonly
        frame[-1] = 1
    assert kept(frames) <= MOST_KEPT


def test_buffers_in_use_do_not_pile_up() -> None:
    frames = Frames()
    views = [frames.take(MB) for _ in range(20)]
    assert kept(frames) <= MOST_KEPT
    assert len(set(map(place, views))) == 20


def test_an_unused_buffer_of_another_size_makes_room() -> None:
    frames = Frames()
    frames.take(MB)
    frames.take(MOST_KEPT)
    assert kept(frames) == MOST_KEPT
    small = frames.take(MB)
    assert kept(frames) == MB
    frames.take(MOST_KEPT)
    assert kept(frames) == MB  # in use: the large one served one response
    assert len(small) == MB


def test_a_small_response_does_not_occupy_a_large_buffer() -> None:
    frames = Frames()
    large = place(frames.take(4 * MB))
    assert place(frames.take(MB)) != large
