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
FOLDER = "/run/millstream/user"


def begun(users: KnownUsers, **spec: Any) -> InMemory:
    """A load whose run is in the status and not started yet."""
    return in_memory(CLUSTER, a_load(PENDING, **spec), **BROKERS, **users.answers)


def password(found: InMemory) -> str:
    return base64.b64decode(found.kube.objects["Secret", SECRET]["data"]["password"]).decode()


def has_user(template: dict[str, Any]) -> bool:
    """Whether Spark's container of a pod has the user's files."""
    pod = template["spec"]
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    return secrets == {"user": SECRET} and mounts["user"] == FOLDER


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_driver_and_executors_have_the_files_of_the_loads_own_user(runner: str) -> None:
    users = KnownUsers()
    found = begun(users, runner=runner)
    assert look(found) == SOON
    assert written(found) == ["Secret", "ServiceAccount", "RoleBinding", "ConfigMap", runner]
    files = found.kube.objects["ConfigMap", RUN]["data"]
    told = json.loads(files["run.json"])
    assert (told["bootstrap"], told["login"]) == ("default-bootstrap.ns.svc:9091", {"folder": FOLDER})
    started = found.kube.objects[runner, RUN]["spec"]
    if runner == "Job":
        assert has_user(started["template"])
        assert has_user(yaml.safe_load(files["executor.yaml"]))
    else:
        assert has_user(started["driver"]["template"])
        assert has_user(started["executor"]["template"])
    assert users.accepts(USER, password(found))
    assert users.may(USER) == {"READ on TOPIC flights (LITERAL) from *"}
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


def test_load_of_a_cluster_with_tls_says_that_it_has_none_yet() -> None:
    platform = {"platform": {**PLATFORM["platform"], "caSecret": "default-cluster-ca-cert"}}
    found = in_memory(stored(cluster("default"), platform), a_load(PENDING), **BROKERS)
    assert look(found) == SOON
    assert (says(found) or ())[1] == "LoginRequired"
    assert written(found) == []


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
    assert users.may(USER) == {"READ on TOPIC flights (LITERAL) from *"}
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
