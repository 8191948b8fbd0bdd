"""A Cluster with TLS: its Secrets, what brokers mount, and authorities that cannot be used."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.cluster_looks import INTERNAL, SOON, East
from millstream_harness.in_memory import NOW
from millstream_operator.certificates.issuing import (
    Issued,
    has_issued,
    is_authority,
    issue,
    named,
    names_of,
    new_authority,
    pem_of,
    read_certificates,
    read_issued,
)
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.resources.certificates import AUTHORITIES

TLS = {"name": "apps", "type": "NodePort", "port": 9094, "tls": "Enabled"}
LISTENERS = [INTERNAL, {**TLS, "advertisedHost": "broker-{broker}.Example.com"}]
CA, TRUST, BROKERS = "east-cluster-ca", "east-cluster-ca-cert", "east-brokers-tls"
DAY = timedelta(days=1)


def encrypted(count: int = 2, **spec: Any) -> East:
    east = East(count, listeners=LISTENERS, **spec)
    addressed(east)
    return east


def addressed(east: East) -> None:
    """Reconcile; Kubernetes gives the Services their ports; reconcile again."""
    east.look()
    for number, (kind, name) in enumerate(list(east.kube.objects)):
        if kind == "Service" and name.startswith("east-apps"):
            east.kube.objects[kind, name]["spec"]["ports"][0]["nodePort"] = 30000 + number
    east.look()


def at(east: East, moment: datetime) -> None:
    """Let the operator's clock show that time."""
    object.__setattr__(east.memory, "services", replace(east.memory.services, now=lambda: moment))


def value(east: East, secret: str, key: str) -> bytes:
    return base64.b64decode(east.kube.objects["Secret", secret]["data"][key])


def certificate(east: East, broker: int) -> Issued:
    found = value(east, BROKERS, f"broker-{broker}.pem")
    return read_issued(found, found)


def authority(east: East) -> Issued:
    return read_issued(value(east, CA, "ca.key"), value(east, CA, "ca.crt"))


def own(name: str, pair: Issued | None = None, **values: bytes) -> dict[str, Any]:
    found = {} if pair is None else {"ca.key": pair.key, "ca.crt": pem_of(pair.chain)}
    data = {key: base64.b64encode(each).decode() for key, each in {**found, **values}.items()}
    return {"kind": "Secret", "metadata": {"namespace": "ns", "name": name}, "data": data}


def test_brokers_have_certificates_for_the_names_of_their_listeners() -> None:
    east = encrypted()
    for broker in (0, 1):
        found = certificate(east, broker).certificate
        assert has_issued(authority(east).certificate, found)
        assert {
            f"broker-{broker}.example.com",
            f"east-brokers-{broker}.east-brokers.ns.svc",
            f"east-broker{broker}.ns.svc.cluster.local",
            "east-bootstrap.ns.svc",
            f"east-apps-{broker}",
        } <= names_of(found)
        assert f"broker-{1 - broker}.example.com" not in names_of(found)
    assert value(east, TRUST, "ca.crt") == value(east, BROKERS, "ca.crt") == pem_of(authority(east).chain)
    owners = {secret: east.kube.objects["Secret", secret]["metadata"] for secret in (CA, TRUST, BROKERS)}
    assert {each["ownerReferences"][0]["name"] for each in owners.values()} == {"east"}


