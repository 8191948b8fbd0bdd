"""The own user of a load's pods: its Secret, its rights, and where driver and executors find it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml

from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.known_users import KnownUsers
from millstream_harness.load_looks import BROKERS, PENDING, SOON, a_load, look, says, written
from millstream_harness.manifests import cluster
from millstream_operator.kafka.records import AdminError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.reconcile.common.pod_users import remove_unused_users

PLATFORM = {"platform": {"bootstrap": "default-bootstrap.ns.svc:9091", "secret": "s", "internal": "Open"}}
CLUSTER = stored(cluster("default"), PLATFORM)
SECRET, USER, RUN = "daily-load-user", "millstream-pods.batchload.u-daily", "daily-0001-u-daily"
RIGHTS = {"READ on TOPIC flights (LITERAL) from *", "DESCRIBE on GROUP millstream-jobs (LITERAL) from *"}
TRUST = "daily-load-trust"
FOLDER = "/run/millstream/user"
ENCRYPTED = stored(
    cluster("default"),
    {
        "platform": {
            "bootstrap": "default-bootstrap.ns.svc:9090",
            "secret": "s",
            "caSecret": "default-cluster-ca-cert",
            "internal": "Closed",
        }
    },
)


def begun(users: KnownUsers, **spec: Any) -> InMemory:
    """A load whose run is in the status and not started yet."""
    return in_memory(CLUSTER, a_load(PENDING, **spec), **BROKERS, **users.answers)


def password(found: InMemory) -> str:
    return base64.b64decode(found.kube.objects["Secret", SECRET]["data"]["password"]).decode()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def publish(found: InMemory, authorities: str) -> None:
    """Set the authorities of the Cluster."""
    name = {"namespace": "ns", "name": "default-cluster-ca-cert"}
    found.kube.put({"kind": "Secret", "metadata": name, "data": {"ca.crt": encoded(authorities)}})


def has_user(template: dict[str, Any]) -> bool:
    """Whether Spark's container of a pod has the user's files."""
    return files(template) == [SECRET]


def files(template: dict[str, Any]) -> list[str]:
    """The Secrets whose files Spark's container has in the folder."""
    pod = template["spec"]
    (volume,) = (one for one in pod["volumes"] if "projected" in one)
    assert [one["name"] for one in pod["volumes"]].count(volume["name"]) == 1
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounts[volume["name"]] == FOLDER
    return [one["secret"]["name"] for one in volume["projected"]["sources"]]


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_driver_and_executors_have_the_files_of_the_loads_own_user(runner: str) -> None:
    users = KnownUsers()
    found = begun(users, runner=runner)
    assert look(found) == SOON
    assert written(found) == ["Secret", "ServiceAccount", "RoleBinding", "ConfigMap", runner]
    data = found.kube.objects["ConfigMap", RUN]["data"]
    told = json.loads(data["run.json"])
    assert (told["bootstrap"], told["login"]) == ("default-bootstrap.ns.svc:9091", {"folder": FOLDER})
    started = found.kube.objects[runner, RUN]["spec"]
    if runner == "Job":
        assert has_user(started["template"])
        assert has_user(yaml.safe_load(data["executor.yaml"]))
    else:
        assert has_user(started["driver"]["template"])
        assert has_user(started["executor"]["template"])
    assert users.accepts(USER, password(found))
    assert users.may(USER) == RIGHTS
    secret = found.kube.objects["Secret", SECRET]
    assert [one["uid"] for one in secret["metadata"]["ownerReferences"]] == ["u-daily"]
    others = [one for (kind, _), one in found.kube.objects.items() if kind != "Secret"]
    assert password(found) not in json.dumps(others)


def test_load_of_an_open_cluster_has_no_secret() -> None:
    found = in_memory(stored(cluster("default")), a_load(PENDING), **BROKERS)
    look(found)
    told = json.loads(found.kube.objects["ConfigMap", RUN]["data"]["run.json"])
    assert told["bootstrap"] == "default-bootstrap.ns.svc:9092"
    assert "login" not in told
    assert ("Secret", SECRET) not in found.kube.objects


