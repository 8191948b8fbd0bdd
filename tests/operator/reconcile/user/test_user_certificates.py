"""Users with certificates: issued by the Cluster's authority, renewed, replaced, and their principal."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from millstream_harness.in_memory import NOW, InMemory, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.certificates.issuing import (
    Issued,
    fingerprint,
    has_issued,
    new_authority,
    pem_of,
    shown,
)
from millstream_operator.models import User, decode_as
from millstream_operator.reconcile.user.apply import reconcile_users
from millstream_operator.resources.certificates import AUTHORITIES
from millstream_operator.resources.user import certificate_of

DAY = timedelta(days=1)
READ = {
    "type": "Simple",
    "acls": [{"resource": {"type": "topic", "name": "t"}, "operations": ["Read"]}],
}
OLD, NEW = (new_authority("default", "ns", NOW, 900 * DAY) for _ in range(2))


def secret(name: str, annotations: Mapping[str, str], **data: bytes) -> dict[str, Any]:
    encoded = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": "ns", "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


class Tls:
    """A User alice of Cluster default, and the Cluster's Secrets."""

    def __init__(self, **spec: Any) -> None:
        self.rules: set[Any] = set()
        self.quotas: dict[str, Any] = {}
        given = {"authentication": {"type": "Tls"}, **spec}
        alice = stored(resource("User", "alice", clusterRef={"name": "default"}, **given))
        self.memory: InMemory = in_memory(
            stored(cluster("default")),
            alice,
            rules=lambda: sorted(self.rules),
            create_rules=self._create,
            user_quotas=dict,
            change_user_quotas=self._quotas,
        )
        self.authority(OLD, OLD)

    def _create(self, rules: list[Any]) -> dict[Any, None]:
        self.rules |= set(rules)
        return dict.fromkeys(rules)

    def _quotas(self, changes: Mapping[str, Any]) -> dict[str, None]:
        self.quotas |= changes
        return dict.fromkeys(changes)

    def authority(self, issuer: Issued, *published: Issued, since: datetime = NOW - DAY) -> None:
        """The Cluster has this authority, and has published these."""
        times = ",".join(
            f'"{fingerprint(each.certificate)}":{{"since":{int(since.timestamp())},"unused":null}}'
            for each in published
        )
        trusted = b"".join(pem_of(each.chain) for each in published)
        put = self.memory.kube.put
        put(secret("default-cluster-ca", {}, ca_crt=pem_of(issuer.chain), ca_key=issuer.key))
        put(secret("default-cluster-ca-cert", {AUTHORITIES: f"{{{times}}}"}, ca_crt=trusted))

    def look(self, after: timedelta = timedelta(), **spec: Any) -> None:
        manifest = self.memory.kube.objects["User", "alice"]
        manifest["spec"] |= spec
        services = replace(self.memory.services, now=lambda: NOW + after)
        self.memory.kube.applied.clear()
        services.store.put(manifest)
        reconcile_users(services, [decode_as(User, manifest)])

    @property
    def issued(self) -> Issued:
        found = certificate_of(self.memory.kube.objects["Secret", "alice"])
        assert found is not None
        return found

    @property
    def ready(self) -> tuple[str, str, str]:
        return self.memory.condition("User", "alice") or ("", "", "")


def test_certificate_is_issued_once_and_its_subject_is_the_principal() -> None:
    alice = Tls(authorization=READ, quotas={"producerByteRate": 5})
    alice.look()
    assert alice.ready == ("True", "UserReady", "certificate in Secret alice, 1 access rule, 1 quota")
    assert shown(alice.issued.certificate) == "CN=alice"
    assert has_issued(OLD.certificate, alice.issued.certificate)
    assert {rule.principal for rule in alice.rules} == {"User:CN=alice"}
    assert list(alice.quotas) == ["CN=alice"]
    assert alice.memory.status("User", "alice")["username"] == "CN=alice"
    data = alice.memory.kube.objects["Secret", "alice"]["data"]
    assert base64.b64decode(data["ca.crt"]) == pem_of(OLD.chain)
    first = alice.issued
    alice.look()
    assert alice.issued == first
    assert alice.memory.kube.applied_names("Secret") == []


def test_certificate_is_renewed_at_two_thirds_of_its_life() -> None:
    alice = Tls()
    alice.look()
    first = alice.issued
    alice.look(240 * DAY)
    assert alice.issued == first
    alice.look(245 * DAY)
    assert alice.issued != first


def test_request_replaces_the_certificate_once() -> None:
    alice = Tls()
    alice.look()
    first = alice.issued
    alice.look(rotate={"requestId": "1"})
    second = alice.issued
    assert second != first
    alice.look()
    assert alice.issued == second


def test_new_authority_issues_again_only_when_brokers_trust_it() -> None:
    alice = Tls()
    alice.look()
    first = alice.issued
    alice.authority(NEW, OLD, NEW, since=NOW)
    alice.look(timedelta(minutes=1))
    assert alice.issued == first
    alice.look(timedelta(minutes=16))
    assert has_issued(NEW.certificate, alice.issued.certificate)


def test_damaged_or_foreign_certificate_is_replaced() -> None:
    alice = Tls()
    alice.look()
    data = alice.memory.kube.objects["Secret", "alice"]["data"]
    data["user.key"] = base64.b64encode(NEW.key).decode()
    alice.look()
    assert shown(alice.issued.certificate) == "CN=alice"


def test_cluster_without_an_authority_is_named() -> None:
    alice = Tls()
    del alice.memory.kube.objects["Secret", "default-cluster-ca"]
    alice.look()
    status, reason, words = alice.ready
    assert (status, reason) == ("False", "AuthorityInvalid")
    assert "Cluster default has no valid authority (Secret default-cluster-ca in namespace ns)" in words
    assert ("Secret", "alice") not in alice.memory.kube.objects