def test_brokers_read_their_certificates_from_files() -> None:
    east = encrypted()
    pod = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]["spec"]
    assert {"name": "run", "secret": {"secretName": BROKERS, "defaultMode": 0o440}} in pod["volumes"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    config = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    keystore = f"listener.name.apps.ssl.keystore.location={mounts['run']}/broker-${{env:POD_INDEX}}.pem\n"
    assert keystore in config
    assert "APPS:SSL" in config


def test_clusters_without_tls_have_no_secrets() -> None:
    east = East(1, listeners=[INTERNAL])
    east.look()
    assert not [name for kind, name in east.kube.objects if kind == "Secret"]
    assert east.says("CertificatesReady") is None


def test_nothing_is_written_again_while_nothing_changes() -> None:
    east = encrypted()
    east.look()
    assert east.kube.applied_names("Secret") == []


def test_certificate_that_expired_while_the_operator_was_away_is_replaced() -> None:
    east = encrypted()
    old = certificate(east, 0)
    at(east, NOW + 400 * DAY)
    east.look()
    assert certificate(east, 0) != old
    assert certificate(east, 0).is_valid(NOW + 400 * DAY)
    assert certificate(east, 0).certificate.subject == old.certificate.subject


def test_node_that_appears_is_added_to_the_names() -> None:
    east = East(1, listeners=[INTERNAL, TLS])
    addressed(east)
    addresses = [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "n7"}]
    east.kube.put({"kind": "Node", "metadata": {"name": "n7"}, "status": {"addresses": addresses}})
    east.look()
    assert "192.0.2.7" in names_of(certificate(east, 0).certificate)
    assert "n7" not in names_of(certificate(east, 0).certificate)


def test_rotation_is_carried_out_once_for_each_request() -> None:
    east = encrypted()
    first = authority(east)
    for _ in range(3):
        east.change(2, listeners=LISTENERS, certificateAuthority={"rotate": {"requestId": "a"}})
        east.look()
    assert authority(east) == first  # the old one still issues
    assert len(value(east, TRUST, "ca.crt").split(b"BEGIN")) == 3
    assert east.says("CertificatesReady") is not None
    status, reason, words = east.says("CertificatesReady") or ("", "", "")
    assert (status, reason) == ("True", "AuthorityBothTrusted")
    assert "from 2026-11-29 08:00:00 UTC on" in words
    at(east, NOW + 7 * DAY)
    east.look()
    east.look()
    assert authority(east) != first
    assert has_issued(authority(east).certificate, certificate(east, 1).certificate)
    assert (east.says("CertificatesReady") or ("",) * 3)[1] == "AuthorityRetiring"
    at(east, NOW + 15 * DAY)
    east.look()
    assert value(east, TRUST, "ca.crt") == pem_of(authority(east).chain)
    assert (east.says("CertificatesReady") or ("",) * 3)[1] == "CertificatesCurrent"


def test_own_authority_issues_and_its_key_is_not_copied() -> None:
    east = East(1, listeners=LISTENERS, certificateAuthority={"secretName": "mine"})
    mine = new_authority("mine", "ns", NOW, 300 * DAY)
    east.kube.put(own("mine", mine))
    addressed(east)
    assert has_issued(mine.certificate, certificate(east, 0).certificate)
    assert ("Secret", CA) not in east.kube.objects


EXPIRED = new_authority("mine", "ns", NOW - 10 * DAY, 9 * DAY)
EARLY = new_authority("mine", "ns", NOW + DAY, 9 * DAY)
GOOD = new_authority("mine", "ns", NOW, 9 * DAY)
LEAF = issue(GOOD, named("x"), {"x"}, NOW, DAY, is_server=True)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (None, "there is no Secret mine in namespace ns: create it with the authority's certificate in ca.crt"),
        (own("mine", EXPIRED), "expired at 2026-11-21 08:00:00 UTC: store a new authority"),
        (own("mine", EARLY), "is not valid before 2026-11-23 07:00:00 UTC: store an authority that is valid now"),
        (own("mine", **{"ca.crt": pem_of(GOOD.chain)}), "has no key ca.key: it has ca.crt. Store"),
        (own("mine", GOOD, **{"ca.key": EARLY.key}), "the private key does not belong to the certificate CN="),
        (own("mine", LEAF), "CN=x is not the certificate of an authority"),
        (own("mine", GOOD, **{"ca.crt": b"x"}), "has no certificate in PEM format, or a damaged one"),
        (own("mine", GOOD, **{"ca.key": b"x"}), "the private key is not in PEM format, or damaged"),
    ],
)  # fmt: skip
def test_own_authority_that_cannot_issue_changes_nothing(secret: dict[str, Any] | None, words: str) -> None:
    east = encrypted()
    before = {
        name: dict(each["data"]) for (kind, name), each in east.kube.objects.items() if kind == "Secret"
    }
    east.change(2, listeners=LISTENERS, certificateAuthority={"secretName": "mine"})
    if secret is not None:
        east.kube.put(secret)
    east.look()
    status, reason, said = east.says("CertificatesReady") or ("", "", "")
    assert (status, reason) == ("False", "AuthorityInvalid")
    assert words in said
    assert "nothing was changed, and brokers keep the certificates that they have" in said
    assert (east.says() or ("",) * 3)[
        1
    ] != "AuthorityInvalid"  # brokers run with the certificates that there are
    for name, data in before.items():
        assert east.kube.objects["Secret", name]["data"] == data


