"""Secrets of a User that loses its credential, and those that a hand or a wrong clock has changed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from millstream_harness.in_memory import NOW, InMemory, in_memory, stored
from millstream_harness.known_users import KnownUsers
from millstream_harness.manifests import resource
from millstream_operator.kafka.records import Refusal
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import User, decode_as
from millstream_operator.models.conditions import rfc3339
from millstream_operator.reconcile.user.apply import reconcile_users
from millstream_operator.resources.user import PREVIOUS_UNTIL

SCRAM = {"type": "ScramSha512"}
OWN = {**SCRAM, "password": {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "word"}}}}
INSIDE = {"name": "internal", "type": "Internal", "port": 9092, "authentication": SCRAM}
DAY_MS = 24 * 3_600_000


def cluster() -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    listener = {"name": "internal", "bootstrap": "a:9092", "protocol": "SASL_PLAINTEXT"}
    return stored(
        resource("Cluster", "default", listeners=[INSIDE]),
        {
            "conditions": [{**ready, "reason": "Ready", "message": "", "observedGeneration": 2}],
            "observedGeneration": 2,
            "bootstrap": "a:9092",
            "listeners": [listener],
        },
    )


def started(there: KnownUsers, **answers: Any) -> InMemory:
    """User alice with a generated password, which clients read from her two Secrets."""
    mine = {
        "kind": "Secret",
        "metadata": {"namespace": "ns", "name": "mine"},
        "data": {"word": base64.b64encode(b"word-1").decode()},
    }
    alice = stored(resource("User", "alice", clusterRef={"name": "default"}, authentication=SCRAM))
    known = {**there.answers, "rules": None, "user_quotas": {}, **answers}
    return look(in_memory(cluster(), alice, mine, **known))


def look(found: InMemory, **spec: Any) -> InMemory:
    """Reconcile alice, after a change of the spec; None removes a part."""
    manifest = found.kube.objects["User", "alice"]
    changed = {key: value for key, value in {**manifest["spec"], **spec}.items() if value is not None}
    found.kube.put({**manifest, "spec": changed})
    found.services.store.put(found.kube.objects["User", "alice"])
    reconcile_users(found.services, [decode_as(User, found.kube.objects["User", "alice"])])
    return found


def values(found: InMemory, name: str) -> dict[str, str]:
    data = found.kube.objects["Secret", name]["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def edit(found: InMemory, changes: Mapping[str, str] = {}, **annotations: str) -> None:
    """By hand, in alice's Secret."""
    live = found.kube.objects["Secret", "alice"]
    version = str(int(live["metadata"].get("resourceVersion") or 0) + 1)
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in changes.items()}
    told = {**live["metadata"]["annotations"], **annotations}
    metadata = {**live["metadata"], "resourceVersion": version, "annotations": told}
    found.kube.put({**live, "metadata": metadata, "data": {**live["data"], **encoded}})


def test_user_without_authentication_any_more_leaves_no_password_behind() -> None:
    there = KnownUsers()
    found = started(there)
    first = values(found, "alice")["password"]
    look(found, authentication=None)
    assert there.credentials == {}
    assert (values(found, "alice"), values(found, "alice-user-client")) == ({}, {})
    assert found.condition("User", "alice") == ("True", "UserReady", "no password, access rules or quotas")
    assert "secret" not in found.status("User", "alice")
    applied = len(found.kube.applied)
    look(found)
    assert len(found.kube.applied) == applied, "emptied once"
    look(found, authentication=SCRAM)
    again = values(found, "alice")["password"]
    assert again != first
    assert there.accepts("alice", again)
    assert again in values(found, "alice-user-client")["client.properties"]


def test_values_that_another_manager_has_written_go_too() -> None:
    found = started(KnownUsers())
    edit(found, {"password": "edited", "note": "theirs"})
    found.kube.applied.clear()
    look(found, authentication=None)
    emptied = [one for one in found.kube.applied if one["metadata"]["name"] == "alice" and "data" in one]
    assert [one["data"] for one in emptied] == [
        dict.fromkeys(("username", "password", "sasl.jaas.config", "note"), ""),
        {},
    ], "an apply removes what it has set before"
    assert {one["metadata"]["uid"] for one in emptied} == {"u-alice"}


def test_secrets_are_emptied_after_the_credential_has_ended_and_again_if_that_fails() -> None:
    there = KnownUsers()
    found = started(there)
    before = values(found, "alice")
    found.brokers.answers["change_scram_users"] = lambda *_: {"alice": Refusal("UNKNOWN", "not now")}
    look(found, authentication=None)
    assert values(found, "alice") == before
    found.brokers.answers |= {"change_scram_users": there.answers["change_scram_users"]}
    found.kube.refused_writes["Secret"] = KubeError(403, "Forbidden", "no")
    look(found)
    assert (found.condition("User", "alice") or ())[:2] == ("False", "SecretNotReadable")
    assert there.credentials == {}
    del found.kube.refused_writes["Secret"]
    look(found)
    assert (values(found, "alice"), values(found, "alice-user-client")) == ({}, {})
    assert (found.condition("User", "alice") or ())[0] == "True"


