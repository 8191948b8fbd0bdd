"""The topics that a group consumes, according to its members' metadata."""

from __future__ import annotations

import pytest

from millstream_broker.groups.group import Group, Member, subscribed_topics
from millstream_harness.group_machine import subscription


def group_of(*metadata: bytes, protocol_type: str = "consumer") -> Group:
    """A group at the start of a generation; its members have this metadata."""
    group = Group("g", generation=1, protocol_type=protocol_type)
    for number, each in enumerate(metadata):
        group.add(Member(f"m{number}", None, "c", "/h", 1, 1, (("range", each),)), protocol_type)
    group.protocol = "range" if metadata else None
    group.note_subscriptions()
    return group


def test_the_topics_of_a_subscription_are_read_whatever_follows_them() -> None:
    assert subscribed_topics(subscription("t", "longer", "x") + b"user data") == {"t", "longer", "x"}
    assert subscribed_topics(subscription()) == set()


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\x01\x00\x00\x00", id="ends within the count"),
        pytest.param(b"\x00\x01\xff\xff\xff\xff", id="negative count"),
        pytest.param(b"\x00\x01\x00\x00\x00\x02\x00\x01t", id="one topic of two"),
        pytest.param(b"\x00\x01\x00\x00\x00\x01\x00", id="ends within a length"),
        pytest.param(b"\x00\x01\x00\x00\x00\x01\x00\x03ab", id="ends within a name"),
        pytest.param(b"\x00\x01\x00\x00\x00\x01\xff\xffab", id="negative length"),
        pytest.param(b"\x00\x01\x00\x00\x00\x01\x00\x02\xc3\x28", id="not UTF-8"),
    ],
)
def test_what_is_no_subscription_names_no_topics(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None


def test_a_group_consumes_what_any_of_its_members_does() -> None:
    group = group_of(subscription("a", "b"), subscription("b", "c"))
    assert [topic for topic in "abcd" if group.is_subscribed_to(topic)] == ["a", "b", "c"]


def test_a_group_with_a_consumer_of_whom_it_is_not_known_may_consume_any_topic() -> None:
    assert group_of(subscription("a"), b"\x00").is_subscribed_to("d")


def test_a_group_without_members_consumes_nothing() -> None:
    assert not group_of().is_subscribed_to("a")


def test_a_group_of_another_kind_consumes_no_topics_that_are_known() -> None:
    group = group_of(subscription("a"), protocol_type="connect")
    assert group.subscribed is None
    assert not group.is_subscribed_to("a")
