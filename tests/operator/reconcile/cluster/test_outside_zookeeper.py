"""A ZooKeeper ensemble that others run: the brokers' login and trusted certificates, from the user's Secrets."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from millstream_broker.config.zookeeper_keys import login_module
from millstream_harness.certificates import Authority
from millstream_harness.cluster_looks import SOON, East, answers, partition
from millstream_harness.in_memory import NOW
from millstream_operator.certificates.issuing import new_authority, pem_of
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.resources.zookeeper import LOGIN

HEALTHY = answers(partition("a", 0, 0, 1, 2))
CONNECT = "127.0.0.1:1/kafka"
LOGS_IN = {
    "authentication": {
        "type": "DigestMd5",
        "username": "kafka",
        "passwordSecret": {"secretName": "zk", "password": "pass"},
    }
}
TRUSTS = {"tls": {"trustedCertificates": [{"secretName": "zk", "certificate": "zk.crt"}]}}
BROKERS = "east-brokers-zookeeper"
LOGIN_KEY, ACLS = "zookeeper.sasl.jaas.config", "zookeeper.set.acl"


def authority(name: str = "zk", life: timedelta = timedelta(days=9)) -> bytes:
    return pem_of(new_authority(name, "ns", NOW - timedelta(days=5), life).chain)


def put(east: East, name: str = "zk", **values: bytes | str) -> None:
    data = {
        key.replace("_", "."): base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in values.items()
    }
    metadata = {"namespace": "ns", "name": name}
    east.kube.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def with_zookeeper(config: dict[str, str] | None = None, **zookeeper: Any) -> dict[str, Any]:
    return {"zookeeper": {"connect": CONNECT, **zookeeper}, "config": config or {}}


def running(config: dict[str, str] | None = None, **zookeeper: Any) -> East:
    east = East(3, {"clusterId": "id"}, **with_zookeeper(config, **zookeeper))
    put(east, **{"pass": "secret", "zk_crt": authority()})
    look(east)
    east.run(True, True, True)
    look(east)
    return east


def look(east: East) -> float:
    return east.look(**HEALTHY, cluster_id="id")


def roll(east: East) -> None:
    for broker in range(3):
        east.kube.objects.pop(("Pod", f"east-brokers-{broker}"), None)
    east.run(True, True, True)


def config(east: East) -> dict[str, str]:
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    found = dict(line.split("=", 1) for line in text.splitlines())
    return {key: value for key, value in found.items() if key.startswith("zookeeper.")}


def files(east: East) -> dict[str, str]:
    """The files that brokers mount."""
    pod = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "work")
    assert volume["secret"]["secretName"] == BROKERS
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "work")
    data = east.kube.objects["Secret", BROKERS]["data"]
    return {
        f"{mount['mountPath']}/{item['path']}": base64.b64decode(data[item["key"]]).decode()
        for item in volume["secret"]["items"]
    }


def login(east: East) -> str:
    found = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]["metadata"]["annotations"]
    return str(found[LOGIN])


def test_brokers_get_login_and_certificates_as_files() -> None:
    east = running(**LOGS_IN, **TRUSTS)
    found = config(east)
    assert found["zookeeper.connect"] == CONNECT
    assert found["zookeeper.ssl.client.enable"] == "true"
    assert found["zookeeper.ssl.truststore.type"] == "PEM"
    there = files(east)
    assert "BEGIN CERTIFICATE" in there.pop(found["zookeeper.ssl.truststore.location"])
    ((file, text),) = there.items()
    assert found[LOGIN_KEY] == f"${{file:{file}:jaas}}"
    assert login_module(text.partition("=")[2].strip()).options == {"username": "kafka", "password": "secret"}
    texts = [str(one) for (kind, _), one in east.kube.objects.items() if kind != "Secret"]
    assert not any("password=" in text for text in texts)


@pytest.mark.parametrize(
    ("zookeeper", "keys"),
    [
        ({}, {"zookeeper.connect"}),
        (LOGS_IN, {"zookeeper.connect", LOGIN_KEY}),
        (
            TRUSTS,
            {"zookeeper.connect"}
            | {f"zookeeper.ssl.{key}" for key in ("client.enable", "truststore.location", "truststore.type")},
        ),
    ],
    ids=["neither", "login", "certificates"],
)
def test_brokers_have_what_the_spec_names_and_no_more(zookeeper: dict[str, Any], keys: set[str]) -> None:
    assert config(running(**zookeeper)).keys() == keys


def test_any_printable_password_reaches_the_broker() -> None:
    password = """ a"b\\c'd;{}#=:!\\" """
    east = running(**LOGS_IN)
    put(east, **{"pass": password})
    look(east)
    (text,) = files(east).values()
    value = text.removeprefix("jaas=").rstrip("\n").replace("\\\\", "\\")
    assert login_module(value).options["password"] == password


def test_another_password_restarts_brokers_and_other_certificates_do_not() -> None:
    east = running(**LOGS_IN, **TRUSTS)
    before = login(east)
    put(east, **{"pass": "secret", "zk_crt": authority("next")})
    look(east)
    assert login(east) == before
    assert east.touched == {"Secret"}
    assert east.says("RollingUpdate") is None
    put(east, **{"pass": "another", "zk_crt": authority("next")})
    look(east)
    assert login(east) != before
    (_, reason, words) = east.says("RollingUpdate") or ("", "", "")
    assert (reason, words) == ("Restarting", "restarting east-brokers-1 (PodTemplateChanged); 3 to go")


@pytest.mark.parametrize(
    ("values", "reason", "words"),
    [
        (
            None,
            "SecretMissing",
            "authentication.passwordSecret: there is no Secret zk in namespace ns: create it with the password in key"
            " pass",
        ),
        (
            {"zk_crt": b"x"},
            "SecretInvalid",
            "authentication.passwordSecret: Secret zk has no key pass: it has",
        ),
        (
            {"pass": "a\n"},
            "SecretInvalid",
            "authentication.passwordSecret: key pass of Secret zk has a newline",
        ),
        (
            {"pass": "ä"},
            "SecretInvalid",
            "authentication.passwordSecret: key pass of Secret zk has a character outside",
        ),
        (
            {"pass": "a"},
            "SecretInvalid",
            "tls.trustedCertificates: key zk.crt of Secret zk is missing or empty; the Secret has pass",
        ),
        (
            {"pass": "a", "zk_crt": b"\xff nothing"},
            "SecretInvalid",
            "tls.trustedCertificates: key zk.crt of Secret zk has no certificate in PEM format",
        ),
        (
            {"pass": "a", "zk_crt": authority(life=timedelta(days=1))},
            "SecretInvalid",
            "tls.trustedCertificates: key zk.crt of Secret zk: ",
        ),
    ],
    ids=["no Secret", "no password", "newline", "not ASCII", "no certificate", "no PEM", "expired"],
)
def test_a_bad_secret_is_named_and_brokers_keep_what_they_have(
    values: dict[str, bytes | str] | None, reason: str, words: str
) -> None:
    east = running(**LOGS_IN, **TRUSTS)
    before = files(east)
    del east.kube.objects["Secret", "zk"]
    if values is not None:
        put(east, **values)
    assert look(east) == SOON
    (status, found, message) = east.says() or ("", "", "")
    assert (status, found) == ("False", reason)
    assert message.startswith(f"spec.zookeeper.{words}")
    assert files(east) == before
    assert east.touched == set()
    assert east.kube.deleted == []


def test_a_new_cluster_waits_for_its_secret() -> None:
    east = East(3, **with_zookeeper(**LOGS_IN))
    assert east.look() == SOON
    assert (east.says() or ())[1] == "SecretMissing"
    assert ("StatefulSet", "east-brokers") not in east.kube.objects
    put(east, **{"pass": "secret"})
    east.look()
    assert ("StatefulSet", "east-brokers") in east.kube.objects


def test_without_a_right_to_secrets_the_condition_says_so() -> None:
    east = running(**LOGS_IN)
    east.kube.refused["Secret"] = KubeError(403, "Forbidden", "secrets is forbidden")
    look(east)
    (_, reason, words) = east.says() or ("", "", "")
    assert reason == "SecretNotReadable"
    assert "set operator.users: true" in words


def test_nodes_are_restricted_once_every_broker_logs_in() -> None:
    east = running()
    east.change(3, **with_zookeeper({ACLS: "true"}, **LOGS_IN))
    look(east)
    assert (LOGIN_KEY in config(east), config(east)[ACLS]) == (True, "false")
    roll(east)
    look(east)
    assert config(east)[ACLS] == "true"


def test_a_setting_that_the_spec_decides_is_refused() -> None:
    east = running(**LOGS_IN)
    east.change(3, **with_zookeeper({LOGIN_KEY: "x"}, **LOGS_IN))
    look(east)
    (_, reason, words) = east.says() or ("", "", "")
    assert reason == "InvalidConfig"
    assert words.startswith(f"spec.config[{LOGIN_KEY}]: not allowed with spec.zookeeper.authentication")
    east.change(3, **with_zookeeper({"zookeeper.ssl.client.enable": "false"}, **TRUSTS))
    look(east)
    assert "not allowed with spec.zookeeper.tls" in (east.says() or ("", "", ""))[2]


def test_an_authority_of_the_harness_is_trusted_too() -> None:
    east = running(**TRUSTS)
    put(east, zk_crt=Authority().pem)
    look(east)
    assert east.says("Warning") is None
