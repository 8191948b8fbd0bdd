"""Reconciles of a Cluster: changes to its objects and brokers, its status, and the time of the next one."""

from __future__ import annotations

import pytest

from millstream_harness.cluster_looks import (
    INTERNAL,
    LIVE,
    PUBLIC,
    SETTLED,
    SOON,
    East,
    answers,
    partition,
    running,
)
from millstream_operator.kafka.pools import AdminPool
from millstream_operator.kafka.records import AdminError, ConfigChange, Refusal


def test_a_new_cluster_is_made_and_looked_at_again_soon() -> None:
    east = East()
    assert east.look() == SOON
    assert east.touched == {"Service", "ConfigMap", "PodDisruptionBudget", "StatefulSet"}
    assert east.says() == ("False", "BrokersStarting", "0 of 1 brokers are ready")
    shown = {key: value for key, value in east.status.items() if key != "conditions"}
    assert shown == {
        "observedGeneration": 2,
        "brokers": {"desired": 1, "ready": 0},
        "bootstrap": "east-bootstrap.ns.svc:9092",
    }
    assert [one["type"] for one in east.status["conditions"]] == ["Ready", "OpenListeners"]


def test_a_cluster_that_is_ready_rests() -> None:
    east = East()
    east.look()
    east.run(True)
    assert east.look(cluster_id="abc") == SETTLED
    assert east.says() == ("True", "AllBrokersReady", "the broker is ready")
    assert (east.status["clusterId"], east.status["brokers"]) == ("abc", {"desired": 1, "ready": 1})
    assert east.touched == set()
    assert east.look() == SETTLED  # without a request to its broker
    assert east.kube.applied == []


def test_a_broker_that_becomes_ready_ends_the_pause_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """So Topics and groups do not wait for the end of a pause that began before."""
    retried: list[str] = []
    monkeypatch.setattr(AdminPool, "retry", lambda _, bootstrap: retried.append(bootstrap))
    east = East()
    east.look()
    assert retried == []
    east.run(True)
    for _ in range(2):
        east.look(cluster_id="abc")
        assert retried == ["east-bootstrap.ns.svc:9092"]


def test_the_cluster_id_is_asked_for_until_it_is_known() -> None:
    east = East()
    east.look()
    east.run(True)
    assert east.look(cluster_id=AdminError("not yet")) == SOON
    assert "clusterId" not in east.status
    assert east.says() == ("True", "AllBrokersReady", "the broker is ready")
    assert east.look(cluster_id="abc") == SETTLED


def test_brokers_at_rest_are_asked_once_each() -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(partition("a", 0, 0, 1, 2))) == SETTLED
    assert [request for request, *_ in east.memory.brokers.asked] == [
        "reassigning", "replicas", "brokers", "strays",
    ]  # fmt: skip
    assert east.says() == ("True", "AllBrokersReady", "all 3 brokers are ready")
    assert [one["type"] for one in east.status["conditions"]] == ["Ready", "OpenListeners"]


def test_brokers_wait_for_their_zookeeper() -> None:
    east = running(3)
    east.run(True, True, False)
    assert east.look(**answers()) == SOON
    assert east.says() == (
        "False",
        "ZooKeeperNotReady",
        "the brokers wait for ZooKeeper: no server answers at 127.0.0.1:1",
    )


def test_a_pod_that_is_not_ready_says_why() -> None:
    east = running(1)
    ended = {"terminated": {"exitCode": 1, "message": "no such key"}}
    east.run(False, containerStatuses=[{"ready": False, "state": ended}])
    assert east.look() == SOON
    assert east.says() == ("False", "BrokerFailed", "east-brokers-0: no such key")


def test_a_pod_whose_image_is_not_there_says_so() -> None:
    east = running(1)
    state = {"waiting": {"reason": "ErrImagePull"}}
    east.run(False, initContainerStatuses=[{"ready": False, "state": state}])
    east.look()
    assert east.says() == ("False", "BrokerFailed", "east-brokers-0: ErrImagePull")


def test_a_cluster_that_is_being_deleted_is_left_alone() -> None:
    east = East()
    east.metadata["deletionTimestamp"] = "2026-11-22T07:00:00Z"
    assert east.look() == SETTLED
    assert east.kube.applied == []


