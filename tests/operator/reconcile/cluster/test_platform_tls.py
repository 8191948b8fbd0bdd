"""TLS inside Kubernetes: of the Internal listener, between brokers, and of the operator, in rolls without an outage."""

from __future__ import annotations

import base64
import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from millstream_harness.cluster_looks import INTERNAL, East, answers, partition
from millstream_harness.in_memory import NOW, stored
from millstream_harness.manifests import resource
from millstream_kafka.client.security import CredentialsError
from millstream_operator.certificates.issuing import new_authority, pem_of
from millstream_operator.kafka.records import AdminError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.resources.mirror import LOGS_IN

PASSWORDS = {"authentication": {"type": "ScramSha512"}}
CERTIFICATES = {"authentication": {"type": "Tls"}}
TLS = {"tls": "Enabled"}
ENCRYPTED = [{**INTERNAL, **TLS}]
OPEN, BROKERS, PLATFORM = (f"east-bootstrap.ns.svc:{port}" for port in (9092, 9091, 9090))
HEALTHY = answers(partition("a", 0, 0, 1, 2))


def config(east: East, file: str = "server") -> dict[str, str]:
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"][f"{file}.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def protocols(east: East) -> dict[str, str]:
    return dict(one.split(":") for one in config(east)["listener.security.protocol.map"].split(","))


def connects(east: East) -> tuple[str, bool, bool]:
    """Where the operator connects, whether it logs in, and whether by TLS."""
    found = east.memory.services.client_of(decode_as(Cluster, east.kube.objects["Cluster", "east"]))
    security = found.security
    return (
        found.bootstrap,
        security is not None and security.sasl is not None,
        security is not None and security.tls is not None,
    )


def ports(east: East, service: str) -> dict[str, int]:
    found = east.kube.objects["Service", service]["spec"]["ports"]
    return {one["name"]: one["port"] for one in found}


def roll(east: East, brokers: int = 3) -> None:
    """Replace all pods by such of the present template, and reconcile."""
    for broker in range(brokers):
        east.kube.objects.pop(("Pod", f"east-brokers-{broker}"), None)
    east.run(*[True] * brokers)
    east.look(**HEALTHY)


def cluster(**spec: Any) -> East:
    east = East(3, {"clusterId": "id"}, **spec)
    east.look()
    east.run(True, True, True)
    east.look(**HEALTHY)
    return east


def test_a_new_cluster_has_tls_from_its_first_broker_on() -> None:
    east = East(3, listeners=ENCRYPTED)
    east.look()
    assert protocols(east) == {"INTERNAL": "SSL", "REPLICATION-9091": "SSL", "PLATFORM-9090": "SASL_SSL"}
    assert connects(east) == (PLATFORM, True, True)
    assert ports(east, "east-bootstrap") == {"kafka": 9092, "platform-tls": 9090}
    assert ports(east, "east-broker1") == {"kafka": 9092, "platform-tls": 9090}
    assert "PLATFORM-9090://east-broker1.ns.svc:9090" in config(east, "broker-1")["advertised.listeners"]


