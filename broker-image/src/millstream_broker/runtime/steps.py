"""Work in steps: a generator that yields after each of many elements, and returns its result. No input or output."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def to_the_end(steps: Steps[T]) -> T:
    """Run all steps at once: in a thread, or for little work."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def portions(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, for steps that handle many cheap items."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
