"""Work in steps: a generator that yields after each of many elements, and returns its result. No input or output."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def to_the_end(steps: Steps[T]) -> T:
    """All at once: in a thread, or where it is known to be little."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def portions(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """All of them in lists of so many: what takes no time for one element is done for many in a step."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