def test_brokers_verify_each_other_and_the_operator_logs_in() -> None:
    east = East(3, listeners=ENCRYPTED)
    east.look()
    found = config(east)
    brokers, platform = "listener.name.replication-9091", "listener.name.platform-9090"
    assert found[f"{brokers}.ssl.client.auth"] == "required"
    assert found[f"{brokers}.ssl.truststore.location"] == "/run/millstream/tls/ca.crt"
    assert found[f"{brokers}.ssl.endpoint.identification.algorithm"] == "", (
        "they connect to addresses of pods"
    )
    assert f"{brokers}.sasl.enabled.mechanisms" not in found
    assert found[f"{platform}.ssl.client.auth"] == "none"
    assert found[f"{platform}.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    assert found[f"{platform}.sasl.scram.credentials.location"] == "/run/millstream/platform/credentials"


@pytest.mark.parametrize(
    ("closing", "protocol"),
    [(TLS, "SSL"), ({**PASSWORDS, **TLS}, "SASL_SSL"), ({**CERTIFICATES, **TLS}, "SSL")],
    ids=["tls", "passwords", "certificates"],
)
def test_an_open_cluster_gets_tls_in_two_rolls(closing: dict[str, Any], protocol: str) -> None:
    east = cluster()
    east.change(3, listeners=[{**INTERNAL, **closing}])
    east.look(**HEALTHY)
    prepared = {"INTERNAL": "PLAINTEXT", "REPLICATION-9091": "SASL_PLAINTEXT", "PLATFORM-9090": "SASL_SSL"}
    assert protocols(east) == prepared
    keystore = "/run/millstream/tls/broker-${env:POD_INDEX}.pem"
    assert config(east)["listener.name.replication-9091.ssl.keystore.location"] == keystore
    assert connects(east) == (OPEN, False, False)
    assert "listeners" not in east.status, "the Internal listener is open"
    east.run(True, True, True)  # the operator has deleted one pod of the three
    east.look(**HEALTHY)
    assert protocols(east) == prepared
    assert connects(east) == (OPEN, False, False)
    roll(east)
    assert protocols(east) == {"INTERNAL": protocol, "REPLICATION-9091": "SSL", "PLATFORM-9090": "SASL_SSL"}
    assert connects(east) == (PLATFORM, True, True)
    order = [(one["kind"], "platform" in one.get("status", {})) for one in east.kube.applied]
    assert order.index(("Cluster", True)) < order.index(("ConfigMap", False)), "the operator moves first"
    roll(east)
    assert east.says("RollingUpdate") is None
    assert east.status["platform"] == {
        "bootstrap": PLATFORM,
        "secret": "east-brokers-platform",
        "caSecret": "east-cluster-ca-cert",
        "internal": "Closed",
    }


def test_a_cluster_with_passwords_gets_tls_in_two_rolls_and_its_operator_is_never_without_a_listener() -> (
    None
):
    east = cluster(listeners=[{**INTERNAL, **PASSWORDS}])
    assert connects(east) == (BROKERS, True, False)
    east.change(3, listeners=[{**INTERNAL, **PASSWORDS, **TLS}])
    east.look(**HEALTHY)
    assert protocols(east)["REPLICATION-9091"] == "SASL_PLAINTEXT"
    assert connects(east) == (BROKERS, True, False)
    assert ports(east, "east-bootstrap") == {"kafka": 9092, "platform": 9091, "platform-tls": 9090}
    roll(east)
    assert protocols(east)["REPLICATION-9091"] == "SSL"
    assert connects(east) == (PLATFORM, True, True)
    roll(east)
    assert east.says("RollingUpdate") is None


def workers(logs_in: str) -> dict[str, Any]:
    name = {"namespace": "ns", "name": "copy-mirror", "generation": 1, "ownerReferences": [{"uid": "u-copy"}]}
    template = {"metadata": {"annotations": {LOGS_IN: logs_in}}}
    status = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    return {"kind": "Deployment", "metadata": name, "spec": {"template": template}, "status": status}


def test_brokers_change_their_own_listener_when_no_worker_of_a_mirror_is_there() -> None:
    east = cluster(listeners=[{**INTERNAL, **PASSWORDS}])
    mirror = resource(
        "MirrorMaker",
        "copy",
        sources=[{"name": "west", "bootstrap": "west:9092"}],
        target={"clusterRef": {"name": "east"}},
        topics={"include": [".*"]},
    )
    east.memory.services.store.put(stored(mirror))
    east.kube.put(workers("ns/east"))
    east.change(3, listeners=[{**INTERNAL, **PASSWORDS, **TLS}])
    east.look(**HEALTHY)
    roll(east)
    assert protocols(east)["REPLICATION-9091"] == "SASL_PLAINTEXT"
    assert connects(east) == (PLATFORM, True, True)
    assert (east.says("Warning") or ("",) * 3)[2] == (
        "spec.listeners: brokers have no TLS among themselves yet, because workers of MirrorMaker ns/copy do not log in"
        " with TLS yet: they will, unless it is paused or has a problem"
    )
    east.kube.put(workers("ns/east/tls"))
    east.look(**HEALTHY)
    assert protocols(east)["REPLICATION-9091"] == "SSL"
    assert east.says("Warning") is None


def test_tls_between_brokers_stays_when_the_internal_listener_has_it_no_more() -> None:
    east = cluster(listeners=ENCRYPTED)
    for listener, protocol in ((INTERNAL, "PLAINTEXT"), ({**INTERNAL, **PASSWORDS}, "SASL_PLAINTEXT")):
        east.change(3, listeners=[listener])
        east.look(**HEALTHY)
        roll(east)
        assert protocols(east) == {
            "INTERNAL": protocol,
            "REPLICATION-9091": "SSL",
            "PLATFORM-9090": "SASL_SSL",
        }
        assert connects(east) == (PLATFORM, True, True)
        assert (east.says("CertificatesReady") or ("",))[0] == "True"
        assert east.says("RollingUpdate") is None


def test_a_change_of_mind_on_the_way_ends_with_tls_between_brokers_alone() -> None:
    east = cluster()
    east.change(3, listeners=ENCRYPTED)
    east.look(**HEALTHY)
    east.change(3, listeners=[INTERNAL])
    east.look(**HEALTHY)
    roll(east)
    roll(east)
    assert protocols(east) == {
        "INTERNAL": "PLAINTEXT",
        "REPLICATION-9091": "SSL",
        "PLATFORM-9090": "SASL_SSL",
    }
    assert east.says("RollingUpdate") is None


def test_pods_that_are_all_gone_for_a_moment_move_nobody() -> None:
    east = cluster()
    for broker in range(3):
        del east.kube.objects["Pod", f"east-brokers-{broker}"]
    east.change(3, listeners=ENCRYPTED)
    east.look(**HEALTHY)
    assert connects(east) == (OPEN, False, False)
    assert protocols(east)["REPLICATION-9091"] == "SASL_PLAINTEXT"


def test_a_lost_status_changes_no_broker() -> None:
    east = cluster(listeners=ENCRYPTED)
    east.kube.objects["Cluster", "east"]["status"] = {}
    east.look(**HEALTHY, cluster_id="id")
    assert "ConfigMap" not in east.touched
    assert connects(east) == (PLATFORM, True, True)


def test_the_operator_trusts_what_the_clusters_secret_has_at_each_connection() -> None:
    east = cluster(listeners=ENCRYPTED)

    def trusted() -> int:
        found = east.memory.services.client_of(decode_as(Cluster, east.kube.objects["Cluster", "east"]))
        assert found.security is not None
        context, _ = found.security.load()
        assert context is not None
        assert context.check_hostname
        return len(context.get_ca_certs())

    assert trusted() == 1
    data = east.kube.objects["Secret", "east-cluster-ca-cert"]["data"]
    other = pem_of(new_authority("east", "ns", NOW, (NOW - NOW.replace(year=2020))).chain)
    data["ca.crt"] = base64.b64encode(base64.b64decode(data["ca.crt"]) + other).decode()
    assert trusted() == 2, "both, while an authority is replaced"
    del east.kube.objects["Secret", "east-cluster-ca-cert"]
    with pytest.raises(
        CredentialsError, match=r"key ca\.crt of Secret ns/east-cluster-ca-cert does not exist"
    ):
        trusted()


def test_certificates_that_expired_are_replaced_though_no_broker_can_be_asked() -> None:
    """All of them, while the operator was away: it verifies brokers, and these verify each other."""
    east = cluster(listeners=ENCRYPTED)
    before = dict(east.kube.objects["Secret", "east-brokers-tls"]["data"])
    later = dataclasses.replace(east.memory.services, now=lambda: NOW + timedelta(days=400))
    object.__setattr__(east.memory, "services", later)
    expired = AdminError("no connection to east-bootstrap.ns.svc:9090: certificate has expired")
    requests = ("brokers", "replicas", "reassigning", "held", "strays", "brokers_config", "cluster_id")
    east.look(**dict.fromkeys(requests, expired))
    after = east.kube.objects["Secret", "east-brokers-tls"]["data"]
    assert {name for name in after if after[name] != before[name]} == {f"broker-{n}.pem" for n in range(3)}


def test_the_operators_ports_are_free_ones() -> None:
    taken = {"name": "old", "type": "NodePort", "port": 9090, "allowPlaintext": True}
    east = East(1, listeners=[*ENCRYPTED, taken])
    east.look()
    for kind, name in list(east.kube.objects):
        if kind == "Service" and name.startswith("east-old"):
            east.kube.objects[kind, name]["spec"]["ports"][0]["nodePort"] = 30000
    east.look()
    assert "REPLICATION-9091://:9091,PLATFORM-9090://:9089" in config(east)["listeners"]


def test_network_policies_let_the_operator_and_our_pods_reach_their_listener_alone() -> None:
    east = East(3, listeners=ENCRYPTED, networkPolicy={"enabled": True})
    object.__setattr__(
        east.memory, "services", dataclasses.replace(east.memory.services, operator_namespace="ops")
    )
    east.look()
    rules = east.kube.objects["NetworkPolicy", "east-brokers"]["spec"]["ingress"]
    by_port = {rule["ports"][0]["port"]: rule.get("from", []) for rule in rules}
    operator, ours = (each["podSelector"] for each in by_port[9090])
    assert operator["matchLabels"]["app.kubernetes.io/name"] == "millstream"
    (label,) = ours["matchExpressions"]
    assert label["values"] == ["millstream-consumers", "millstream-load", "millstream-mirror"]
    (brokers,) = by_port[9091]
    assert brokers["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "broker"


def test_a_listener_with_tls_reads_its_certificate_from_the_mounted_files() -> None:
    east = East(3, listeners=[{**INTERNAL, **TLS, **CERTIFICATES}])
    east.look()
    found = config(east)
    prefix = "listener.name.internal.ssl"
    assert found[f"{prefix}.keystore.location"] == "/run/millstream/tls/broker-${env:POD_INDEX}.pem"
    assert found[f"{prefix}.client.auth"] == "required"
    pod = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]["spec"]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert (mounts["run"], mounts["conf"]) == ("/run/millstream/tls", "/run/millstream/platform")


def test_a_listener_that_needs_more_than_an_address_is_in_the_status() -> None:
    east = cluster(listeners=[{**INTERNAL, **TLS, **PASSWORDS}])
    (shown,) = east.status["listeners"]
    assert shown == {
        "name": "internal",
        "protocol": "SASL_SSL",
        "caSecret": "east-cluster-ca-cert",
        "bootstrap": "east-bootstrap.ns.svc:9092",
        "addresses": [f"east-broker{broker}.ns.svc:9092" for broker in range(3)],
    }
    east.metadata = {"annotations": {"millstream.dev/paused": "true"}}
    east.change(3, listeners=[INTERNAL])
    east.look(**HEALTHY)
    assert east.status["listeners"] == [shown], "brokers are unchanged"
    east.metadata = {"annotations": {}}
    east.look(**HEALTHY)
    assert "listeners" not in east.status
