"""Pure plans that bring a user to its spec; the converged plan is empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millstream_harness.cluster_objects import a_cluster
from millstream_harness.in_memory import NOW, stored
from millstream_operator.kafka.records import (
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    QuotaChange,
    ResourceType,
)
from millstream_operator.models import API_VERSION, ManifestError, User
from millstream_operator.models.conditions import Reason
from millstream_operator.reconcile.user.plan import (
    Observed,
    Password,
    UserPlan,
    impossible,
    iterations_of,
    plan_removal,
    plan_user,
    reserved,
    status_of,
    wanted_quotas,
    wanted_rules,
)
from millstream_operator.validation.admission import decode

PASSWORD = Password("open sesame", "uid/7", "alice")
SCRAM = {"type": "ScramSha512"}
NOTHING = Observed(None, frozenset(), {})


def rule(
    operations: list[str], kind: str = "topic", name: str | None = "orders", **more: Any
) -> dict[str, Any]:
    pattern = more.pop("pattern", None)
    resource = {"type": kind, "name": name, "patternType": pattern}
    return {
        "resource": {key: value for key, value in resource.items() if value},
        "operations": operations,
        **more,
    }


def simple(*acls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Simple", "acls": list(acls)}


def user(
    status: Mapping[str, Any] | None = None, generation: int = 2, namespace: str = "default", **spec: Any
) -> User:
    document = {
        "apiVersion": API_VERSION,
        "kind": "User",
        "metadata": {"name": "alice", "namespace": namespace},
        "spec": {"clusterRef": {"name": "default"}, **spec},
    }
    found = decode(stored(document, status, generation=generation))
    assert isinstance(found, User)
    return found


def acl(operation: AclOperation, name: str = "orders", **changed: Any) -> Acl:
    kind, literal = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, name, literal, "User:alice", "*", operation, PermissionType.ALLOW)._replace(**changed)


READ, WRITE = acl(AclOperation.READ), acl(AclOperation.WRITE)
APPLIED = {"appliedGeneration": 2, "managed": ["AccessRules", "Credential", "Quotas"], "credential": "uid/7"}


def test_rules_are_those_of_the_spec() -> None:
    wanted = user(
        authorization=simple(
            rule(["Read", "DescribeConfigs"], pattern="prefix"),
            rule(["All"], "transactionalId", "*", type="deny", host="10.0.0.1"),
            rule(["IdempotentWrite"], "cluster", None),
        )
    )
    prefixed = {"pattern": PatternType.PREFIXED}
    assert wanted_rules(wanted) == {
        acl(AclOperation.READ, **prefixed),
        acl(AclOperation.DESCRIBE_CONFIGS, **prefixed),
        acl(
            AclOperation.ALL, "*", host="10.0.0.1",
            resource_type=ResourceType.TRANSACTIONAL_ID, permission=PermissionType.DENY,
        ),
        acl(AclOperation.IDEMPOTENT_WRITE, "kafka-cluster", resource_type=ResourceType.CLUSTER),
    }  # fmt: skip


def test_new_user_gets_everything_and_then_nothing_changes() -> None:
    new = user(authentication=SCRAM, authorization=simple(rule(["Read"])), quotas={"producerByteRate": 9})
    plan = plan_user(new, NOTHING, PASSWORD)
    assert plan == UserPlan(
        upsert=True, create=frozenset({READ}), quotas=QuotaChange({"producer_byte_rate": 9.0})
    )
    there = Observed(iterations_of("uid/7"), frozenset({READ}), {"producer_byte_rate": 9.0})
    status = status_of(new, NOTHING, plan, PASSWORD, is_paused=False, now=NOW)
    assert (status.access_rules, status.credential, status.secret) == (1, "uid/7", "alice")
    again = user(APPLIED, authentication=SCRAM, authorization=new_spec(new), quotas={"producerByteRate": 9})
    assert plan_user(again, there, PASSWORD).empty


def new_spec(of: User) -> dict[str, Any]:
    assert of.spec.authorization is not None
    return simple(rule(["Read"]))


@pytest.mark.parametrize(
    ("credential", "iterations", "version"),
    [
        ("uid/7", None, "uid/7"),  # deleted by hand, or the cluster is new
        ("uid/7", 4096, "uid/7"),  # another password, set by hand or restored
        ("uid/7", iterations_of("uid/7"), "uid/8"),  # another password in the Secret
        (None, iterations_of("uid/7"), "uid/7"),  # the resource is new, or restored
    ],
)
def test_credential_is_set_again_if_kafka_or_the_secret_has_another(
    credential: str | None, iterations: int | None, version: str
) -> None:
    status = APPLIED | {"managed": ["Credential"]}
    seen = user(
        {**status, **({"credential": credential} if credential else {"credential": ""})}, authentication=SCRAM
    )
    assert plan_user(seen, Observed(iterations, None, {}), replace(PASSWORD, version=version)).upsert


def test_iterations_are_within_kafkas_range_and_differ() -> None:
    found = {iterations_of(f"uid/{number}") for number in range(1000)}
    assert min(found) >= 4096
    assert max(found) <= 16_384
    assert len(found) > 800


def test_drift_is_mended_or_reported() -> None:
    spec = {"authorization": simple(rule(["Read"])), "quotas": {"requestPercentage": 50}}
    seen = Observed(None, frozenset({WRITE}), {"consumer_byte_rate": 1.0, "request_percentage": 50.0})
    words = (
        "missing rules: ALLOW User:alice READ on TOPIC orders (LITERAL) from *;"
        " rules that the spec does not have: ALLOW User:alice WRITE on TOPIC orders (LITERAL) from *;"
        " other quotas: consumer_byte_rate"
    )
    mend = plan_user(user(APPLIED, **spec), seen, None)
    assert mend.drift == words
    assert (mend.create, mend.remove) == ({READ}, {WRITE})
    assert mend.quotas == QuotaChange({}, ("consumer_byte_rate",))
    reporting = user(APPLIED, **spec, drift="Report")
    report = plan_user(reporting, seen, None)
    assert report.drift == words
    assert report == UserPlan(drift=words, delete_credential=False)
    status = status_of(reporting, seen, report, None, is_paused=False, now=NOW)
    assert [(one.type, one.reason) for one in status.conditions or ()] == [
        ("Ready", "UserReady"),
        ("Warning", "AccessChanged"),
    ]
    assert status.access_rules == 1
    changed = plan_user(user(APPLIED, generation=3, **spec, drift="Report"), seen, None)
    assert changed == replace(mend, drift=""), "a change of the spec applies, and is no drift"


def test_parts_that_left_the_spec_are_removed_and_others_left_alone() -> None:
    seen = Observed(4096, frozenset({WRITE}), {"producer_byte_rate": 9.0})
    assert plan_user(user(), seen, None).empty
    left = plan_user(user(APPLIED, generation=3), seen, None)
    quotas = QuotaChange({}, ("producer_byte_rate",))
    assert left == UserPlan(delete_credential=True, remove=frozenset({WRITE}), quotas=quotas)
    assert plan_removal(user(), seen).empty
    assert plan_removal(user(APPLIED), seen) == left
    assert plan_removal(user(authentication=SCRAM), seen) == UserPlan(delete_credential=True)


def test_brokers_without_an_authorizer_are_named() -> None:
    seen = Observed(None, None, {})
    plan = plan_user(user(authorization=simple(rule(["Read"]))), seen, None)
    assert plan.problem is not None
    assert plan.problem.reason is Reason.NO_AUTHORIZER
    assert plan.empty
    assert plan_user(user(authentication=SCRAM), seen, PASSWORD).problem is None


@pytest.mark.parametrize(
    ("acls", "said"),
    [
        (
            [rule(["Read"]), rule(["Describe", "Read"], "cluster", None)],
            "acls[1].operations: Read is not an operation of resource type cluster; allowed: All, Create, Alter",
        ),
        ([rule(["Write"], "group")], "acls[0].operations: Write is not an operation of resource type group"),
        ([rule(["ClusterAction"])], "ClusterAction is not an operation of resource type topic"),
    ],
)
def test_impossible_operation_is_named(acls: list[dict[str, Any]], said: str) -> None:
    problem = impossible(user(authorization=simple(*acls)))
    assert problem is not None
    assert problem.reason is Reason.INVALID_ACCESS_RULE
    assert said in problem.message
    assert impossible(user(authorization=simple(rule(["All", "Read"], "group")))) is None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"userName": "a,b"}, "spec.userName"),
        (
            {
                "authentication": {
                    "type": "Tls",
                    "password": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                }
            },
            "a password is for type ScramSha512",
        ),
        ({"authentication": {"type": "Tls"}, "userName": "a" * 65}, "at most 64 characters are allowed"),
        ({"rotate": {"requestId": "1"}}, "rotate: only a generated password can be replaced"),
        (
            {
                "rotate": {"requestId": "1"},
                "authentication": {
                    **SCRAM,
                    "password": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                },
            },
            "rotate: only a generated password can be replaced",
        ),
        (
            {"authorization": simple(rule(["Read"], name=None))},
            "resource: name is required, except with type",
        ),
        (
            {"authorization": simple(rule(["Create"], "cluster", "c"))},
            "resource: name is required, except with",
        ),
        ({"authorization": simple(rule(["Fly"]))}, "spec.authorization.acls[0].operations[0]"),
        ({"quotas": {"producerByteRate": 0}}, "spec.quotas.producerByteRate: 0 is too small"),
    ],
)
def test_manifest_is_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError) as raised:
        user(**spec)
    assert said in str(raised.value)


def test_quotas_have_kafkas_keys() -> None:
    quotas = {"consumerByteRate": 2, "controllerMutationRate": 0.5}
    assert wanted_quotas(user(quotas=quotas)) == {"consumer_byte_rate": 2.0, "controller_mutation_rate": 0.5}


@pytest.mark.parametrize(
    "spec",
    [
        {"authorization": {"type": "Simple", "superUsers": ["admin", "alice"]}},
        {"config": {"super.users": "User:admin; User:alice"}},
    ],
)
def test_a_super_user_belongs_to_the_namespace_of_its_cluster(spec: dict[str, Any]) -> None:
    cluster = a_cluster(**spec)
    assert reserved(user(namespace=cluster.namespace), cluster) is None
    problem = reserved(user(namespace="team"), cluster)
    assert problem is not None
    assert problem.reason is Reason.RESERVED_USER
    assert cluster.namespace in problem.message
    assert reserved(user(namespace="team", userName="bob"), cluster) is None


@pytest.mark.parametrize("name", ["ANONYMOUS", "millstream-operator", "millstream-pods.mirrormaker.u-copy"])
def test_names_of_others_than_users_are_reserved(name: str) -> None:
    cluster = a_cluster()
    problem = reserved(user(namespace=cluster.namespace, userName=name), cluster)
    assert problem is not None
    assert "spec.userName" in problem.message
