"""Changes of a topic's settings: a broker with an older view brings no mirror's setting back, and removes none."""

from __future__ import annotations

import pytest

from millstream_broker.topic_rules.mirrored_topics import check_change, check_replaced
from millstream_kafka.mirror_source import KEY, PROMOTED, REJOINED
from millstream_kafka.protocol.errors import ApiError

REPLICA = "c/AAAAAAAAQACAAAAAAAAAAQ"
REJOINS = f"{REPLICA}/rejoin"
OTHER = {"retention.ms": "1"}


@pytest.mark.parametrize(
    ("before", "after"), [("", REJOINS), (REPLICA, ""), (REJOINS, ""), (REJOINS, REPLICA), ("", REPLICA)]
)
def test_only_a_request_that_names_the_setting_changes_it(before: str, after: str) -> None:
    """For example, the setting was deleted by another broker, and this one replaces all with what it knows."""
    with pytest.raises(ApiError, match="has changed since this broker last saw its settings"):
        check_change({KEY: before} if before else {}, {KEY: after, **OTHER}, ["retention.ms"])


@pytest.mark.parametrize(
    ("before", "after"), [("", REJOINS), (REPLICA, ""), (REJOINS, ""), (REJOINS, REPLICA)]
)
def test_steps_that_are_allowed(before: str, after: str) -> None:
    check_change({KEY: before, REJOINED: "1"}, {KEY: after, REJOINED: "2"}, [KEY, REJOINED])


@pytest.mark.parametrize(
    ("last", "present", "why"),
    [
        ("1", "1", "was promoted, or given up, after request 1"),
        ("2,1", "1,2", "was promoted, or given up, after request 1"),
        ("", "", "under a request"),
        ("1", "", "under a request"),
    ],
)
def test_an_ordinary_topic_rejoins_once_for_each_request(last: str, present: str, why: str) -> None:
    """Also if a worker stalled before this request, and the topic was promoted since."""
    with pytest.raises(ApiError, match=why):
        check_change({KEY: "", REJOINED: last}, {KEY: REJOINS, REJOINED: present}, [KEY, REJOINED])


@pytest.mark.parametrize(("before", "after"), [("", REPLICA), (REPLICA, REJOINS), (REJOINS, f"d{REJOINS}")])
def test_steps_that_are_not_allowed(before: str, after: str) -> None:
    with pytest.raises(ApiError, match="can be set only when a topic is created"):
        check_change({KEY: before}, {KEY: after}, [KEY])


@pytest.mark.parametrize(
    ("key", "effect"),
    [(REJOINED, "let a mirror make the topic read-only"), (PROMOTED, "let an old request promote the topic")],
)
def test_requests_are_forgotten_only_by_name(key: str, effect: str) -> None:
    before = {key: "1", **OTHER}
    with pytest.raises(ApiError, match=f"{key} has changed since"):
        check_change(before, OTHER, ["retention.ms"])
    check_change(before, OTHER, [key])
    with pytest.raises(ApiError, match=f"would delete {key} and {effect} again"):
        check_replaced(before, OTHER)
    check_replaced(before, before)


@pytest.mark.parametrize("value", ["", REPLICA, REJOINS])
def test_other_settings_change_freely(value: str) -> None:
    check_change({KEY: value, **OTHER}, {KEY: value}, ["retention.ms"])