def test_brokers_without_certificates_are_not_started() -> None:
    east = East(1, listeners=LISTENERS, certificateAuthority={"secretName": "mine"})
    addressed(east)
    assert ("StatefulSet", "east-brokers") not in east.kube.objects
    assert (east.says() or ("",) * 3)[:2] == ("False", "AuthorityInvalid")
    assert "brokers are unchanged until then" in (east.says("CertificatesReady") or ("",) * 3)[2]


def test_secret_of_somebody_else_is_left_alone() -> None:
    east = East(1, listeners=LISTENERS)
    east.kube.put(own(TRUST, GOOD))
    addressed(east)
    assert (east.says("CertificatesReady") or ("",) * 3)[1] == "ObjectNotOurs"
    assert ("Secret", BROKERS) not in east.kube.objects


def test_authority_whose_secret_has_another_certificate_is_replaced() -> None:
    """What clients would not accept as an issuer must not issue."""
    east = encrypted(1)
    broker = certificate(east, 0)
    east.kube.objects["Secret", CA]["data"] = own(CA, broker)["data"]
    east.look()
    assert is_authority(authority(east).certificate)
    at(east, NOW + 400 * DAY)
    east.look()
    assert has_issued(authority(east).certificate, certificate(east, 0).certificate)
    assert authority(east).certificate in read_certificates(value(east, TRUST, "ca.crt"))


@pytest.mark.parametrize("since", [2**60, -(2**60), 2**70, "NaN", "1e300", '"soon"', "null", "[]"])
def test_times_of_authorities_that_are_none_are_written_again(since: object) -> None:
    east = encrypted(1)
    metadata = east.kube.objects["Secret", TRUST]["metadata"]
    before = metadata["annotations"][AUTHORITIES]
    name = next(iter(json.loads(before)))
    metadata["annotations"] = {AUTHORITIES: f'{{"{name}":{{"since":{since},"unused":null}}}}'}
    east.look()
    assert east.kube.objects["Secret", TRUST]["metadata"]["annotations"][AUTHORITIES] == before
    assert (east.says("CertificatesReady") or ("",) * 3)[0] == "True"


def test_broker_that_does_not_serve_its_certificate_is_named() -> None:
    """Its port refuses connections. For ten minutes it may just not have read its files."""
    port = fixed_port()
    east = East(1, listeners=[INTERNAL, {**LISTENERS[1], "port": port}])
    addressed(east)
    manifest = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]
    metadata = {"namespace": "ns", "name": "east-brokers-0", **manifest["metadata"]}
    status = {"podIP": "127.0.0.1", "conditions": []}
    east.kube.put({"kind": "Pod", "metadata": metadata, "spec": manifest["spec"], "status": status})
    assert east.look() == SOON
    assert (east.says("CertificatesReady") or ("",) * 3)[:2] == ("True", "CertificatesCurrent")
    at(east, NOW + timedelta(minutes=11))
    east.look()
    found = east.says("CertificatesReady") or ("",) * 3
    assert found[:2] == ("False", "CertificateNotServed")
    assert "do not serve what was issued for them: 0;" in found[2]


def test_missing_right_to_secrets_is_a_condition() -> None:
    east = East(1, listeners=LISTENERS)
    east.kube.refused["Secret"] = KubeError(403, "Forbidden", "secrets is forbidden")
    addressed(east)
    status, reason, said = east.says("CertificatesReady") or ("", "", "")
    assert (status, reason) == ("False", "SecretNotReadable")
    assert "set operator.users: true in the chart's values" in said
