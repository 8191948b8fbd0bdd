"""Reconciles of Users: requests to brokers, Secrets, statuses, and the time of the next look."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from millstream_harness.in_memory import NOW, InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.kafka.records import (
    AdminError,
    NotAuthorized,
    QuotaChange,
    Refusal,
    ScramCredential,
    ScramMechanism,
    ScramUser,
)
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import User, decode_as
from millstream_operator.reconcile.user.apply import reconcile_users
from millstream_operator.reconcile.user.plan import iterations_of
from millstream_operator.state.status import FINALIZER

CLUSTER = stored(cluster("default"))
SCRAM = {"type": "ScramSha512"}
OWN = {**SCRAM, "password": {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "word"}}}}
READ = {
    "type": "Simple",
    "acls": [{"resource": {"type": "topic", "name": "t"}, "operations": ["Read"]}],
}
SHA_512 = ScramMechanism.SCRAM_SHA_512


class Users:
    """Users as brokers keep them, behind the requests of KafkaAdmin."""

    def __init__(self) -> None:
        self.credentials: dict[str, ScramCredential] = {}
        self.rules: set[Any] = set()
        self.quotas: dict[str, dict[str, float]] = {}
        self.refused: dict[str, Refusal] = {}

    @property
    def answers(self) -> dict[str, Callable[..., Any]]:
        return {
            "scram_users": lambda names: {
                name: {SHA_512: one.iterations} for name, one in self.credentials.items() if name in names
            },
            "change_scram_users": self._scram,
            "rules": lambda: sorted(self.rules),
            "create_rules": self._create,
            "delete_rules": self.rules.difference_update,
            "user_quotas": lambda: self.quotas,
            "change_user_quotas": self._quotas,
        }

    def _scram(self, upsertions: list[ScramCredential], deletions: list[ScramUser]) -> dict[str, Any]:
        self.credentials |= {one.user: one for one in upsertions}
        for user, _ in deletions:
            self.credentials.pop(user, None)
        return {}

    def _create(self, rules: list[Any]) -> dict[Any, Refusal | None]:
        self.rules |= {rule for rule in rules if rule.name not in self.refused}
        return {rule: self.refused.get(rule.name) for rule in rules}

    def _quotas(self, changes: Mapping[str, QuotaChange]) -> dict[str, None]:
        for name, change in changes.items():
            now = {**self.quotas.get(name, {}), **change.set}
            self.quotas[name] = {key: value for key, value in now.items() if key not in change.remove}
        return {}


def user(name: str = "alice", status: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = spec.pop("metadata", {})
    return stored(resource("User", name, clusterRef={"name": "default"}, **spec), status, **metadata)


def look(found: InMemory, *names: str, after_s: float = 0.0) -> None:
    services = replace(found.services, now=lambda: NOW + timedelta(seconds=after_s))
    users = [decode_as(User, found.kube.objects["User", name]) for name in names or ("alice",)]
    for one in users:
        found.services.store.put(found.kube.objects["User", one.name])
    found.again.update({key.name: each for key, each in reconcile_users(services, users).items()})


def started(*objects: Mapping[str, Any], there: Users, **more: Any) -> InMemory:
    return in_memory(CLUSTER, *objects, **{**there.answers, **more})


def password(found: InMemory, name: str = "alice") -> str:
    return base64.b64decode(found.kube.objects["Secret", name]["data"]["password"]).decode()


def is_password_of(credential: ScramCredential, text: str) -> bool:
    again = ScramCredential.of_password(
        credential.user, SHA_512, text, iterations=credential.iterations, salt=credential.salt
    )
    return again == credential


def without_former(credential: ScramCredential) -> ScramCredential:
    """Without the former password."""
    return replace(credential, previous_salted_password=b"", previous_valid_ms=0)


def own_secret(**data: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    metadata = {"name": "mine", "namespace": "ns", "resourceVersion": "1"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


def test_requests_for_users_of_a_batch_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    there, names = Users(), ("alice", "bob")
    found = started(*(user(name, authentication=SCRAM) for name in names), there=there)
    beside = threading.Barrier(len(names), timeout=30)
    get, apply, salted = found.kube.get, found.kube.apply, ScramCredential.of_password
    begun: list[str] = []

    def waiting(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            begun.append(what)
            beside.wait()  # breaks unless the other user's is under way
            return call(*args, **kwargs)

        return wait

    monkeypatch.setattr(found.kube, "get", waiting("get", get))
    monkeypatch.setattr(found.kube, "apply", waiting("apply", apply))
    monkeypatch.setattr(ScramCredential, "of_password", waiting("salt", salted))
    look(found, *names)
    assert Counter(begun) == {"get": 2, "salt": 2, "apply": 8}, "of each: finalizer, Secret, two statuses"
    for name in names:
        assert found.condition("User", name) == ("True", "UserReady", f"password in Secret {name}")


def test_new_user_has_a_secret_of_its_own_and_nothing_is_written_again() -> None:
    there = Users()
    found = started(
        user(authentication=SCRAM, authorization=READ, quotas={"producerByteRate": 5}), there=there
    )
    look(found)
    words = "password in Secret alice, 1 access rule, 1 quota"
    assert found.condition("User", "alice") == ("True", "UserReady", words)
    secret = found.kube.objects["Secret", "alice"]
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == ["u-alice"]
    assert len(password(found)) == 32
    jaas = base64.b64decode(secret["data"]["sasl.jaas.config"]).decode()
    assert jaas.endswith(f'ScramLoginModule required username="alice" password="{password(found)}";')
    assert is_password_of(there.credentials["alice"], password(found))
    assert (len(there.rules), there.quotas["alice"]) == (1, {"producer_byte_rate": 5.0})
    assert found.kube.objects["User", "alice"]["metadata"]["finalizers"] == [FINALIZER]
    applied, asked = len(found.kube.applied), len(found.brokers.asked)
    look(found)
    assert len(found.kube.applied) == applied
    assert [request for request, *_ in found.brokers.asked[asked:]] == ["scram_users", "rules", "user_quotas"]
    assert password(found) not in repr(found.kube.objects["User", "alice"])


def test_rotation_gives_one_new_password_for_each_request() -> None:
    there = Users()
    found = started(user(authentication=SCRAM, rotate={"requestId": "1"}), there=there)
    look(found)
    first = password(found)
    assert found.status("User", "alice")["rotatedFor"] == "1"
    look(found)
    assert password(found) == first, "a new password is as good as a rotated one"
    found.kube.objects["User", "alice"]["spec"]["rotate"] = {"requestId": "2"}
    found.kube.objects["User", "alice"]["metadata"]["generation"] = 3
    found.kube.objects["Secret", "alice"]["metadata"]["resourceVersion"] = "8"
    look(found)
    second = password(found)
    assert second != first
    assert found.status("User", "alice")["rotatedFor"] == "2"
    assert is_password_of(without_former(there.credentials["alice"]), second)
    found.kube.objects["User", "alice"]["status"] = {}  # restored from a backup without its status
    look(found)
    assert password(found) == second
    del found.kube.objects["Secret", "alice"]
    look(found)
    assert password(found) not in (first, second)
    assert is_password_of(there.credentials["alice"], password(found))


def is_former_of(credential: ScramCredential, text: str) -> bool:
    again = ScramCredential.of_password(
        credential.user, SHA_512, text, iterations=credential.iterations, salt=credential.salt
    )
    return again.salted_password == credential.previous_salted_password


def another_version(found: InMemory) -> None:
    """Of the Secret, as Kubernetes gives one with each write."""
    metadata = found.kube.objects["Secret", "alice"]["metadata"]
    metadata["resourceVersion"] = str(int(metadata.get("resourceVersion") or 0) + 1)


def rotate(found: InMemory, **rotation: Any) -> None:
    another_version(found)
    found.kube.objects["User", "alice"]["spec"]["rotate"] = rotation
    found.kube.objects["User", "alice"]["metadata"]["generation"] += 1
    look(found)


def test_former_password_is_valid_for_a_time() -> None:
    there = Users()
    found = started(user(authentication=SCRAM), there=there)
    look(found)
    first = password(found)
    rotate(found, requestId="1")
    credential, second = there.credentials["alice"], password(found)
    assert second != first
    assert is_password_of(without_former(credential), second)
    assert is_former_of(credential, first)
    assert credential.previous_valid_ms == 600_000
    assert found.again["alice"] == 300.0
    there.credentials.clear()  # the brokers' data was restored
    look(found, after_s=599.0)
    assert there.credentials["alice"].previous_valid_ms == 1000
    assert found.again["alice"] == 2.0
    assert found.condition("User", "alice")[2].startswith(
        "password in Secret alice, the former password is valid until "
    )
    another_version(found)
    look(found, after_s=600.0)
    assert is_password_of(there.credentials["alice"], second)
    assert sorted(found.kube.objects["Secret", "alice"]["data"]) == [
        "password",
        "sasl.jaas.config",
        "username",
    ]
    assert first not in repr(found.kube.objects["User", "alice"])


def test_former_password_ends_at_once_on_request_or_with_its_secret() -> None:
    there = Users()
    found = started(user(authentication=SCRAM), there=there)
    look(found)
    rotate(found, requestId="1", previousValidSeconds=0)
    assert is_password_of(there.credentials["alice"], password(found))
    rotate(found, requestId="2", previousValidSeconds=86400)
    assert there.credentials["alice"].previous_valid_ms == 86_400_000
    del found.kube.objects["Secret", "alice"]
    look(found)
    assert is_password_of(there.credentials["alice"], password(found))


def test_password_that_changes_while_the_operator_writes_is_not_lost() -> None:
    there = Users()
    found = started(user(authentication=SCRAM), there=there)
    look(found)
    found.kube.objects["Secret", "alice"]["metadata"]["resourceVersion"] = "9"
    found.kube.objects["User", "alice"]["spec"]["rotate"] = {"requestId": "1"}
    look(found)
    (written,) = [one for one in found.kube.applied if one["kind"] == "Secret"][1:]
    assert (written["metadata"]["uid"], written["metadata"]["resourceVersion"]) == ("u-alice", "9")


@pytest.mark.parametrize(
    ("secret", "reason", "said"),
    [
        (None, "SecretMissing", "no Secret mine in namespace ns: create it with the password in key word"),
        (own_secret(pass_="x"), "SecretInvalid", "Secret mine has no key word: it has pass_"),
        (own_secret(word=""), "SecretInvalid", "key word of Secret mine has 0 characters: 1 to 1,024 are"),
        (own_secret(word="x" * 1025), "SecretInvalid", "has 1,025 characters"),
        (own_secret(word="sesame\n"), "SecretInvalid", "has a newline or another character that cannot"),
        (
            {**own_secret(), "data": {"word": "/w=="}},
            "SecretInvalid",
            "word of Secret mine is not UTF-8 text",
        ),
    ],
)
def test_secret_of_the_user_that_is_not_usable_changes_nothing(
    secret: dict[str, Any] | None, reason: str, said: str
) -> None:
    there = Users()
    found = started(user(authentication=OWN, authorization=READ), *([secret] if secret else []), there=there)
    look(found)
    assert (condition := found.condition("User", "alice"))
    assert condition[:2] == ("False", reason)
    assert said in condition[2]
    assert "sesame" not in condition[2]
    assert not there.credentials
    assert not there.rules


def test_own_password_applies_when_it_changes() -> None:
    there = Users()
    found = started(user(authentication=OWN), own_secret(word="open sesame"), there=there)
    look(found)
    assert is_password_of(there.credentials["alice"], "open sesame")
    assert found.again["alice"] == 60
    changed = own_secret(word="sesame open")
    changed["metadata"] |= {"uid": "u-mine", "resourceVersion": "2"}
    found.kube.objects["Secret", "mine"] = changed
    look(found)
    assert is_password_of(there.credentials["alice"], "sesame open")
    assert ("Secret", "alice") not in found.kube.objects


def test_secret_of_another_owner_stays() -> None:
    there = Users()
    other = {**own_secret(password="x"), "metadata": {"name": "alice", "namespace": "ns"}}
    found = started(user(authentication=SCRAM), other, there=there)
    look(found)
    assert (condition := found.condition("User", "alice"))
    assert condition[1] == "ObjectNotOurs"
    assert "exists and does not belong to this User" in condition[2]
    assert not there.credentials


def test_operator_without_rights_says_which() -> None:
    there, found = Users(), started(user(authentication=SCRAM), there=Users())
    found.kube.refused["Secret"] = KubeError(403, "Forbidden", "no")
    look(found)
    assert (condition := found.condition("User", "alice"))
    assert condition[1] == "SecretNotReadable"
    assert "set operator.users: true" in condition[2]
    refused = NotAuthorized("the brokers at b answer: CLUSTER_AUTHORIZATION_FAILED")
    found = started(user(authentication=SCRAM), there=there, scram_users=refused)
    look(found)
    assert (condition := found.condition("User", "alice"))
    assert condition[1] == "OperatorNotAuthorized"
    assert "add the operator's principal to super.users" in condition[2]


def test_refused_rule_is_named_and_gives_no_credential() -> None:
    there = Users()
    there.refused["t"] = Refusal("INVALID_REQUEST", "no such host")
    found = started(
        user(authentication=SCRAM, authorization=READ), user("bob", authentication=SCRAM), there=there
    )
    look(found, "alice", "bob")
    rule = "ALLOW User:alice READ on TOPIC t (LITERAL) from *: no such host"
    assert found.condition("User", "alice") == ("False", "Refused", rule)
    assert set(there.credentials) == {"bob"}


def test_new_rules_are_there_before_old_ones_go() -> None:
    """A client that may read by either rule must not be refused in between."""
    there = Users()
    found = started(user(authorization=READ), there=there)
    look(found)
    (old,) = there.rules
    prefix = {**READ["acls"][0], "resource": {"type": "topic", "name": "t", "patternType": "prefix"}}  # type: ignore[index]
    found.kube.objects["User", "alice"] = user(authorization={**READ, "acls": [prefix]})
    asked = len(found.brokers.asked)
    look(found)
    requests = [request for request, *_ in found.brokers.asked[asked:]]
    assert requests[-2:] == ["create_rules", "delete_rules"]
    assert there.rules
    assert old not in there.rules


def test_user_whose_new_rule_is_refused_keeps_the_old_one() -> None:
    there = Users()
    found = started(user(authorization=READ), there=there)
    look(found)
    rules = set(there.rules)
    there.refused["u"] = Refusal("INVALID_REQUEST", "no such host")
    other = {"resource": {"type": "topic", "name": "u"}, "operations": ["Read"]}
    found.kube.objects["User", "alice"] = user(authorization={**READ, "acls": [other]})
    look(found)
    assert (condition := found.condition("User", "alice"))
    assert condition[1] == "Refused"
    assert there.rules == rules


def test_second_user_of_a_name_waits_and_takes_nothing_with_it() -> None:
    there = Users()
    older = user(userName="app", authentication=SCRAM)
    younger = user(
        "bob", userName="app", authentication=SCRAM, metadata={"creationTimestamp": "2026-02-01T00:00:00Z"}
    )
    found = started(older, younger, there=there)
    look(found, "alice", "bob")
    words = (
        "user app of Cluster default belongs to the older User alice in namespace ns: delete this User, or create it"
        " with another userName"
    )
    assert found.condition("User", "bob") == ("False", "ConflictingUser", words)
    assert ("Secret", "bob") not in found.kube.objects
    found.kube.objects["User", "bob"]["metadata"] |= deleted(5)
    look(found, "bob")
    assert "app" in there.credentials
    assert found.kube.objects["User", "bob"]["metadata"]["finalizers"] == []


def test_an_older_user_of_another_namespace_does_not_get_a_super_user() -> None:
    there = Users()
    shared = stored(
        cluster(
            "default",
            allowedNamespaces=["*"],
            authorization={"type": "Simple", "superUsers": ["admin"]},
        )
    )
    thief = user("thief", userName="admin", authentication=SCRAM, metadata={"namespace": "team"})
    thief["spec"]["clusterRef"]["namespace"] = "ns"
    admin = user("admin", authentication=SCRAM, metadata={"creationTimestamp": "2026-02-01T00:00:00Z"})
    found = in_memory(shared, thief, admin, **there.answers)
    look(found, "thief", "admin")
    assert (condition := found.condition("User", "thief"))
    assert condition[1] == "ReservedUser"
    assert is_password_of(there.credentials["admin"], password(found, "admin"))
    found.kube.objects["User", "thief"]["metadata"] |= deleted(5)
    look(found, "thief")
    assert "admin" in there.credentials


def test_deletion_removes_what_the_user_had() -> None:
    there = Users()
    found = started(
        user(authentication=SCRAM, authorization=READ, quotas={"producerByteRate": 5}),
        user("bob", authentication=SCRAM, authorization=READ),
        there=there,
    )
    look(found, "alice", "bob")
    found.kube.objects["User", "alice"]["metadata"] |= deleted(5)
    found.brokers.answers["scram_users"] = AdminError("no broker answers")
    look(found, "alice")
    assert (condition := found.condition("User", "alice"))
    assert condition[1] == "Deleting"
    assert "waiting to delete user alice: no broker answers" in condition[2]
    found.brokers.answers |= there.answers
    look(found, "alice")
    assert found.kube.objects["User", "alice"]["metadata"]["finalizers"] == []
    assert set(there.credentials) == {"bob"}
    assert {rule.principal for rule in there.rules} == {"User:bob"}
    assert there.quotas["alice"] == {}


def test_retained_user_keeps_everything() -> None:
    there = Users()
    found = started(user(authentication=SCRAM, authorization=READ, deletionPolicy="Retain"), there=there)
    look(found)
    assert not found.kube.objects["User", "alice"]["metadata"].get("finalizers")
    found.kube.objects["User", "alice"]["metadata"] |= deleted(5)
    look(found)
    assert set(there.credentials) == {"alice"}
    assert len(there.rules) == 1


def test_mended_drift_is_an_event() -> None:
    there = Users()
    found = started(user(authorization=READ), there=there)
    look(found)
    assert not [event for event in found.kube.events if event.reason == "DriftMended"]
    there.rules.clear()
    look(found)
    assert len(there.rules) == 1
    (event,) = [event for event in found.kube.events if event.reason == "DriftMended"]
    assert "missing rules: ALLOW User:alice READ on TOPIC t" in event.message


def test_paused_user_gets_nothing() -> None:
    there = Users()
    paused = {"annotations": {"millstream.dev/paused": "true"}}
    found = started(
        user(authentication=SCRAM, metadata=paused),
        user("bob", authorization=READ, metadata=paused),
        there=there,
    )
    look(found, "alice", "bob")
    for name in ("alice", "bob"):
        assert (condition := found.condition("User", name))
        assert condition[:2] == ("False", "ReconcilePaused")
    assert ("Secret", "alice") not in found.kube.objects
    assert not there.credentials
    assert not there.rules


def test_credential_of_another_cluster_generation_is_set_again() -> None:
    """The brokers' data was lost or restored: they have no credential, or that of an older password."""
    there = Users()
    found = started(user(authentication=SCRAM), there=there)
    look(found)
    version = found.status("User", "alice")["credential"]
    assert there.credentials["alice"].iterations == iterations_of(version)
    there.credentials["alice"] = ScramCredential.of_password("alice", SHA_512, "older", iterations=4096)
    look(found)
    assert is_password_of(there.credentials["alice"], password(found))
