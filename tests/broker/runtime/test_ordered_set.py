"""Sets in the order in which their elements were added."""

from __future__ import annotations

from millstream_broker.runtime.ordered_set import OrderedSet


def test_elements_keep_the_order_in_which_they_were_added() -> None:
    some = OrderedSet("cab")
    some.update("dc")
    some.add("e")
    some.discard("a")
    some.discard("x")
    assert [*some] == ["c", "b", "d", "e"]
    assert ("d" in some, "a" in some, len(some)) == (True, False, 4)
    some.discard("c")
    some.add("c")
    assert [*some] == ["b", "d", "e", "c"]


def test_intersection_has_the_order_of_the_first_set() -> None:
    assert [*(OrderedSet("dcba") & {"a", "b", "d"})] == ["d", "b", "a"]


def test_sets_of_the_same_elements_are_equal() -> None:
    assert OrderedSet("ab") == OrderedSet("ba") == {"a", "b"}
