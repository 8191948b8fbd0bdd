"""How the ZooKeeper servers that the operator runs come to ask brokers for a login, step by step."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from millstream_harness.cluster_looks import SOON, East, answers, partition
from millstream_harness.cluster_objects import a_cluster
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.resources.owned import selector
from millstream_operator.resources.zookeeper import LOGIN
from millstream_operator.resources.zookeeper_login import ACCESS

ENSEMBLE = {"zookeeper": {"replicas": 3}}
HEALTHY = answers(partition("a", 0, 0, 1, 2))
SERVERS, BROKERS = "east-zookeeper-login", "east-brokers-zookeeper"
NO_RIGHT = KubeError(403, "forbidden", "secrets is forbidden")


def config(east: East) -> dict[str, str]:
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    found = dict(line.split("=", 1) for line in text.splitlines())
    return {key: value for key, value in found.items() if key.startswith("zookeeper.")}


def step(east: East) -> tuple[bool, bool, bool]:
    """Whether servers accept logins, brokers log in, and they restrict their nodes."""
    found = config(east)
    return (
        LOGIN in annotations(east, "east-zookeeper"),
        "zookeeper.sasl.jaas.config" in found,
        found.get("zookeeper.set.acl") == "true",
    )


def annotations(east: East, name: str) -> dict[str, str]:
    return east.kube.objects["StatefulSet", name]["spec"]["template"]["metadata"].get("annotations") or {}


def run_servers(east: East, *servers: int) -> None:
    """Replace the pods of these servers by such of the present template."""
    live = east.kube.objects["StatefulSet", "east-zookeeper"]
    live["status"] = {"updateRevision": "new", "readyReplicas": 3, "updatedReplicas": 3}
    for server in servers or (1, 2, 3):
        metadata = {
            "namespace": "ns",
            "name": f"east-zookeeper-{server}",
            "labels": {**selector(a_cluster(), "zookeeper"), "controller-revision-hash": "new"},
            "annotations": annotations(east, "east-zookeeper"),
        }
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        east.kube.put({"kind": "Pod", "metadata": metadata, "status": status})


def run_brokers(east: East, *brokers: int) -> None:
    """The same for brokers."""
    for broker in brokers or (0, 1, 2):
        east.kube.objects.pop(("Pod", f"east-brokers-{broker}"), None)
    east.run(True, True, True)


def look(east: East) -> float:
    return east.look(**HEALTHY, cluster_id="id")


def secret(east: East, name: str) -> dict[str, str]:
    data = east.kube.objects["Secret", name]["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def open_ensemble(**spec: Any) -> East:
    """A Cluster with an ensemble of an operator that knew no login: here one without a right to Secrets."""
    east = East(3, {"clusterId": "id"}, **ENSEMBLE, **spec)
    east.kube.refused["Secret"] = NO_RIGHT
    look(east)
    run_servers(east)
    run_brokers(east)
    look(east)
    assert step(east) == (False, False, False)
    return east


def secured() -> East:
    east = East(3, {"clusterId": "id"}, **ENSEMBLE)
    look(east)
    run_servers(east)
    run_brokers(east)
    look(east)
    return east


def test_a_new_ensemble_is_secured_from_its_first_server_on() -> None:
    east = East(3, **ENSEMBLE)
    assert east.look() == SOON
    assert step(east) == (True, True, True)
    login = secret(east, BROKERS)
    password = login["password"]
    assert secret(east, SERVERS)["password"] == password
    assert f'user_broker="{password}"' in secret(east, SERVERS)["zookeeper.jaas"]
    assert f'username="broker" password="{password}";' in login["login.properties"]
    texts = [str(one) for (kind, _), one in east.kube.objects.items() if kind != "Secret"]
    assert not any(password in text for text in texts)


def test_brokers_and_servers_find_their_files() -> None:
    east = secured()
    pod = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]["spec"]
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "work")
    (volume,) = (one for one in pod["volumes"] if one["name"] == "work")
    (item,) = volume["secret"]["items"]
    assert volume["secret"]["secretName"] == BROKERS
    assert config(east)["zookeeper.sasl.jaas.config"] == f"${{file:{mount['mountPath']}/{item['path']}:jaas}}"
    pod = east.kube.objects["StatefulSet", "east-zookeeper"]["spec"]["template"]["spec"]
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "run")
    (volume,) = (one for one in pod["volumes"] if one["name"] == "run")
    (item,) = volume["secret"]["items"]
    assert volume["secret"]["secretName"] == SERVERS
    env = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
    file = f"{mount['mountPath']}/{item['path']}"
    assert f"-Djava.security.auth.login.config={file}" in env["JAVA_TOOL_OPTIONS"].split()
    assert "authProvider.sasl=" in env["ZOO_CFG_EXTRA"]


def test_an_open_ensemble_is_secured_step_by_step() -> None:
    east = open_ensemble()
    del east.kube.refused["Secret"]
    look(east)
    assert step(east) == (True, False, False)
    run_servers(east, 1, 2)
    look(east)
    assert step(east) == (True, False, False), "server 3 would refuse a broker that logs in"
    run_servers(east, 3)
    look(east)
    assert step(east) == (True, True, False)
    assert east.says("RollingUpdate") == (
        "True",
        "Restarting",
        "restarting east-brokers-1 (Upgrade); 3 to go",
    )
    run_brokers(east, 0, 1)
    look(east)
    assert step(east) == (True, True, False), "broker 2 could not use restricted nodes"
    run_brokers(east, 2)
    look(east)
    assert step(east) == (True, True, True)
    run_brokers(east)
    look(east)
    assert east.says("RollingUpdate") is None
    assert east.says("Warning") is None


def test_steps_of_an_open_ensemble_wait_for_the_window_of_upgrades() -> None:
    closed = {"maintenance": {"windows": [{"start": "03:00", "end": "04:00"}]}}
    east = open_ensemble(**closed)
    del east.kube.refused["Secret"]
    look(east)
    assert step(east) == (False, False, False)
    assert (east.says("Upgrading") or ())[1] == "OutsideMaintenanceWindow"
    east.change(3, **ENSEMBLE)
    look(east)
    run_servers(east)
    east.change(3, **ENSEMBLE, **closed)
    east.kube.deleted.clear()
    look(east)
    assert step(east) == (True, True, False)
    assert east.kube.deleted == []
    assert (east.says("Upgrading") or ())[1] == "OutsideMaintenanceWindow"


def test_pods_that_an_earlier_stateful_set_has_left_count_too() -> None:
    east = open_ensemble()
    del east.kube.refused["Secret"], east.kube.objects["StatefulSet", "east-zookeeper"]
    del east.kube.objects["StatefulSet", "east-brokers"]
    look(east)
    assert step(east) == (True, False, False)
    run_servers(east)
    del east.kube.objects["StatefulSet", "east-brokers"]
    look(east)
    assert step(east) == (True, True, False)


def test_a_change_that_kubernetes_has_not_seen_does_not_count() -> None:
    """Until then it may create pods of the old template."""
    east = open_ensemble()
    del east.kube.refused["Secret"]
    look(east)
    run_servers(east)
    live = east.kube.objects["StatefulSet", "east-zookeeper"]
    live["metadata"]["generation"] = 2
    live["status"]["observedGeneration"] = 1
    look(east)
    assert step(east) == (True, False, False)
    live["status"]["observedGeneration"] = 2
    look(east)
    assert step(east) == (True, True, False)


@pytest.mark.parametrize("lost", [SERVERS, BROKERS])
@pytest.mark.parametrize("how", ["deleted", "emptied", "another", "unusable"])
def test_a_lost_or_damaged_secret_is_written_again_from_the_other(lost: str, how: str) -> None:
    east = secured()
    before = {name: secret(east, name) for name in (SERVERS, BROKERS)}
    if how == "deleted":
        del east.kube.objects["Secret", lost]
    else:
        values = {"emptied": {}, "another": {"password": "x" * 32}, "unusable": {"password": '"; };'}}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values[how].items()}
        east.kube.objects["Secret", lost]["data"] = data
    assert look(east) != SOON
    assert {name: secret(east, name) for name in (SERVERS, BROKERS)} == before
    assert east.touched == {"Secret"}


def test_without_both_secrets_servers_and_brokers_get_another_password() -> None:
    east = secured()
    before = secret(east, BROKERS)["password"], annotations(east, "east-zookeeper")[LOGIN]
    for name in (SERVERS, BROKERS):
        del east.kube.objects["Secret", name]
    look(east)
    password = secret(east, BROKERS)["password"]
    assert secret(east, SERVERS)["password"] == password != before[0]
    assert annotations(east, "east-zookeeper")[LOGIN] == annotations(east, "east-brokers")[LOGIN] != before[1]
    assert step(east) == (True, True, True)


def test_without_a_right_to_secrets_an_open_ensemble_stays_open_and_says_so() -> None:
    east = open_ensemble()
    (_, reason, words) = east.says("Warning") or ("", "", "")
    assert reason == "SecretNotReadable"
    assert words.startswith(
        "spec.zookeeper: brokers need a login to it, and the operator has no right to Secrets"
    )


def test_without_a_right_to_secrets_a_secured_ensemble_stays_as_it_is() -> None:
    east = secured()
    east.kube.refused["Secret"] = NO_RIGHT
    look(east)
    assert step(east) == (True, True, True)
    assert east.touched == set()
    assert (east.says("Warning") or ())[1] == "SecretNotReadable"


@pytest.mark.parametrize("key", ["zookeeper.sasl.jaas.config", "zookeeper.set.acl"])
def test_a_login_of_the_users_own_is_refused(key: str) -> None:
    east = secured()
    east.change(3, **ENSEMBLE, config={key: "false"})
    look(east)
    (status, reason, words) = east.says() or ("", "", "")
    assert (status, reason) == ("False", "InvalidConfig")
    assert words.startswith(f"spec.config[{key}]: not allowed with spec.zookeeper.replicas")
    assert east.touched == set()


def test_brokers_that_restrict_their_nodes_never_stop_it() -> None:
    """Neither when servers come back without it, such as from a backup of the objects."""
    east = secured()
    for server in (1, 2, 3):
        del east.kube.objects["Pod", f"east-zookeeper-{server}"]["metadata"]["annotations"]
    look(east)
    assert step(east) == (True, True, True)
    assert annotations(east, "east-brokers")[ACCESS] == "Restricted"
    pod = east.kube.objects["Pod", "east-brokers-1"]["metadata"]
    pod["annotations"] = {key: value for key, value in pod["annotations"].items() if key != ACCESS}
    look(east)
    assert step(east) == (True, True, True)
