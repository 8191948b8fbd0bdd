"""User: the plan for a user's credential, access rules and quotas, and its status; pure.

The resource decides: the user has the access rules and quotas of the spec, and no others. A part that the spec never
had (authentication, authorization, quotas) is left alone; one that it no longer has is removed.

Brokers say of a credential only its iterations. So each version of the password's Secret has its own number of
iterations: other ones show that Kafka has another password, such as after a restore.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from ...kafka.records import (
    MIN_ITERATIONS,
    POSSIBLE_OPERATIONS,
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    QuotaChange,
    ResourceType,
)
from ...models import Cluster, User, UserStatus
from ...models.conditions import ConditionType, Reason, rfc3339
from ...models.problem import NewCondition, Problem, conditions_with, shown
from ...models.user import AclResource, Part
from ...models.words import count_of
from ...resources.broker_config import OPERATOR_USER
from ...resources.pod_user import OWN_USERS
from ...resources.user import Former

ANONYMOUS: Final = "ANONYMOUS"
"""The user of clients without authentication."""
CLUSTER_NAME: Final = "kafka-cluster"
"""Kafka's name of the resource of type cluster."""
TYPES: Final[Mapping[AclResource, ResourceType]] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
OPERATIONS: Final = {operation.title: operation for operation in AclOperation}
POSSIBLE: Final[Mapping[AclResource, tuple[str, ...]]] = {
    name: tuple(each.title for each in POSSIBLE_OPERATIONS[kind] if each is not AclOperation.TWO_PHASE_COMMIT)
    for name, kind in TYPES.items()
}
"""Operations that Kafka checks on each type of resource, besides All."""
QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
"""Kafka's keys, which are those of the spec in snake case."""
SHOWN: Final = 3
"""Rules in a message."""
ITERATIONS: Final = 4096
"""Different numbers of iterations, from Kafka's minimum on."""


@dataclass(frozen=True, slots=True)
class Password:
    """``version`` changes with the password; ``secret``: where it is; ``former``: the one before, while it is valid. A
    certificate is a credential without a password: brokers keep nothing of it."""

    value: str = field(repr=False)
    version: str
    secret: str
    rotated_for: str | None = None
    is_certificate: bool = False
    former: Former | None = None

    def former_ms(self, now: datetime) -> int:
        """How long the former password is valid from now on."""
        return 0 if self.former is None else self.former.valid_ms(now)


@dataclass(frozen=True, slots=True)
class Observed:
    """A user in Kafka. ``iterations``: None without a credential; ``rules``: None if the brokers have no authorizer."""

    iterations: int | None
    rules: frozenset[Acl] | None
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UserPlan:
    """Changes to a user; empty if it is up to date. ``drift``: what others have changed since the spec was applied."""

    upsert: bool = False
    delete_credential: bool = False
    create: frozenset[Acl] = frozenset()
    remove: frozenset[Acl] = frozenset()
    quotas: QuotaChange | None = None
    drift: str = ""
    problem: Problem | None = None

    @property
    def empty(self) -> bool:
        changes = self.upsert, self.delete_credential, self.create, self.remove, self.quotas
        return not any(changes)


def principal(user: User) -> str:
    return f"User:{user.kafka_name}"


def iterations_of(version: str) -> int:
    """The iterations of the credential for a version of the password."""
    digest = hashlib.sha256(version.encode()).digest()
    return MIN_ITERATIONS + int.from_bytes(digest[:4]) % ITERATIONS


