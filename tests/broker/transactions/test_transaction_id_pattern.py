"""Patterns of transactional ids: as those of a library, and in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.transactions.id_pattern import MOST_GROUPS, IdPattern, PatternError

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\W", "(a|b)", "(?:ab|c)", "[a-c1-3]", "(a*|b)", r"\.", "-"]
)
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])
PATTERNS = st.lists(st.tuples(ATOMS, QUANTIFIERS), max_size=5).map(
    lambda parts: "".join(atom + quantifier for atom, quantifier in parts)
)


@given(PATTERNS, PATTERNS, st.lists(st.text("abc12.-", max_size=8), min_size=5))
def test_pattern_matches_what_a_library_matches(left: str, right: str, texts: list[str]) -> None:
    for pattern in (left, f"{left}|{right}", f"({left})*{right}", f"^{left}$"):
        found, expected = IdPattern(pattern), re.compile(pattern)
        for text in texts:
            assert found.matches(text) == bool(expected.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "[", "[]", "*", "a**", "a|*", "\\", "\\1", "(?=a)", "[b-a]", "a{2,1}", "a{1001}", "a^b"],
    ids=str,
)
def test_pattern_that_is_not_valid_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        IdPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 1000 + ")" * 1000,
        "(a)" * 5 + "(" * (MOST_GROUPS + 1) + "a" + ")" * (MOST_GROUPS + 1),
        "(((a{99}){99}){99}){99}",
    ],
    ids=["deep", "deep after others", "large"],
)
def test_pattern_that_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        IdPattern(pattern)


def test_pattern_that_takes_forever_elsewhere_is_matched() -> None:
    found = IdPattern("(a*)*(a|a)*(.*a.*){3}b")
    assert not found.matches("a" * 32_767)
    assert found.matches("a" * 32_766 + "b")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a{2,}", "aaaa"),
        ("[a-a]", "a"),
        ("[a-]", "-"),
        ("(" * MOST_GROUPS + "a" + ")" * MOST_GROUPS, "a"),
        ("(a)" * (MOST_GROUPS + 1), "a" * (MOST_GROUPS + 1)),
        ("a{1000}", "a" * 1000),
        ("a{0,1000}", "a" * 1000),
        ("a{x}", "a{x}"),
        ("a{1,x}", "a{1,x}"),
        ("[a-]b", "-b"),
        ("[^a]", "^"),
        ("[\\d]", "5"),
        ("[\\da]", "a"),
    ],
    ids=[
        "open end",
        "range of one",
        "hyphen at the end",
        "as deep as is allowed",
        "many groups",
        "as often as is allowed",
        "at most as often",
        "braces without a number",
        "braces without a second number",
        "hyphen before the end",
        "all but one",
        "class in a set",
        "class and character",
    ],
)
def test_pattern_at_a_limit_matches(pattern: str, text: str) -> None:
    assert IdPattern(pattern).matches(text)