def test_secrets_of_another_owner_keep_their_values() -> None:
    found = started(KnownUsers())
    theirs = {
        "kind": "Secret",
        "metadata": {"namespace": "ns", "name": "alice-user-client", "uid": "u-theirs"},
    }
    found.kube.put({**theirs, "data": {"client.properties": "eA=="}})
    look(found, authentication=None)
    assert values(found, "alice") == {}
    assert values(found, "alice-user-client") == {"client.properties": "x"}


def test_generated_password_goes_when_the_user_brings_its_own() -> None:
    there = KnownUsers()
    found = started(there)
    look(found, authentication=OWN)
    assert there.accepts("alice", "word-1")
    assert values(found, "alice") == {}
    assert values(found, "mine") == {"word": "word-1"}
    assert "word-1" in values(found, "alice-user-client")["client.properties"]


def test_paused_user_keeps_its_secrets() -> None:
    found = started(KnownUsers())
    found.kube.objects["User", "alice"]["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    look(found, authentication=None)
    assert values(found, "alice")["password"]


def test_empty_secret_of_a_paused_user_is_not_filled() -> None:
    found = started(KnownUsers())
    look(found, authentication=None)
    found.kube.objects["User", "alice"]["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    look(found, authentication=SCRAM)
    assert values(found, "alice") == {}
    assert (found.condition("User", "alice") or ())[:2] == ("False", "ReconcilePaused")


@pytest.mark.parametrize(
    ("changes", "password"),
    [
        ({"password": "edited-by-hand"}, "edited-by-hand"),
        ({"username": "bob"}, None),
        ({"sasl.jaas.config": "of another"}, None),
    ],
    ids=["password", "username", "jaas"],
)
def test_values_of_an_edited_secret_agree_again(changes: dict[str, str], password: str | None) -> None:
    """A Secret that was edited, or filled with another User's values, must not say two things."""
    there = KnownUsers()
    found = started(there)
    wanted = password or values(found, "alice")["password"]
    edit(found, changes)
    look(found)
    now = values(found, "alice")
    assert (now["username"], now["password"]) == ("alice", wanted)
    assert f'username="alice" password="{wanted}";' in now["sasl.jaas.config"]
    assert there.accepts("alice", wanted)
    assert wanted in values(found, "alice-user-client")["client.properties"]
    found.kube.applied.clear()
    look(found)
    assert found.kube.applied_names("Secret") == []


@pytest.mark.parametrize(
    ("until", "left_ms"),
    [
        (rfc3339(NOW + timedelta(days=1100)), DAY_MS),
        ("9999-12-31T23:59:59-14:00", 0),
        ("0001-01-01T00:00:00+14:00", 0),
        ("soon", 0),
    ],
    ids=["clock years ahead", "end of time", "before time", "no time"],
)
def test_former_password_ends_within_a_day_whatever_its_secret_says(until: str, left_ms: int) -> None:
    """Brokers refuse a longer time, and with it the new password."""
    there = KnownUsers()
    found = started(there)
    first = values(found, "alice")["password"]
    edit(found)
    look(found, rotate={"requestId": "1"})
    edit(found, **{PREVIOUS_UNTIL: until})
    look(found)
    credential = there.credentials["alice"]
    assert credential.previous_valid_ms == left_ms
    assert there.accepts("alice", first) == (left_ms > 0)
    assert there.accepts("alice", values(found, "alice")["password"])
    assert (found.condition("User", "alice") or ())[0] == "True"
    found.kube.applied.clear()
    look(found)
    assert found.kube.applied_names("Secret") == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KubeError(422, "Invalid", "data: field is immutable when `immutable` is set"), "ReconcileFailed"),
        (KubeError(403, "Forbidden", 'secrets "a" is forbidden: exceeded quota: few'), "ReconcileFailed"),
        (KubeError(403, "Forbidden", "because it is being terminated"), "ReconcileFailed"),
        (KubeError(403, "Forbidden", 'cannot patch resource "secrets"'), "SecretNotReadable"),
    ],
    ids=["immutable", "quota", "namespace ends", "no right"],
)
def test_refused_secret_is_a_problem_of_its_user_alone(error: KubeError, reason: str) -> None:
    """Users of a Cluster are reconciled together, those of other namespaces too."""
    there = KnownUsers()
    found = started(there)
    found.kube.put(stored(resource("User", "bob", clusterRef={"name": "default"}, authentication=OWN)))
    bob = found.kube.objects["User", "bob"]
    found.services.store.put(bob)
    edit(found, {"username": "another"})
    apply = found.kube.apply

    def refusing(manifest: Mapping[str, Any], subresource: str = "") -> Any:
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Secret", "alice"):
            raise error
        return apply(manifest, subresource)

    found.kube.apply = refusing  # type: ignore[method-assign]
    users = [decode_as(User, found.kube.objects["User", name]) for name in ("alice", "bob")]
    reconcile_users(found.services, users)
    assert (found.condition("User", "alice") or ())[:2] == ("False", reason)
    assert str(error) in (found.condition("User", "alice") or ("",) * 3)[2]
    assert (found.condition("User", "bob") or ())[0] == "True"
    assert there.accepts("bob", "word-1")
