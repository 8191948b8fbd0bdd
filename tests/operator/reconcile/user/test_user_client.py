"""The Secret of a User with ready client configurations for pods: what it has, and when it is written."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millstream.client_config import load
from millstream.client_properties import translated
from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.known_users import KnownUsers
from millstream_harness.manifests import resource
from millstream_operator.models import Cluster, User, decode_as
from millstream_operator.reconcile.user.apply import reconcile_users
from millstream_operator.reconcile.user.client import ensure_client, trusted_by
from millstream_operator.reconcile.user.plan import Password

NAME, FOLDER = "alice-user-client", "/run/millstream/user"
INSIDE = {"name": "internal", "type": "Internal", "port": 9092}
OUTSIDE = {"name": "public", "type": "LoadBalancer", "port": 9094}
PASSWORDS = {"authentication": {"type": "ScramSha512"}}
TLS = {"tls": "Enabled"}
OURS = "-----BEGIN CERTIFICATE-----\n"
CA = {"caSecret": "default-cluster-ca-cert"}


def cluster(listeners: list[dict[str, Any]], status: list[dict[str, Any]]) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    found = resource("Cluster", "default", listeners=listeners)
    conditions = [{**ready, "reason": "Ready", "message": "", "observedGeneration": 2}]
    return stored(
        found,
        {"conditions": conditions, "observedGeneration": 2, "bootstrap": "a:9092", "listeners": status},
    )


CLOSED = cluster(
    [{**INSIDE, **PASSWORDS, **TLS}, {**OUTSIDE, **PASSWORDS, **TLS}],
    [
        {"name": "public", "bootstrap": "kafka.example.com:9094", "protocol": "SASL_SSL", **CA},
        {"name": "internal", "bootstrap": "default-bootstrap.ns.svc:9092", "protocol": "SASL_SSL", **CA},
    ],
)
PLAIN = cluster(
    [{**INSIDE, **PASSWORDS}],
    [{"name": "internal", "bootstrap": "default-bootstrap.ns.svc:9092", "protocol": "SASL_PLAINTEXT"}],
)


def user(**spec: Any) -> dict[str, Any]:
    return stored(resource("User", "alice", clusterRef={"name": "default"}, **{**PASSWORDS, **spec}))


def started(where: Mapping[str, Any], one: Mapping[str, Any], authorities: str | None = OURS) -> InMemory:
    answers = {**KnownUsers().answers, "rules": None, "user_quotas": {}}
    found = in_memory(where, one, **answers)
    if authorities is not None:
        publish(found, authorities)
    return look(found)


def publish(found: InMemory, authorities: str) -> None:
    name = {"namespace": "ns", "name": "default-cluster-ca-cert"}
    data = {"ca.crt": base64.b64encode(authorities.encode()).decode()}
    found.kube.put({"kind": "Secret", "metadata": name, "data": data})


def look(found: InMemory) -> InMemory:
    manifest = found.kube.objects["User", "alice"]
    found.services.store.put(manifest)
    reconcile_users(found.services, [decode_as(User, manifest)])
    return found


def values(found: InMemory, secret: str = NAME) -> dict[str, str]:
    data = found.kube.objects["Secret", secret]["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def of_python(text: str) -> dict[str, str]:
    names: dict[str, Any] = {}
    exec(text, names)  # as a pod imports it
    config: dict[str, str] = names["config"]
    return config


def test_secret_has_what_each_client_needs_to_connect_inside_kubernetes(tmp_path: Any) -> None:
    found = started(CLOSED, user())
    password, files = values(found, "alice")["password"], values(found)
    assert sorted(files) == ["ca.crt", "client.properties", "client_config.py", "librdkafka.properties"]
    assert files["ca.crt"] == OURS
    wanted = {
        "bootstrap.servers": "default-bootstrap.ns.svc:9092",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": f"{FOLDER}/ca.crt",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": password,
    }
    assert of_python(files["client_config.py"]) == wanted
    assert dict(line.split("=", 1) for line in files["librdkafka.properties"].splitlines()) == wanted
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace(FOLDER, str(tmp_path)))
    settings = translated(load("MILLSTREAM_CONFIG", str(tmp_path / "client.properties")).settings)
    assert settings["ssl.ca.location"] == str(tmp_path / "ca.crt")
    assert (settings["sasl.username"], settings["sasl.password"]) == ("alice", password)
    metadata = found.kube.objects["Secret", NAME]["metadata"]
    assert [one["uid"] for one in metadata["ownerReferences"]] == ["u-alice"]
    others = [one for (kind, _), one in found.kube.objects.items() if kind != "Secret"]
    assert password not in json.dumps([others, *map(str, found.kube.events)])


def test_secret_is_written_once_and_again_for_what_changes() -> None:
    found = started(CLOSED, user())
    found.kube.applied.clear()
    look(found)
    assert found.kube.applied_names("Secret") == []
    publish(found, "ours and next")
    look(found)
    assert values(found)["ca.crt"] == "ours and next"
    before = values(found)["client.properties"]
    found.kube.objects["User", "alice"]["spec"]["rotate"] = {"requestId": "spring"}
    look(found)
    assert values(found, "alice")["password"] in values(found)["client.properties"] != before
    found.services.store.put(PLAIN)
    look(found)
    assert sorted(values(found)) == ["client.properties", "client_config.py", "librdkafka.properties"]
    assert "security.protocol=SASL_PLAINTEXT\n" in values(found)["client.properties"]


def test_own_password_is_in_it() -> None:
    own = {
        **PASSWORDS["authentication"],
        "password": {"valueFrom": {"secretKeyRef": {"name": "m", "key": "k"}}},
    }
    theirs = {"kind": "Secret", "metadata": {"namespace": "ns", "name": "m"}, "data": {"k": "d29yZC0x"}}
    answers = {**KnownUsers().answers, "rules": None, "user_quotas": {}}
    found = look(in_memory(PLAIN, user(authentication=own), theirs, **answers))
    assert of_python(values(found)["client_config.py"])["sasl.password"] == "word-1"


@pytest.mark.parametrize(
    ("where", "authorities"),
    [
        (cluster([INSIDE], [{"name": "internal", "bootstrap": "a:1", "protocol": "PLAINTEXT"}]), None),
        (CLOSED, None),
    ],
    ids=["no listener asks", "no authorities yet"],
)
def test_nothing_is_written_where_it_could_not_connect(
    where: dict[str, Any], authorities: str | None
) -> None:
    found = started(where, user(), authorities)
    assert ("Secret", NAME) not in found.kube.objects
    assert (found.condition("User", "alice") or ())[0] == "True"


def test_another_owners_secret_is_left_alone_and_named() -> None:
    name = {"namespace": "ns", "name": NAME, "uid": "u-theirs"}
    answers = {**KnownUsers().answers, "rules": None, "user_quotas": {}}
    theirs = {"kind": "Secret", "metadata": name, "data": {}}
    found = look(in_memory(PLAIN, user(), theirs, **answers))
    assert (found.condition("User", "alice") or ())[:2] == ("False", "ObjectNotOurs")
    assert found.kube.objects["Secret", NAME]["data"] == {}


def test_files_of_a_certificate_name_it_and_its_key() -> None:
    one = user(authentication={"type": "Tls"})
    where = cluster(
        [{**INSIDE, **TLS, "authentication": {"type": "Tls"}}],
        [{"name": "internal", "bootstrap": "a:9092", "protocol": "SSL", **CA}],
    )
    found = in_memory(where, one)
    publish(found, "ours")
    issued = {key: base64.b64encode(key.encode()).decode() for key in ("user.crt", "user.key", "user.pem")}
    found.kube.put({"kind": "Secret", "metadata": {"namespace": "ns", "name": "alice"}, "data": issued})
    password = Password("", "1", "alice", is_certificate=True)
    there = decode_as(Cluster, where)
    trusted = trusted_by(found.services, there)
    assert ensure_client(found.services, decode_as(User, one), there, password, trusted) is None
    files = values(found)
    assert {key: files[key] for key in ("ca.crt", "user.crt", "user.pem")} == {
        "ca.crt": "ours",
        "user.crt": "user.crt",
        "user.pem": "user.pem",
    }
    config = of_python(files["client_config.py"])
    assert config == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SSL",
        "ssl.ca.location": f"{FOLDER}/ca.crt",
        "ssl.certificate.location": f"{FOLDER}/user.crt",
        "ssl.key.location": f"{FOLDER}/user.pem",
    }
    assert f"ssl.keystore.location={FOLDER}/user.pem\n" in files["client.properties"]


def test_nothing_is_written_where_clients_are_no_pods() -> None:
    found = in_memory(PLAIN, user())
    here = replace(found.services, has_pods=False)
    password = Password("word", "1", "alice")
    assert (
        ensure_client(here, decode_as(User, user()), decode_as(Cluster, PLAIN), password, lambda _: None)
        is None
    )
    assert found.kube.applied == []
