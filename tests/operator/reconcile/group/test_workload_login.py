"""The own user of a workload's consumers: its Secrets, its rights, and what the consumers find of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from millstream.client_config import load
from millstream.client_properties import translated
from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.known_users import KnownUsers
from millstream_harness.manifests import cluster, group
from millstream_operator.kafka.records import AdminError, GroupState, Partition, TopicIdentity
from millstream_operator.models import Cluster, ConsumerGroup, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.reconcile.common.pod_users import remove_unused_users
from millstream_operator.reconcile.group.apply import reconcile_groups

USER, SECRET, CLIENT = (
    "millstream-pods.consumergroup.u-watch",
    "watch-consumers-user",
    "watch-consumers-client",
)
FOLDER = "/run/millstream/user"
RIGHTS = {"READ on TOPIC a (LITERAL) from *", "READ on GROUP team (LITERAL) from *"}


def platform(port: int, **more: str) -> dict[str, Any]:
    bootstrap = f"default-bootstrap.ns.svc:{port}"
    return {"platform": {"bootstrap": bootstrap, "secret": "s", "internal": "Closed", **more}}


PASSWORDS = stored(cluster("default"), platform(9091))
ENCRYPTED = stored(cluster("default"), platform(9090, caSecret="default-cluster-ca-cert"))


def consumers(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = containers or ({"name": "consumer", "image": "ours:1"},)
    workload = {"template": {"spec": {"containers": list(found)}}}
    return stored(group("watch", topics=["a"], groupId="team", workload=workload, **spec))


def brokers(users: KnownUsers) -> dict[str, Any]:
    return {
        "groups": lambda ids: {one: GroupState("Empty", ()) for one in ids},
        "committed": lambda ids: {one: {Partition("a", 0): 4} for one in ids},
        "identities": lambda topics: {topic: TopicIdentity(f"id-{topic}", 2) for topic in topics},
        "offsets": lambda wanted: dict.fromkeys(wanted, 10),
        "led_offsets": lambda wanted: dict.fromkeys(wanted, 10),
        **users.answers,
    }


def look(found: InMemory) -> InMemory:
    manifest = found.kube.objects["ConsumerGroup", "watch"]
    found.services.store.put(manifest)
    reconcile_groups(found.services, [decode_as(ConsumerGroup, manifest)])
    return found


def started(users: KnownUsers, where: Mapping[str, Any], *containers: dict[str, Any]) -> InMemory:
    return look(in_memory(where, consumers(*containers), **brokers(users)))


def publish(found: InMemory, authorities: str) -> None:
    name = {"namespace": "ns", "name": "default-cluster-ca-cert"}
    data = {"ca.crt": base64.b64encode(authorities.encode()).decode()}
    found.kube.put({"kind": "Secret", "metadata": name, "data": data})


def values(found: InMemory, secret: str) -> dict[str, str]:
    data = found.kube.objects["Secret", secret]["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def template(found: InMemory) -> dict[str, Any]:
    return found.kube.objects["Deployment", "watch-consumers"]["spec"]["template"]


def version(found: InMemory) -> str:
    return template(found)["metadata"]["annotations"]["millstream.dev/login"]


def sweep(found: InMemory) -> None:
    where = decode_as(Cluster, found.kube.objects["Cluster", "default"])
    remove_unused_users(found.services, where, found.services.brokers_of(where))


def test_consumers_have_the_files_of_a_user_who_may_read_their_topics_as_their_group() -> None:
    users = KnownUsers()
    found = started(users, PASSWORDS, {"name": "a", "image": "a"}, {"name": "b", "image": "b"})
    password = values(found, SECRET)["password"]
    assert users.accepts(USER, password)
    assert users.may(USER) == RIGHTS
    pod = template(found)["spec"]
    (volume,) = pod["volumes"]
    assert [one["secret"]["name"] for one in volume["projected"]["sources"]] == [SECRET, CLIENT]
    for container in pod["containers"]:
        assert {"name": "MILLSTREAM_CONFIG", "value": f"{FOLDER}/client.properties"} in container["env"]
        (mount,) = container["volumeMounts"]
        assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], FOLDER, True)
    for secret in (SECRET, CLIENT):
        owners = found.kube.objects["Secret", secret]["metadata"]["ownerReferences"]
        assert [one["uid"] for one in owners] == ["u-watch"]
    others = [one for (kind, _), one in found.kube.objects.items() if kind != "Secret"]
    assert password not in json.dumps(others)
    written = len(found.kube.applied)
    look(found)
    assert found.kube.applied_names("Secret")[2:] == [], "nothing is written again"
    assert "Deployment" not in [one["kind"] for one in found.kube.applied[written:]]


@pytest.mark.parametrize("file", ["client.properties", "librdkafka.properties"])
@pytest.mark.parametrize("where", [PASSWORDS, ENCRYPTED], ids=["passwords", "tls"])
def test_library_connects_by_either_file(where: dict[str, Any], file: str, tmp_path: Any) -> None:
    found = in_memory(where, consumers(), **brokers(KnownUsers()))
    publish(found, "-----BEGIN CERTIFICATE-----")
    look(found)
    for name, text in {**values(found, SECRET), **values(found, CLIENT)}.items():
        (tmp_path / name).write_text(text.replace(FOLDER, str(tmp_path)))
    read = load("MILLSTREAM_CONFIG", str(tmp_path / file))
    settings = translated(read.settings)
    has_tls = where is ENCRYPTED
    assert read.bootstrap == f"default-bootstrap.ns.svc:{9090 if has_tls else 9091}"
    assert settings["security.protocol"] == ("SASL_SSL" if has_tls else "SASL_PLAINTEXT")
    assert settings["sasl.username"] == USER
    assert settings["sasl.password"] == values(found, SECRET)["password"]
    assert settings.get("ssl.ca.location") == (str(tmp_path / "ca.crt") if has_tls else None)


def test_workload_of_an_open_cluster_has_no_secret() -> None:
    found = started(KnownUsers(), stored(cluster("default")))
    pod = template(found)["spec"]
    assert "volumes" not in pod
    assert "MILLSTREAM_CONFIG" not in json.dumps(pod)
    assert not any(kind == "Secret" for kind, _ in found.kube.objects)


def test_container_with_a_configuration_of_its_own_keeps_it() -> None:
    own = {"name": "MILLSTREAM_CONFIG", "value": "/mnt/own.properties"}
    found = started(KnownUsers(), PASSWORDS, {"name": "a", "image": "a", "env": [own]})
    (container,) = template(found)["spec"]["containers"]
    assert [one for one in container["env"] if one["name"] == "MILLSTREAM_CONFIG"] == [own]


def test_another_password_or_authority_restarts_the_consumers() -> None:
    users = KnownUsers()
    found = in_memory(ENCRYPTED, consumers(), **brokers(users))
    publish(found, "old")
    look(found)
    versions = [version(found)]
    publish(found, "old and new")
    look(found)
    assert values(found, CLIENT)["ca.crt"] == "old and new"
    versions.append(version(found))
    del found.kube.objects["Secret", SECRET]
    look(found)
    versions.append(version(found))
    assert len(set(versions)) == 3
    assert users.accepts(USER, values(found, SECRET)["password"])
    assert values(found, SECRET)["password"] in values(found, CLIENT)["client.properties"]


def test_cluster_without_its_authorities_changes_no_consumer() -> None:
    users = KnownUsers()
    found = started(users, PASSWORDS)
    before = template(found)
    found.kube.put(ENCRYPTED)
    found.services.store.put(ENCRYPTED)
    look(found)
    status, reason, words = found.condition("ConsumerGroup", "watch", "WorkloadReady") or ("", "", "")
    assert (status, reason) == ("False", "ClusterNotReady")
    assert "Cluster ns/default has no Secret default-cluster-ca-cert with its authorities yet" in words
    assert template(found) == before
    publish(found, "new")
    look(found)
    assert template(found) != before


def test_brokers_that_do_not_respond_keep_consumers_as_they_are() -> None:
    users = KnownUsers()
    found = started(users, PASSWORDS)
    before = template(found)
    answers = found.brokers.answers
    silent = dict.fromkeys(answers, AdminError("no broker responds"))
    found.brokers.answers = {
        **silent,
        "scram_users": lambda names: pytest.fail("each request would time out"),
    }
    look(found)
    assert template(found) == before
    users.credentials.clear()
    found.brokers.answers = answers
    look(found)
    assert users.accepts(USER, values(found, SECRET)["password"])


def test_user_ends_with_the_workload_or_the_resource() -> None:
    users = KnownUsers()
    found = started(users, PASSWORDS)
    sweep(found)
    assert list(users.credentials) == [USER]
    manifest = found.kube.objects["ConsumerGroup", "watch"]
    without = {name: value for name, value in manifest["spec"].items() if name != "workload"}
    found.services.store.put({**manifest, "spec": without})
    sweep(found)
    assert (users.credentials, users.rules) == ({}, set())
    look(found)
    assert users.may(USER) == RIGHTS
    found.services.store.remove(Key("ConsumerGroup", "ns", "watch"), "u-watch")
    sweep(found)
    assert (users.credentials, users.rules) == ({}, set())


def test_group_without_a_workload_has_no_user() -> None:
    users = KnownUsers()
    look(in_memory(PASSWORDS, stored(group("watch", topics=["a"])), **brokers(users)))
    assert users.credentials == {}