def test_a_paused_cluster_is_looked_at_and_not_changed() -> None:
    east = running(1)
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.change(2)
    assert east.look() == SETTLED
    assert east.touched == set()
    assert (east.says("Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert east.says() == ("False", "BrokersStarting", "1 of 2 brokers are ready")
    east.change(1)
    east.metadata["annotations"] = {}
    east.look(**answers())
    assert east.says("Paused") is None


def test_a_condition_that_stays_keeps_its_time() -> None:
    since = "2026-01-01T00:00:00Z"
    paused = {"type": "Paused", "status": "True", "reason": "ReconcilePaused", "message": ""}
    east = East(status={"conditions": [{**paused, "lastTransitionTime": since}]})
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.look()
    (paused,) = (one for one in east.status["conditions"] if one["type"] == "Paused")
    assert paused["lastTransitionTime"] == since


def test_a_spec_that_cannot_be_changes_nothing() -> None:
    east = running(1)
    east.change(1, config={"log.dirs": "/x"})
    assert east.look() == SOON
    assert (east.says() or ())[:2] == ("False", "InvalidConfig")
    assert east.touched == set()
    assert east.status["brokers"] == {"desired": 1, "ready": 1}


def test_brokers_wait_for_the_addresses_of_their_listeners() -> None:
    east = running(1)
    east.change(1, listeners=[INTERNAL, {**PUBLIC, "name": "wan", "port": 9095}, PUBLIC])
    assert east.look() == SOON
    assert east.says() == (
        "False",
        "ListenersPending",
        "waiting for the address of public of broker 0, wan of broker 0; the brokers are unchanged",
    )
    assert east.touched == {"Service"}


def given(east: East, *names: str) -> None:
    """Give these Services an address, as load balancers do."""
    for name in names:
        ingress = [{"ip": f"192.0.2.{name[-1]}"}]
        east.kube.objects["Service", name]["status"] = {"loadBalancer": {"ingress": ingress}}


def test_external_addresses_are_shown_and_stay_while_they_are_unknown() -> None:
    east = running(1)
    east.change(1, listeners=[INTERNAL, PUBLIC])
    east.look()
    assert "listeners" not in east.status
    given(east, "east-public-0")
    east.look(**answers())
    shown = [
        {
            "name": "public",
            "protocol": "PLAINTEXT",
            "bootstrap": "192.0.2.0:9094",
            "addresses": ["192.0.2.0:9094"],
        }
    ]
    assert east.status["listeners"] == shown
    del east.kube.objects["Service", "east-public-0"]["status"]
    east.look(**answers())
    assert east.status["listeners"] == shown
    east.change(1, listeners=[INTERNAL])
    east.look(**answers())
    assert "listeners" not in east.status


@pytest.mark.parametrize(
    ("bootstrap", "shown"),
    [({}, "10.0.0.0:30000,10.0.0.1:30001"), ({"nodePort": 31000}, "10.0.0.0:31000,10.0.0.1:31000")],
    ids=["it has no port yet", "it has"],
)
def test_brokers_on_node_ports_are_reached_at_their_nodes(bootstrap: dict[str, int], shown: str) -> None:
    east = running(2)
    nodes = {"name": "nodes", "type": "NodePort", "port": 9094, "nodePort": 30000, "bootstrap": bootstrap}
    nodes["allowPlaintext"] = True
    east.change(2, listeners=[INTERNAL, nodes])
    east.look(**answers())
    addresses = ["10.0.0.0:30000", "10.0.0.1:30001"]
    assert east.status["listeners"] == [
        {"name": "nodes", "protocol": "PLAINTEXT", "bootstrap": shown, "addresses": addresses}
    ]


def test_brokers_that_would_advertise_one_address_stay_as_they_are() -> None:
    east = running(2)
    east.change(2, listeners=[INTERNAL, {**PUBLIC, "advertisedHost": "kafka.example.com"}])
    assert east.look(**answers()) == SOON
    assert east.says() == (
        "False",
        "InvalidSpec",
        "spec.listeners: listener public: brokers 0 and 1 both advertise kafka.example.com:9094, so clients could not "
        "tell them apart: put {broker} into advertisedHost, or name both in brokers; the brokers are unchanged",
    )
    assert east.touched == {"Service"}


def test_a_listener_that_was_there_before_it_had_to_allow_plain_text_goes_on_with_a_warning() -> None:
    east = running(1)
    east.change(1, listeners=[INTERNAL, PUBLIC])
    east.look()
    given(east, "east-public-0")
    east.look(**answers())
    _, reason, words = east.says("Warning") or ("", "", "")
    assert reason == "PlaintextListener"
    assert "set allowPlaintext: true where you trust the network" in words
    east.change(1, listeners=[INTERNAL, {**PUBLIC, "allowPlaintext": True}])
    east.look(**answers())
    assert east.says("Warning") is None


def test_network_policies_come_and_go() -> None:
    east = running(1)
    east.look(**answers())
    assert "NetworkPolicy" not in east.touched
    east.change(1, networkPolicy={"enabled": True})
    east.look(**answers())
    assert {name for kind, name in east.kube.objects if kind == "NetworkPolicy"} == {"east-brokers"}
    east.change(1)
    east.look(**answers())
    assert {name for kind, name in east.kube.objects if kind == "NetworkPolicy"} == set()


def test_brokers_are_told_what_they_take_while_they_run() -> None:
    east = running(1)
    east.kube.objects["Cluster", "east"]["status"]["configKeys"] = ["log.segment.bytes", "log.roll.ms"]
    east.change(1, config=LIVE)
    told = {
        "log.retention.ms": "1",
        "compression.type": "zstd",
        "log.segment.bytes": "5",
        "log.roll.jitter.ms": "1",
    }
    east.look(**answers(brokers_config=told, change_brokers_config=None))
    change = ConfigChange({"log.retention.ms": "2"}, ("log.segment.bytes",))
    assert east.asked("change_brokers_config") == [change]
    assert east.status["configKeys"] == ["compression.type", "log.retention.ms"]
    assert "ConfigMap" in east.touched  # their files contain it, too


@pytest.mark.parametrize("config", [{"log.retention.ms": "2"}, {}])
def test_keys_are_set_alone_and_reset_alone(config: dict[str, str]) -> None:
    east = running(1)
    east.kube.objects["Cluster", "east"]["status"]["configKeys"] = [] if config else ["log.retention.ms"]
    east.change(1, config=config)
    there = {} if config else {"log.retention.ms": "1"}
    assert east.look(brokers_config=there, change_brokers_config=None) == SETTLED
    change = ConfigChange(config, () if config else ("log.retention.ms",))
    assert east.asked("change_brokers_config") == [change]
    assert east.status.get("configKeys") == (list(config) or None)


def test_brokers_that_have_it_already_are_told_nothing() -> None:
    east = running(1)
    east.change(1, config={"log.retention.ms": "2"})
    assert east.look(brokers_config={"log.retention.ms": "2"}) == SETTLED
    assert east.status["configKeys"] == ["log.retention.ms"]


def test_configuration_that_brokers_refuse_reaches_no_file() -> None:
    east = running(1)
    east.change(1, config=LIVE)
    refused = Refusal("INVALID_CONFIG", "2 is too little")
    assert east.look(brokers_config={}, change_brokers_config=refused) == SOON
    assert east.says() == (
        "False",
        "InvalidConfig",
        "spec.config: 2 is too little; the brokers are unchanged",
    )
    assert east.touched == set()
    assert "configKeys" not in east.status


def test_configuration_that_cannot_be_told_now_is_told_soon() -> None:
    east = running(1)
    east.change(1, config={"log.retention.ms": "2"})
    assert east.look(brokers_config=AdminError("nobody listens")) == SOON
    assert "configKeys" not in east.status
    assert "ConfigMap" in east.touched
    assert east.says() == ("True", "AllBrokersReady", "the broker is ready")


def test_brokers_that_start_take_configuration_from_their_files() -> None:
    east = East(config=LIVE)
    east.look()
    assert "configKeys" not in east.status
    assert east.memory.brokers.asked == []
