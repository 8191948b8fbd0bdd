"""The workers' own user: its name, Secret, credential and rules, from its creation to its end."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from millstream_harness.in_memory import NOW, InMemory, in_memory, stored
from millstream_harness.known_users import SHA_512, KnownUsers
from millstream_harness.manifests import cluster, resource
from millstream_operator.kafka.records import (
    AdminError,
    NotAuthorized,
    Refusal,
    ScramCredential,
)
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import Cluster, MirrorMaker, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.reconcile.common.pod_users import remove_unused_users
from millstream_operator.reconcile.mirror.apply import reconcile_mirror
from millstream_operator.resources.mirror import CONFIG_HASH, LOGS_IN

SECRET = "copy-mirror-user"
USER = "millstream-pods.mirrormaker.u-copy"
PLATFORM = {"platform": {"bootstrap": "west-bootstrap.ns.svc:9091", "secret": "s", "internal": "Open"}}


def a_mirror(**spec: Any) -> dict[str, Any]:
    wanted = {
        "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
        "target": {"clusterRef": {"name": "east"}},
        "topics": {"include": ["orders.*"]},
        **spec,
    }
    return stored(resource("MirrorMaker", "copy", **wanted))


def started(brokers: KnownUsers, *places: str, **spec: Any) -> InMemory:
    """A mirror whose Clusters ``places`` ask for a login."""
    clusters = [
        stored(cluster(name), PLATFORM if name in places else None, uid=f"u-{name}")
        for name in ("west", "east")
    ]
    return in_memory(*clusters, a_mirror(**spec), **brokers.answers)


def look(found: InMemory) -> None:
    manifest = found.kube.objects["MirrorMaker", "copy"]
    found.services.store.put(manifest)
    reconcile_mirror(found.services, decode_as(MirrorMaker, manifest))


def set_time(found: InMemory, seconds: int) -> None:
    """So many seconds after the start."""
    object.__setattr__(found.services, "now", lambda: NOW + timedelta(seconds=seconds))


def sweep(found: InMemory, name: str = "west") -> None:
    manifest = found.kube.objects["Cluster", name]
    cluster = decode_as(Cluster, manifest)
    remove_unused_users(found.services, cluster, found.services.brokers_of(cluster))


def password(found: InMemory) -> str:
    return base64.b64decode(found.kube.objects["Secret", SECRET]["data"]["password"]).decode()


def file(found: InMemory) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(found.kube.objects["ConfigMap", "copy-mirror"]["data"]["mirror.json"])
    return text


def template(found: InMemory) -> dict[str, Any]:
    return found.kube.objects["Deployment", "copy-mirror"]["spec"]["template"]


def test_mirror_of_a_cluster_that_asks_for_a_login_has_a_user_of_its_own() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    secret = found.kube.objects["Secret", SECRET]
    assert [one["uid"] for one in secret["metadata"]["ownerReferences"]] == ["u-copy"]
    assert brokers.accepts(USER, password(found))
    (source,) = file(found)["sources"]
    where = f"/run/millstream/secrets/{SECRET}/password"
    assert source == {
        "name": "west",
        "bootstrap": "west-bootstrap.ns.svc:9091",
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "username": {"value": USER},
            "password": {"file": where, "from": f"key password of Secret {SECRET}"},
        },
    }
    assert file(found)["target"] == {"bootstrap": "east-bootstrap.ns.svc:9092"}
    (volume,) = (one for one in template(found)["spec"]["volumes"] if "projected" in one)
    (mounted,) = volume["projected"]["sources"]
    assert (mounted["secret"]["name"], mounted["secret"]["items"][0]["key"]) == (SECRET, "password")
    assert template(found)["metadata"]["annotations"][LOGS_IN] == "ns/west"
    everything = [one for (kind, _), one in found.kube.objects.items() if kind != "Secret"]
    assert password(found) not in json.dumps(everything)
    written = len(found.kube.applied)
    look(found)
    assert found.kube.applied[written:] == [], "nothing is written again"


def test_mirror_of_open_clusters_needs_no_secret_and_no_request() -> None:
    found = in_memory(*(stored(cluster(name)) for name in ("west", "east")), a_mirror())
    look(found)
    assert ("Secret", SECRET) not in found.kube.objects
    assert file(found)["sources"] == [{"name": "west", "bootstrap": "west-bootstrap.ns.svc:9092"}]


def test_rights_are_those_that_the_mirror_needs() -> None:
    brokers = KnownUsers()
    topics = {"include": ["orders.*", "users"], "exclude": ["orders-test", "orders[.]eu.*", "orders.+x"]}
    found = started(brokers, "west", topics=topics, groups={"include": ["app"]})
    look(found)
    assert brokers.may(USER) == {
        "READ on TOPIC orders (PREFIXED) from *",
        "DESCRIBE_CONFIGS on TOPIC orders (PREFIXED) from *",
        "READ on TOPIC users (LITERAL) from *",
        "DESCRIBE_CONFIGS on TOPIC users (LITERAL) from *",
        "DENY ALL on TOPIC orders-test (LITERAL) from *",
        "DENY ALL on TOPIC orders.eu (PREFIXED) from *",
        "DESCRIBE on GROUP millstream-mirror. (PREFIXED) from *",
        "DESCRIBE on GROUP app (LITERAL) from *",
    }
    found.kube.objects["MirrorMaker", "copy"]["spec"]["topics"] = {"include": [".*"]}
    look(found)
    assert "READ on TOPIC * (LITERAL) from *" in brokers.may(USER)
    assert "DENY ALL on TOPIC __ (PREFIXED) from *" in brokers.may(USER), "no internal topics"
    assert not any("orders" in rule for rule in brokers.may(USER))


def test_rights_in_the_target_are_for_the_copies() -> None:
    brokers = KnownUsers()
    found = started(brokers, "east", naming="Prefixed")
    look(found)
    of_topics = {
        f"{each} on TOPIC west.orders (PREFIXED) from *" for each in ("CREATE", "READ", "WRITE", "ALTER")
    }
    of_groups = {
        "DESCRIBE on GROUP millstream-mirror. (PREFIXED) from *",
        "READ on GROUP millstream-mirror.copy.west (LITERAL) from *",
    }
    assert brokers.may(USER) == of_topics | of_groups
    found.kube.objects["MirrorMaker", "copy"]["spec"]["topics"] = {"include": ["users"]}
    look(found)
    assert "WRITE on TOPIC west.users (LITERAL) from *" in brokers.may(USER)
    assert of_topics <= brokers.may(USER), "workers note there that they no longer mirror the topics"


def test_deleted_secret_gives_another_password_and_other_workers() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    first, before = password(found), template(found)["metadata"]["annotations"][CONFIG_HASH]
    iterations = brokers.credentials[USER].iterations
    del found.kube.objects["Secret", SECRET]
    look(found)
    assert password(found) != first
    assert brokers.accepts(USER, password(found))
    assert brokers.credentials[USER].iterations != iterations
    assert template(found)["metadata"]["annotations"][CONFIG_HASH] != before


@pytest.mark.parametrize(
    "change",
    [
        lambda secret: secret["data"].pop("password"),
        lambda secret: secret["data"].update(password="%"),
        lambda secret: secret["data"].update(username=base64.b64encode(b"admin").decode()),
        lambda secret: secret["metadata"]["annotations"].clear(),
        lambda secret: secret["metadata"]["annotations"].update({"millstream.dev/iterations": "1000000000"}),
    ],
    ids=["no password", "no Base64", "another user", "no number", "a number of its own"],
)
def test_damaged_secret_is_replaced(change: Callable[[dict[str, Any]], None]) -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    first = password(found)
    change(found.kube.objects["Secret", SECRET])
    look(found)
    assert password(found) != first
    assert list(brokers.credentials) == [USER]
    assert brokers.accepts(USER, password(found))


def test_each_request_gives_one_new_password() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west", rotate={"requestId": "1"})
    look(found)
    first = password(found)
    found.kube.objects["MirrorMaker", "copy"]["spec"]["rotate"] = {"requestId": "2"}
    look(found)
    second = password(found)
    assert second != first
    assert brokers.accepts(USER, second)
    look(found)
    del found.kube.objects["MirrorMaker", "copy"]["spec"]["rotate"]
    look(found)
    assert password(found) == second


def test_former_password_is_valid_for_the_time_of_the_rotation() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    first = password(found)
    found.kube.objects["MirrorMaker", "copy"]["spec"]["rotate"] = {"requestId": "1"}
    look(found)
    second = password(found)
    assert [brokers.accepts(USER, one) for one in (first, second)] == [True, True]
    assert brokers.credentials[USER].previous_valid_ms == 600_000
    brokers.credentials.clear()
    set_time(found, 400)
    look(found)
    assert [brokers.accepts(USER, one) for one in (first, second)] == [True, True], "set again"
    assert brokers.credentials[USER].previous_valid_ms == 200_000
    hashed = template(found)["metadata"]["annotations"][CONFIG_HASH]
    set_time(found, 600)
    look(found)
    assert set(found.kube.objects["Secret", SECRET]["data"]) == {"username", "password", "sasl.jaas.config"}
    assert password(found) == second
    assert template(found)["metadata"]["annotations"][CONFIG_HASH] == hashed, "no worker restarts"
    brokers.credentials.clear()
    look(found)
    assert [brokers.accepts(USER, one) for one in (first, second)] == [False, True]


def test_former_password_ends_within_a_day_whatever_the_clock_was() -> None:
    """Brokers refuse a longer time, and with it the new password."""
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    found.kube.objects["MirrorMaker", "copy"]["spec"]["rotate"] = {"requestId": "1"}
    set_time(found, 3 * 365 * 86_400)
    look(found)
    brokers.credentials.clear()
    set_time(found, 0)
    look(found)
    assert brokers.credentials[USER].previous_valid_ms == 86_400_000
    set_time(found, 86_400)
    look(found)
    assert set(found.kube.objects["Secret", SECRET]["data"]) == {"username", "password", "sasl.jaas.config"}


@pytest.mark.parametrize("how", ["request", "deleted", "damaged"])
def test_former_password_ends_at_once(how: str) -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    first = password(found)
    rotate = {"requestId": "1", "previousValidSeconds": 0 if how == "request" else 600}
    found.kube.objects["MirrorMaker", "copy"]["spec"]["rotate"] = rotate
    if how == "deleted":
        del found.kube.objects["Secret", SECRET]
    if how == "damaged":
        found.kube.objects["Secret", SECRET]["metadata"]["annotations"].clear()
    look(found)
    assert [brokers.accepts(USER, one) for one in (first, password(found))] == [False, True]


def test_brokers_without_the_user_get_it_again_and_the_password_stays() -> None:
    """Such as after their tree was restored from an older copy, or with a new Cluster of the name."""
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    first, rules = password(found), set(brokers.rules)
    brokers.credentials.clear()
    brokers.rules.clear()
    look(found)
    assert password(found) == first
    assert brokers.accepts(USER, first)
    assert brokers.rules == rules
    older = ScramCredential.of_password(
        USER, SHA_512, "older", iterations=brokers.credentials[USER].iterations - 1
    )
    brokers.credentials[USER] = older
    look(found)
    assert brokers.accepts(USER, first)


def test_mirror_that_is_created_again_is_another_user() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    found.kube.objects["MirrorMaker", "copy"]["metadata"]["uid"] = "u-again"
    look(found)
    status, reason, words = found.condition("MirrorMaker", "copy") or ("", "", "")
    assert (status, reason) == ("False", "ObjectNotOurs")
    assert f"Secret {SECRET} still belongs to an earlier MirrorMaker copy" in words
    for name in (("Secret", SECRET), ("ConfigMap", "copy-mirror"), ("Deployment", "copy-mirror")):
        del found.kube.objects[name]
    look(found)
    assert set(brokers.credentials) == {USER, "millstream-pods.mirrormaker.u-again"}
    sweep(found)
    assert set(brokers.credentials) == {"millstream-pods.mirrormaker.u-again"}
    assert {one.principal for one in brokers.rules} == {"User:millstream-pods.mirrormaker.u-again"}


def test_user_ends_with_its_mirror_and_others_stay() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    brokers.credentials["app"] = ScramCredential.of_password("app", SHA_512, "word")
    sweep(found)
    assert set(brokers.credentials) == {USER, "app"}
    change = found.services.store.remove(Key("MirrorMaker", "ns", "copy"), "u-copy")
    assert change.others == {Key("Cluster", "ns", "west"), Key("Cluster", "ns", "east")}, "they are looked at"
    sweep(found)
    assert set(brokers.credentials) == {"app"}
    assert brokers.rules == set()


@pytest.mark.parametrize(
    ("spec", "stays"),
    [
        ({"sources": [{"name": "west", "bootstrap": "west:9092"}]}, False),
        ({"target": {}}, True),
    ],
    ids=["names another cluster", "is not valid"],
)
def test_user_ends_when_its_mirror_no_longer_uses_the_cluster(spec: dict[str, Any], stays: bool) -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    manifest = found.kube.objects["MirrorMaker", "copy"]
    manifest["spec"].update(spec)
    manifest["metadata"]["generation"] = 7
    found.services.store.put(manifest)
    sweep(found)
    assert (USER in brokers.credentials) is stays


def test_cluster_that_no_longer_allows_the_namespace_removes_the_user() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    look(found)
    manifest = found.kube.objects["Cluster", "west"]
    elsewhere = {**manifest, "metadata": {**manifest["metadata"], "namespace": "other"}}
    cluster = decode_as(Cluster, elsewhere)
    found.kube.objects["MirrorMaker", "copy"]["spec"]["sources"][0]["clusterRef"]["namespace"] = "other"
    found.services.store.put(found.kube.objects["MirrorMaker", "copy"])
    remove_unused_users(found.services, cluster, found.services.brokers_of(cluster))
    assert USER not in brokers.credentials


def test_cluster_that_does_not_respond_stops_no_worker() -> None:
    """Its user and rights follow when it is back."""
    brokers = KnownUsers()
    found = started(brokers, "west")
    answers = found.brokers.answers
    found.brokers.answers = {**answers, "scram_users": AdminError("no broker responds")}
    look(found)
    assert template(found)["metadata"]["annotations"][LOGS_IN] == "ns/west"
    assert brokers.credentials == {}
    found.brokers.answers = answers
    look(found)
    assert brokers.accepts(USER, password(found))


def test_operator_without_rights_says_so() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west")
    found.kube.refused["Secret"] = KubeError(403, "Forbidden", "secrets is forbidden")
    look(found)
    assert (found.condition("MirrorMaker", "copy") or ())[1:2] == ("SecretNotReadable",)
    assert ("Deployment", "copy-mirror") not in found.kube.objects
    del found.kube.refused["Secret"]
    found.brokers.answers["scram_users"] = NotAuthorized("refused")
    look(found)
    assert (found.condition("MirrorMaker", "copy") or ())[1:2] == ("OperatorNotAuthorized",)
    found.brokers.answers |= {
        **brokers.answers,
        "create_rules": lambda rules: dict.fromkeys(rules, Refusal("POLICY_VIOLATION", "no")),
    }
    look(found)
    status, reason, words = found.condition("MirrorMaker", "copy") or ("", "", "")
    assert (status, reason) == ("False", "Refused")
    assert f"user {USER}" in words


def test_loop_through_the_address_of_the_login_is_found() -> None:
    brokers = KnownUsers()
    found = started(brokers, "west", target={"bootstrap": "west-bootstrap.ns.svc:9091"})
    look(found)
    assert (found.condition("MirrorMaker", "copy") or ())[1:2] == ("SameCluster",)


ENCRYPTED = {
    "platform": {
        "bootstrap": "west-bootstrap.ns.svc:9090",
        "secret": "s",
        "caSecret": "west-cluster-ca-cert",
        "internal": "Closed",
    }
}


def test_workers_log_in_with_tls_and_trust_a_copy_of_the_clusters_authorities() -> None:
    clusters = [stored(cluster("west"), ENCRYPTED, uid="u-west"), stored(cluster("east"), uid="u-east")]
    found = in_memory(*clusters, a_mirror(), **KnownUsers().answers)
    look(found)
    said = found.condition("MirrorMaker", "copy", "Ready") or ("", "", "")
    assert said[1] == "ClusterNotReady"
    assert "Cluster ns/west has no Secret west-cluster-ca-cert with its authorities yet" in said[2]
    assert ("Deployment", "copy-mirror") not in found.kube.objects
    for authorities in ("old", "old and new"):
        data = {"ca.crt": base64.b64encode(authorities.encode()).decode()}
        name = {"namespace": "ns", "name": "west-cluster-ca-cert"}
        found.kube.put({"kind": "Secret", "metadata": name, "data": data})
        look(found)
        assert found.kube.objects["Secret", "copy-mirror-trust"]["data"] == {"ns.west.crt": data["ca.crt"]}
    (source,), target = file(found)["sources"], file(found)["target"]
    assert source["bootstrap"] == "west-bootstrap.ns.svc:9090"
    where = "/run/millstream/secrets/copy-mirror-trust/ns.west.crt"
    assert [one["file"] for one in source["tls"]["caCertificates"]] == [where]
    assert source["tls"]["verifyHostname"] is True
    assert source["sasl"]["mechanism"] == "SCRAM-SHA-512"
    assert "tls" not in target
    assert template(found)["metadata"]["annotations"][LOGS_IN] == "ns/west/tls"
    (volume,) = (one for one in template(found)["spec"]["volumes"] if "projected" in one)
    mounted = [item["path"] for one in volume["projected"]["sources"] for item in one["secret"]["items"]]
    assert mounted == ["copy-mirror-user/password", "copy-mirror-trust/ns.west.crt"]
