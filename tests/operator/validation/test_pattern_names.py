"""Patterns as the names and beginnings of access rules: never less than they select, and as little as may be."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from millstream_operator.validation.pattern_names import Covered, covered, exactly


def shown(found: frozenset[Covered]) -> set[str]:
    return {each.text + ("*" if each.is_prefix else "") for each in found}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders*"}),
        ("orders[.](eu|us)", {"orders.eu", "orders.us"}),
        (
            r"orders\.(eu|us)-[0-9]+",
            {f"orders.{each}-{digit}*" for each in ("eu", "us") for digit in range(10)},
        ),
        ("orders[a-z]+[0-9]", {f"orders{chr(each)}*" for each in range(97, 123)}),
        ("orders..", {"orders*"}),
        ("a|b", {"a", "b"}),
        ("orders(-test)?", {"orders", "orders-test"}),
        ("(ab)+", {"ab*"}),
        ("(ab)*", {"*"}),
        ("a{0}b", {"b"}),
        (".*", {"*"}),
        ("[a-z].*", {f"{chr(each)}*" for each in range(97, 123)}),
        ("^orders$", {"orders"}),
        (r"\pL", {"*"}),
        ("", set()),
        ("é", set()),
    ],
)
def test_pattern_is_names_and_beginnings(pattern: str, names: set[str]) -> None:
    assert shown(covered([pattern])) == names


def test_beginning_includes_longer_ones_of_other_patterns() -> None:
    assert shown(covered(["orders-eu", "orders.*", "users", "orders-us.*"])) == {"orders*", "users"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("orders", {"orders"}),
        ("orders[.].*", {"orders.*"}),
        ("orders.eu", {"orders.eu"}),
        ("^orders$", {"orders"}),
        ("orders[0-9].*", set()),
        ("orders.+", set()),
        (".*", set()),
        ("a|b", set()),
        ("[", set()),
    ],
)
def test_excluded_names_are_those_that_a_rule_can_say(pattern: str, names: set[str]) -> None:
    assert shown(exactly([pattern])) == names


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "-", "(?i:b)", "^", "$"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("({0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0}", "{1,2}", "{2}"])).map(
            "({0[0]}){0[1]}".format
        ),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("abB-", min_size=1, max_size=5))
def test_every_selected_name_is_covered_and_no_other_is_excluded(pattern: str, name: str) -> None:
    selected = re2.fullmatch(pattern, name) is not None
    is_covered, is_excluded = (
        any(each.covers(Covered(name, False)) for each in found)
        for found in (covered([pattern]), exactly([pattern]))
    )
    assert not selected or is_covered
    assert selected or not is_excluded
