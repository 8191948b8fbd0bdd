"""Whether two patterns share a topic name, compared with RE2 and the workers' regular expressions."""

from __future__ import annotations

import re
import time

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_operator.models import MirrorMaker, decode_as
from millstream_operator.reconcile.mirror.rules import check_loop, endpoints_of
from millstream_operator.validation.overlap import INTERNAL, Names, Shared, shared

LETTERS = "ab.-_0"

literals = st.sampled_from(["a", "b", "0", "-", "_", r"\.", "[.]", "ab", "a-b", "A"])
classes = st.sampled_from(
    [".", "[ab]", "[^a]", "[a-c0-9]", "[-.]", r"\d", r"\w", r"[\d-]", r"\D", "[]a]", r"[\.b]"]
)
patterns = st.recursive(
    literals | classes,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda text: f"(?i:{text})"),
        inner.map(lambda text: f"^{text}$"),
        inner.map(lambda text: f"(?P<part>{text})" if "?P<" not in text else text),
    ),
    max_leaves=8,
)
lists = st.lists(patterns, min_size=1, max_size=3).map(tuple)
topic_names = st.text(LETTERS, min_size=1, max_size=5)


def includes(names: Names, name: str) -> bool:
    """Whether a worker includes the topic."""
    name = names.prefix + name

    def one_of(several: tuple[str, ...]) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in several)

    return one_of(names.include) and not one_of((*names.exclude, INTERNAL))


def compiles(*several: str) -> bool:
    try:
        for pattern in several:
            re.compile(pattern)
    except re.error:
        return False
    return True


@given(pattern=patterns, name=topic_names)
@settings(max_examples=400, deadline=None)
def test_a_pattern_matches_what_operator_and_workers_match(pattern: str, name: str) -> None:
    literal = Names(("".join(f"[{char}]" for char in name),))
    if not compiles(pattern) or name.startswith("__"):
        return
    expected = re.fullmatch(pattern, name) is not None
    assert (re2.fullmatch(pattern, name) is not None) is expected
    assert (shared(frozenset({Names((pattern,)), literal})) is not None) is expected


@given(
    wanted=st.frozensets(
        st.builds(Names, lists, lists | st.just(()), st.sampled_from(["", "a."])), min_size=2, max_size=4
    ),
    name=topic_names,
)
@settings(max_examples=400, deadline=None)
def test_no_shared_name_is_missed_and_none_is_made_up(wanted: frozenset[Names], name: str) -> None:
    if not compiles(*(pattern for names in wanted for pattern in names.include + names.exclude)):
        return
    found = shared(wanted)
    if found is None:
        assert not all(includes(names, name) for names in wanted)
    elif found.name is not None:
        assert all(includes(names, found.name) for names in wanted)


@given(one=lists)
@settings(deadline=None)
def test_patterns_share_names_with_themselves(one: tuple[str, ...]) -> None:
    assert (shared(frozenset({Names(one)})) is None) == (
        shared(frozenset({Names(one), Names(one[::-1])})) is None
    )


@pytest.mark.parametrize(
    "pattern", [r"\pL+", "a**", "[[:alpha:]]", "a{,3}", "(?x)a b", r"\ba", "(?i)ſ", "(" * 60 + "a" + ")" * 60]
)
def test_what_is_not_known_may_match_anything(pattern: str) -> None:
    found = shared(frozenset({Names((pattern,)), Names(("orders",))}))
    assert found is not None
    assert found.name is None
    assert "cannot be compared" in found.why
    known = shared(frozenset({Names(("orders",)), Names(("orders.*",), (pattern,))}))
    assert known is not None, "nor can one say what it excludes"


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){30}", "((a{1000}){1000}){1000}", "(a+)+b", ".*" * 500, ".*x{200}.*"]
)
def test_hostile_patterns_take_a_bounded_time(pattern: str) -> None:
    begun = time.thread_time()
    shared(frozenset({Names((pattern,)), Names((".*[0-9]",), ("(a|b)*b(a|b){25}",))}))
    assert time.thread_time() - begun < 60, (
        "less than a second of its processor, also on one that is much slower"
    )


def test_names_have_an_end() -> None:
    assert shared(frozenset({Names(("a{249}",))})) is not None
    assert shared(frozenset({Names(("a{250}",))})) is None
    assert shared(frozenset({Names(("(b[.])?a{248}",)), Names(("(b[.])?a{248}",), (), "b.")})) is None


def test_internal_topics_are_nobodys() -> None:
    assert shared(frozenset({Names(("__consumer_offsets",))})) is None


CLUSTERS = "wxyz"


def mirror(number: int, source: str, target: str, include: tuple[str, ...]) -> MirrorMaker:
    manifest = {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "MirrorMaker",
        "metadata": {
            "name": f"m{number}",
            "uid": f"u{number}",
            "creationTimestamp": f"2026-01-{number + 1:02}T00:00:00Z",
        },
        "spec": {
            "sources": [{"name": source, "bootstrap": f"{source}:9092"}],
            "target": {"bootstrap": f"{target}:9092"},
            "topics": {"include": list(include)},
        },
    }
    return decode_as(MirrorMaker, manifest)


@given(data=st.data(), size=st.integers(2, 4), name=topic_names)
@settings(max_examples=300, deadline=None)
def test_no_circle_that_shares_a_topic_passes(data: st.DataObject, size: int, name: str) -> None:
    circle = CLUSTERS[:size]
    literal = "".join(f"[{char}]" for char in name)
    chosen = lists | lists.map(lambda several: (*several, literal))
    ages = data.draw(st.permutations(range(size)))
    mirrors = [
        mirror(age, circle[index], circle[(index + 1) % size], data.draw(chosen))
        for index, age in enumerate(ages)
    ]
    patterns_of = [one.spec.topics.include for one in mirrors]
    if not compiles(*(pattern for several in patterns_of for pattern in several)):
        return
    known = [(one, *endpoints_of(one, {})) for one in mirrors]
    refused = [one.name for one, sources, target in known if check_loop(one, sources, target, known)]
    if all(includes(Names(several), name) for several in patterns_of):
        assert refused == [f"m{size - 1}"], "the youngest closes the circle"
    assert refused in ([], [f"m{size - 1}"])


def test_a_comparison_ends_however_large_its_patterns_are() -> None:
    """Few tuples of states, each of thousands of states: the author of a mirror could fill the operator's memory."""
    wanted = frozenset(
        Names((f"(a|b)*a(a|b){{6}}{end}", f"([ab]?){{100}}{other}")) for end, other in ("xy", "zw")
    )
    assert shared(wanted) == Shared(None, "the patterns are too large to be compared")