def reserved(user: User, cluster: Cluster) -> Problem | None:
    """A name that would give more than the User says: its password would be another principal's."""
    name = user.user_name
    if name == ANONYMOUS:
        return Problem(
            Reason.RESERVED_USER,
            f"{name} is the name of clients without authentication: set another spec.userName",
        )
    if name == OPERATOR_USER:
        return Problem(
            Reason.RESERVED_USER, f"{name} is the name of the operator itself: set another spec.userName"
        )
    if name.startswith(OWN_USERS):
        return Problem(
            Reason.RESERVED_USER,
            f"names that begin with {OWN_USERS} are those of the operator's pods: set another spec.userName",
        )
    if user.namespace != cluster.namespace and user.kafka_name in cluster.spec.administrators:
        return Problem(
            Reason.RESERVED_USER,
            f"user {name} may do everything in Cluster {cluster.name} (super users), so its User must be in namespace"
            f" {cluster.namespace}, like the Cluster: create it there, or set another spec.userName",
        )
    return None


def impossible(user: User) -> Problem | None:
    """The first rule for an operation that its resource does not have."""
    authorization = user.spec.authorization
    for number, rule in enumerate(authorization.acls if authorization is not None else ()):
        for operation in rule.operations:
            possible = POSSIBLE[rule.resource.type]
            if operation not in ("All", *possible):
                return Problem(
                    Reason.INVALID_ACCESS_RULE,
                    f"spec.authorization.acls[{number}].operations: {operation} is not an operation of resource type"
                    f" {rule.resource.type}; allowed: All, {', '.join(possible)}. Nothing was changed",
                )
    return None


def wanted_rules(user: User) -> frozenset[Acl]:
    authorization = user.spec.authorization
    return frozenset(
        Acl(
            TYPES[rule.resource.type],
            rule.resource.name or CLUSTER_NAME,
            PatternType.PREFIXED if rule.resource.pattern_type == "prefix" else PatternType.LITERAL,
            principal(user),
            rule.host,
            OPERATIONS[operation],
            PermissionType.ALLOW if rule.type == "allow" else PermissionType.DENY,
        )
        for rule in (authorization.acls if authorization is not None else ())
        for operation in rule.operations
    )


def wanted_quotas(user: User) -> dict[str, float]:
    quotas = user.spec.quotas
    values = {key: getattr(quotas, key) for key in QUOTAS} if quotas is not None else {}
    return {key: float(value) for key, value in values.items() if value is not None}


def parts(user: User) -> frozenset[Part]:
    """The parts that the spec has."""
    spec = user.spec
    found: dict[Part, object] = {
        "Credential": spec.authentication,
        "AccessRules": spec.authorization,
        "Quotas": spec.quotas,
    }
    return frozenset(part for part, value in found.items() if value is not None)


def plan_user(user: User, observed: Observed, password: Password | None) -> UserPlan:
    """The changes that bring a user to its spec. ``password``: None if the spec has none."""
    spec, managed = parts(user), frozenset(user.status.managed or ())
    if "AccessRules" in spec and observed.rules is None:
        return UserPlan(problem=NO_AUTHORIZER)
    is_applied = user.status.applied_generation == user.metadata.generation
    rules, create, remove = observed.rules or frozenset(), frozenset[Acl](), frozenset[Acl]()
    if "AccessRules" in spec | managed:
        create, remove = wanted_rules(user) - rules, rules - wanted_rules(user)
    quotas = quota_change(wanted_quotas(user), observed.quotas) if "Quotas" in spec | managed else None
    drift = drift_of(create, remove, quotas) if is_applied else ""
    if drift and user.spec.drift == "Report":
        create, remove, quotas = frozenset(), frozenset(), None
    return UserPlan(
        upsert=password is not None
        and not password.is_certificate
        and (user.status.credential, observed.iterations)
        != (password.version, iterations_of(password.version)),
        delete_credential=password is None and "Credential" in managed and observed.iterations is not None,
        create=create,
        remove=remove,
        quotas=quotas,
        drift=drift,
    )


NO_AUTHORIZER: Final = Problem(
    Reason.NO_AUTHORIZER,
    "spec.authorization: the brokers check no access rules: set spec.authorization in the Cluster, too, or remove it"
    " here",
)


