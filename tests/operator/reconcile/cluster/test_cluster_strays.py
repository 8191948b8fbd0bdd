"""The condition `Strays` of a Cluster: logs that fit no topic."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.cluster_looks import SETTLED, SOON, answers, running
from millstream_operator.kafka.records import AdminError, StrayLog
from millstream_operator.models.conditions import ConditionType
from millstream_operator.reconcile.common.strays import holders
from millstream_operator.state.event_rules import events_of
from millstream_operator.state.metrics import UNEXPECTED

STRAYS = [StrayLog(2, "a", 3 << 20), StrayLog(0, "a", 3 << 19), StrayLog(2, "b", 0)]
WORDS = (
    "3 logs with 4.5 MiB on brokers 0, 2 fit no topic, and are kept as strays: if topics are missing, restore"
    " ZooKeeper, and they are their logs again; otherwise list them (millstream stray list) and remove them"
    " (millstream stray remove)"
)


def test_strays_are_counted_by_broker_and_size() -> None:
    east = running(3)
    assert east.look(**answers(strays=STRAYS)) == SETTLED
    assert east.says("Strays") == ("True", "StrayLogs", WORDS)
    assert east.says() == ("True", "AllBrokersReady", "all 3 brokers are ready")


def test_a_single_stray_is_in_the_singular() -> None:
    east = running(1)
    east.look(strays=STRAYS[1:2])
    _, _, words = east.says("Strays") or ("", "", "")
    assert words.startswith("1 log with 1.5 MiB on broker 0 fit no topic")


def test_the_condition_ends_with_the_last_stray() -> None:
    east = running(3)
    east.look(**answers(strays=STRAYS))
    east.look(**answers(strays=[]))
    assert east.says("Strays") is None


@pytest.mark.parametrize("what", ["unreachable", "not ready", "paused", "invalid"])
def test_the_condition_stays_while_brokers_are_not_asked(what: str) -> None:
    east = running(3)
    east.look(**answers(strays=STRAYS))
    more: dict[str, Any] = {}
    if what == "unreachable":
        more = {"strays": AdminError("none answers")}
    elif what == "not ready":
        east.run(False, False, False)
    elif what == "paused":
        east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    else:
        east.change(3, config={"broker.id": "1"})
    again = east.look(**answers(**more))
    assert east.says("Strays") == ("True", "StrayLogs", WORDS)
    if what == "unreachable":
        assert again == SOON


def test_strays_are_an_event_and_need_attention() -> None:
    east = running(3)
    before = dict(east.status)
    east.look(**answers(strays=STRAYS))
    (event,) = [one for one in events_of("Cluster", before, east.status) if one.reason == "StrayLogs"]
    assert (event.type, event.message) == ("Warning", WORDS)
    assert UNEXPECTED[ConditionType.STRAYS] == "False"


def test_holders_are_the_brokers_of_each_topic_id() -> None:
    assert [holders(STRAYS, "t", topic_id) for topic_id in ("a", "b", "c")] == [{0, 2}, {2}, set()]
