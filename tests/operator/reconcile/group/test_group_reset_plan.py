"""The positions that result from a request to reset a group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from millstream_harness.in_memory import stored
from millstream_harness.manifests import group
from millstream_operator.kafka.records import GroupMember, Partition, TopicIdentity
from millstream_operator.models import ConsumerGroup, LastReset, Reset, ResetOffset, decode_as
from millstream_operator.reconcile.group.reset import (
    Logs,
    Refused,
    plan,
    positions,
    steps,
    topics_of,
    waiting_words,
)

NOW = datetime(2026, 11, 24, tzinfo=UTC)
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
LOGS = Logs(
    {"a": TopicIdentity("id-a", 2), "b": TopicIdentity("id-b", 1)},
    {A0: 2, A1: 0, B0: 0},
    {A0: 10, A1: 20, B0: 30},
    {A0: 7, A1: -1, B0: 5},
)
COMMITTED = {A0: 4, B0: 30}


def planned(to: Any, topics: tuple[str, ...] = ("a", "b"), **more: Any) -> dict[Partition, int] | str:
    """The resulting positions of a request, or why it is refused."""
    found = plan(Reset(request_id="r", to=to, **more), topics, COMMITTED, LOGS, NOW)
    return found.message if isinstance(found, Refused) else positions(found)


def offsets(*wanted: tuple[str, int, int]) -> tuple[ResetOffset, ...]:
    return tuple(ResetOffset(topic=topic, partition=index, offset=at) for topic, index, at in wanted)


def test_where_a_time_leads() -> None:
    """It leads to the first record at or after it, or to the end of a log without one."""
    assert planned("Timestamp", timestamp=NOW) == {A0: 7, A1: 20, B0: 5}


def test_a_shift_moves_what_was_committed_and_stays_in_the_log() -> None:
    assert planned("Shift", shift=-1) == {A0: 3, B0: 29}
    assert planned("Shift", shift=-100) == {A0: 2, B0: 0}
    assert planned("Shift", shift=5) == {A0: 9, B0: 30}


def test_offsets_set_what_they_name() -> None:
    assert planned("Offsets", ("a",), offsets=offsets(("a", 1, 3))) == {A1: 3}
    assert planned("Offsets", ("a",), offsets=offsets(("a", 0, 1), ("a", 1, 99))) == {A0: 2, A1: 20}


@pytest.mark.parametrize(
    ("to", "topics", "more", "words"),
    [
        ("Earliest", ("a", "nowhere"), {}, "there is no topic nowhere: "),
        ("Offsets", ("a",), {"offsets": offsets(("a", 2, 0))}, "offsets: a has 2 partitions, and no 2"),
        (
            "Offsets",
            ("a",),
            {"offsets": offsets(("a", 0, 3), ("a", 0, 4))},
            "offsets: a partition is there twice",
        ),
        (
            "Shift",
            ("a",),
            {"shift": -3, "on_out_of_range": "Refuse"},
            "outside the log: a-0 has 2 to 10, not 1; ",
        ),
        ("Shift", (), {"shift": 1}, "there is no position to reset: "),
    ],
)
def test_what_is_refused(to: Any, topics: tuple[str, ...], more: dict[str, Any], words: str) -> None:
    found = planned(to, topics, **more)
    assert isinstance(found, str)
    assert found.startswith(words)


def test_too_many_positions_are_refused() -> None:
    many = {Partition("a", index): 0 for index in range(10_001)}
    logs = Logs({"a": TopicIdentity("id", len(many))}, many, many, many)
    found = plan(Reset(request_id="r", to="Earliest"), ["a"], {}, logs, NOW)
    assert isinstance(found, Refused)
    assert found.message.startswith("10,001 positions are too many; at most: 10,000: ")


def test_the_topics_of_a_reset() -> None:
    one = decode_as(ConsumerGroup, stored(group("watch", topics=["b"])))
    assert topics_of(one, Reset(request_id="r", to="Latest"), COMMITTED) == ["a", "b"]
    assert topics_of(one, Reset(request_id="r", to="Latest", topics=("b",)), COMMITTED) == ["b"]
    assert topics_of(one, Reset(request_id="r", to="Offsets", offsets=offsets(("c", 0, 0))), COMMITTED) == [
        "c"
    ]


def test_a_reset_names_those_for_whom_it_waits() -> None:
    members = [GroupMember(f"c-{number}", "10.0.0.1", ()) for number in range(7)]
    words = ", ".join(f"c-{number} (10.0.0.1)" for number in range(5))
    assert waiting_words(members) == f"waiting until the group has no members: stop {words} and 2 more"


def test_steps_cover_all_positions_in_order() -> None:
    last = plan(Reset(request_id="r", to="Latest"), ["a", "b"], {}, LOGS, NOW)
    assert isinstance(last, LastReset)
    assert steps(last) == [positions(last)]
