"""A set that is iterated in the order in which its elements were added.

The order of a `set` of names depends on the process (PYTHONHASHSEED). A state machine that iterates one would do the
same events in another order each time, and a simulation could not be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet, Set
from typing import TypeVar

T = TypeVar("T")


class OrderedSet(MutableSet[T]):
    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._elements = dict.fromkeys(elements)

    def __contains__(self, element: object) -> bool:
        return element in self._elements

    def __iter__(self) -> Iterator[T]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __and__(self, other: Set[object]) -> OrderedSet[T]:
        return OrderedSet(element for element in self._elements if element in other)

    def add(self, element: T) -> None:
        self._elements[element] = None

    def discard(self, element: T) -> None:
        self._elements.pop(element, None)

    def update(self, elements: Iterable[T]) -> None:
        self._elements.update(dict.fromkeys(elements))
