"""What a Cluster's spec states of the security of its listeners, and what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.cluster_looks import INTERNAL, East, answers, partition

PASSWORDS = {"authentication": {"type": "ScramSha512"}}
STATED = {"authentication": {"type": "None"}, "tls": "Disabled"}
SECURE = {"tls": "Enabled", **PASSWORDS}
OUTSIDE = {"name": "external", "type": "LoadBalancer", "port": 9094, "advertisedHost": "{broker}.example"}
HEALTHY = answers(partition("a", 0, 0, 1, 2))


def running(**spec: Any) -> East:
    east = East(3, {"clusterId": "id"}, **spec)
    east.look()
    east.run(True, True, True)
    east.look(**HEALTHY)
    return east


def names(east: East) -> str:
    """Which listeners the condition says leave what out."""
    found = east.says("OpenListeners")
    if found is None:
        return ""
    status, reason, words = found
    assert (status, reason) == ("True", "NotStated")
    return words.partition("so open: ")[2].partition(".")[0]


def protocols(east: East) -> dict[str, str]:
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    config = dict(line.split("=", 1) for line in text.splitlines())
    return dict(one.split(":") for one in config["listener.security.protocol.map"].split(","))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "authentication and tls of internal"),
        ({"listeners": [INTERNAL]}, "authentication and tls of internal"),
        ({"listeners": [{**INTERNAL, **PASSWORDS}]}, "tls of internal"),
        ({"listeners": [{**INTERNAL, "tls": "Enabled"}]}, "authentication of internal"),
        (
            {"listeners": [INTERNAL, {**OUTSIDE, "allowPlaintext": True}]},
            "authentication and tls of internal; authentication of external",
        ),
        ({"listenerDefaults": {"tls": "Disabled"}}, "authentication of internal"),
        ({"listenerDefaults": STATED}, ""),
        ({"listeners": [INTERNAL], "listenerDefaults": STATED}, ""),
        ({"listeners": [{**INTERNAL, **STATED}, {**OUTSIDE, **SECURE}]}, ""),
        ({"listenerDefaults": SECURE}, ""),
    ],
)
def test_listeners_that_do_not_state_that_they_are_open(spec: dict[str, Any], expected: str) -> None:
    assert names(East(3, **spec)) == "", "not looked at yet"
    east = running(**spec)
    assert names(east) == expected
    ready = east.says()
    assert ready is not None
    assert ready[0] == "True", "the condition concerns no broker"


@pytest.mark.parametrize(
    "stated",
    [{"listenerDefaults": STATED}, {"listeners": [{**INTERNAL, **STATED}]}],
    ids=["for all", "in the listener"],
)
def test_a_cluster_that_states_what_it_has_restarts_nothing(stated: dict[str, Any]) -> None:
    east = running()
    assert names(east) != ""
    before = dict(east.kube.objects["ConfigMap", "east-brokers"]["data"])
    east.change(3, **stated)
    east.look(**HEALTHY)
    assert names(east) == ""
    assert east.says("RollingUpdate") is None
    assert east.kube.objects["ConfigMap", "east-brokers"]["data"] == before


def test_a_paused_cluster_keeps_the_condition() -> None:
    east = running()
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.look(**HEALTHY)
    assert names(east) == "authentication and tls of internal"


def test_defaults_close_the_added_listener() -> None:
    east = running(listenerDefaults=SECURE)
    assert protocols(east) == {
        "INTERNAL": "SASL_SSL",
        "REPLICATION-9091": "SSL",
        "PLATFORM-9090": "SASL_SSL",
    }
    (listener,) = east.status["listeners"]
    assert (listener["name"], listener["protocol"]) == ("internal", "SASL_SSL")
    assert east.status["platform"]["internal"] == "Closed"


def test_a_listener_outweighs_the_defaults() -> None:
    plain = {**OUTSIDE, "allowPlaintext": True}
    east = running(listeners=[{**INTERNAL, "tls": "Disabled"}, plain], listenerDefaults=SECURE)
    assert protocols(east) == {
        "INTERNAL": "SASL_PLAINTEXT",
        "EXTERNAL": "SASL_PLAINTEXT",
        "REPLICATION-9091": "SASL_PLAINTEXT",
    }


@pytest.mark.parametrize("listener", [INTERNAL, {**INTERNAL, **STATED}], ids=["unstated", "stated"])
def test_clients_without_a_login_may_do_everything_where_the_internal_listener_is_open(
    listener: dict[str, Any],
) -> None:
    east = running(listeners=[listener], authorization={"type": "Simple", "superUsers": ["admin"]})
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    assert "super.users=User:ANONYMOUS;User:admin" in text.splitlines()