def closes_after(found: InMemory, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open Cluster's status says that pods log in, just after an object of a kind is created."""
    create = found.kube.create

    def then_closes(manifest: dict[str, Any], *more: str) -> dict[str, Any]:
        made = create(manifest, *more)
        if manifest["kind"] == kind:
            found.kube.put(CLUSTER)
        return made

    monkeypatch.setattr(found.kube, "create", then_closes)


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_run_that_starts_as_its_cluster_closes_logs_in(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Cluster may have looked for running loads before the ConfigMap was there."""
    found = in_memory(
        stored(cluster("default")), a_load(PENDING, runner=runner), **BROKERS, **KnownUsers().answers
    )
    closes_after(found, "ConfigMap", monkeypatch)
    assert look(found) == SOON
    told = json.loads(found.kube.objects["ConfigMap", RUN]["data"]["run.json"])
    assert (told["bootstrap"], told["login"]) == ("default-bootstrap.ns.svc:9091", {"folder": FOLDER})
    started = found.kube.objects[runner, RUN]["spec"]
    assert has_user(started["template"] if runner == "Job" else started["driver"]["template"])


def test_run_whose_runner_is_lost_while_its_cluster_closes_logs_in() -> None:
    found = in_memory(stored(cluster("default")), a_load(PENDING), **BROKERS, **KnownUsers().answers)
    look(found)
    del found.kube.objects["Job", RUN]
    found.kube.put(CLUSTER)
    found.services.store.put(CLUSTER)
    look(found)
    told = json.loads(found.kube.objects["ConfigMap", RUN]["data"]["run.json"])
    assert told["login"] == {"folder": FOLDER}
    assert has_user(found.kube.objects["Job", RUN]["spec"]["template"])
    made = found.kube.objects["ConfigMap", RUN]
    del found.kube.objects["Job", RUN]
    look(found)
    assert found.kube.objects["ConfigMap", RUN] is made, "it is not written again without need"


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_pods_in_a_cluster_with_tls_have_a_copy_of_its_authorities(runner: str) -> None:
    users = KnownUsers()
    found = in_memory(ENCRYPTED, a_load(PENDING, runner=runner), **BROKERS, **users.answers)
    publish(found, "old")
    assert look(found) == SOON
    copy = found.kube.objects["Secret", TRUST]
    assert copy["data"] == {"ca.crt": encoded("old")}
    assert [one["uid"] for one in copy["metadata"]["ownerReferences"]] == ["u-daily"]
    data = found.kube.objects["ConfigMap", RUN]["data"]
    told = json.loads(data["run.json"])
    assert told["bootstrap"] == "default-bootstrap.ns.svc:9090"
    assert (told["login"], told["tls"]) == ({"folder": FOLDER}, {"caFile": f"{FOLDER}/ca.crt"})
    started = found.kube.objects[runner, RUN]["spec"]
    templates = (
        (started["template"], yaml.safe_load(data["executor.yaml"]))
        if runner == "Job"
        else (started["driver"]["template"], started["executor"]["template"])
    )
    assert [files(one) for one in templates] == [[SECRET, TRUST]] * 2


def test_run_waits_for_the_authorities_of_its_cluster() -> None:
    found = in_memory(ENCRYPTED, a_load(PENDING), **BROKERS, **KnownUsers().answers)
    assert look(found) == SOON
    reason, words = (says(found) or ("",) * 3)[1:]
    assert reason == "ClusterNotReady"
    assert "Cluster ns/default has no Secret default-cluster-ca-cert with its authorities yet" in words
    assert written(found) == []
    publish(found, "new")
    look(found)
    assert ("Job", RUN) in found.kube.objects


def test_copy_of_the_authorities_follows_them_during_a_run() -> None:
    found = in_memory(ENCRYPTED, a_load(PENDING), **BROKERS, **KnownUsers().answers)
    publish(found, "old")
    look(found)
    publish(found, "old and new")
    look(found)
    assert found.kube.objects["Secret", TRUST]["data"] == {"ca.crt": encoded("old and new")}
    del found.kube.objects["Secret", "default-cluster-ca-cert"]
    look(found)
    assert found.kube.objects["Secret", TRUST]["data"] == {"ca.crt": encoded("old and new")}
    assert (says(found) or ())[1] != "ClusterNotReady", "the run goes on"
    del found.kube.objects["Secret", TRUST]
    publish(found, "new")
    look(found)
    assert found.kube.objects["Secret", TRUST]["data"] == {"ca.crt": encoded("new")}


def test_another_owners_copy_is_left_alone() -> None:
    found = in_memory(ENCRYPTED, a_load(PENDING), **BROKERS, **KnownUsers().answers)
    publish(found, "new")
    name = {"namespace": "ns", "name": TRUST, "uid": "u-theirs"}
    found.kube.put({"kind": "Secret", "metadata": name, "data": {"ca.crt": encoded("theirs")}})
    assert look(found) == SOON
    assert (says(found) or ())[1] == "ObjectNotOurs"
    assert found.kube.objects["Secret", TRUST]["data"] == {"ca.crt": encoded("theirs")}
    assert ("Job", RUN) not in found.kube.objects


def test_run_waits_until_brokers_have_its_user() -> None:
    users = KnownUsers()
    found = begun(users)
    found.brokers.answers["change_scram_users"] = AdminError("no broker responds")
    assert look(found) == SOON
    assert (says(found) or ())[1:] == ("ClusterNotReady", f"user {USER}: no broker responds")
    assert ("Job", RUN) not in found.kube.objects
    found.brokers.answers |= users.answers
    look(found)
    assert ("Job", RUN) in found.kube.objects


def test_user_that_is_lost_during_a_run_is_set_again() -> None:
    users = KnownUsers()
    found = begun(users)
    look(found)
    users.credentials.clear()
    users.rules.clear()
    look(found)
    assert users.accepts(USER, password(found))
    assert users.may(USER) == RIGHTS
    found.brokers.answers["scram_users"] = AdminError("no broker responds")
    look(found)
    assert (says(found) or ())[1] != "ClusterNotReady", "the run goes on"


def test_user_ends_with_its_load() -> None:
    users = KnownUsers()
    found = begun(users)
    look(found)
    where = decode_as(Cluster, CLUSTER)
    remove_unused_users(found.services, where, found.services.brokers_of(where))
    assert list(users.credentials) == [USER]
    found.services.store.remove(Key("BatchLoad", "ns", "daily"), "u-daily")
    remove_unused_users(found.services, where, found.services.brokers_of(where))
    assert (users.credentials, users.rules) == ({}, set())