def plan_removal(user: User, observed: Observed) -> UserPlan:
    """The changes that remove everything that the resource has set."""
    owned = parts(user) | frozenset(user.status.managed or ())
    return UserPlan(
        delete_credential="Credential" in owned and observed.iterations is not None,
        remove=(observed.rules or frozenset()) if "AccessRules" in owned else frozenset(),
        quotas=quota_change({}, observed.quotas) if "Quotas" in owned else None,
    )


def quota_change(wanted: Mapping[str, float], observed: Mapping[str, float]) -> QuotaChange | None:
    """The change of a user's quotas; others than those of the spec's fields stay."""
    to_set = {key: value for key, value in wanted.items() if observed.get(key) != value}
    to_remove = tuple(sorted(key for key in QUOTAS if key in observed and key not in wanted))
    return QuotaChange(to_set, to_remove) if to_set or to_remove else None


def drift_of(missing: Collection[Acl], extra: Collection[Acl], quotas: QuotaChange | None) -> str:
    """Differences from the spec in words; "" for none."""
    words = [
        f"{what}: {shown(sorted(map(str, rules)), SHOWN)}"
        for what, rules in (("missing rules", missing), ("rules that the spec does not have", extra))
        if rules
    ]
    if quotas is not None:
        words.append(f"other quotas: {shown(sorted((*quotas.set, *quotas.remove)), SHOWN)}")
    return "; ".join(words)


def noted(user: User) -> UserStatus:
    """The status that notes which parts are about to be set, so that they are removed with the resource."""
    managed = parts(user) | frozenset(user.status.managed or ())
    return msgspec.structs.replace(
        user.status, managed=tuple(sorted(managed)) or None, username=user.kafka_name
    )


def status_of(
    user: User,
    observed: Observed,
    plan: UserPlan,
    password: Password | None,
    *,
    is_paused: bool,
    now: datetime,
) -> UserStatus:
    """The status after the plan was carried out, or of a paused user, who stays as observed."""
    is_kept = is_paused or (plan.drift != "" and user.spec.drift == "Report")
    rules = observed.rules or frozenset()
    if not is_kept:
        rules = (rules | plan.create) - plan.remove
    ready = (ConditionType.READY, True, Reason.USER_READY, _words(user, password, len(rules)))
    warning: list[NewCondition] = []
    if plan.drift and is_kept:
        words = f"{plan.drift}. They stay until the spec changes, or spec.drift is Mend"
        warning.append((ConditionType.WARNING, True, Reason.ACCESS_CHANGED, words))
    return UserStatus(
        observed_generation=user.metadata.generation,
        username=user.kafka_name,
        secret=password.secret if password is not None else None,
        access_rules=len(rules) if observed.rules is not None else None,
        applied_generation=user.status.applied_generation if is_paused else user.metadata.generation,
        managed=user.status.managed if is_paused else tuple(sorted(parts(user))) or None,
        credential=user.status.credential if is_paused or password is None else password.version,
        rotated_for=(password.rotated_for if password is not None else None) or user.status.rotated_for,
        conditions=conditions_with(
            user, ready, *warning, now=now, without=() if warning else (ConditionType.WARNING,)
        ),
    )


def _words(user: User, password: Password | None, rules: int) -> str:
    words: list[str] = []
    if password is not None:
        words.append(
            f"{'certificate' if password.is_certificate else 'password'} in Secret {password.secret}"
        )
        if password.former is not None:
            words.append(f"the former password is valid until {rfc3339(password.former.until)}")
    if user.spec.authorization is not None:
        words.append(count_of(rules, "access rule"))
    if user.spec.quotas is not None:
        words.append(count_of(len(wanted_quotas(user)), "quota"))
    return ", ".join(words) or "no password, access rules or quotas"


def of_principals(rules: Iterable[Acl]) -> dict[str, frozenset[Acl]]:
    """Rules by principal."""
    found: dict[str, set[Acl]] = {}
    for rule in rules:
        found.setdefault(rule.principal, set()).add(rule)
    return {name: frozenset(each) for name, each in found.items()}
