"""The user as which the pods of a resource log in at the brokers of Clusters: a user of the resource's own; pure.

    NAME-mirror-user     Secret of a MirrorMaker: username, password, sasl.jaas.config (for Kafka's Java clients);
                         previous-password: the former one, while it is valid
    NAME-load-user       the same of a BatchLoad
    NAME-consumers-user  the same of a ConsumerGroup with a workload

The user is named after the resource's uid, so a resource of the same name that is created later is another user. No
User may have such a name. The Secret belongs to the resource, and goes with it.

Brokers say of a credential only its iterations. So each password has its own number of them, which the Secret's
annotation keeps: another number shows that the brokers have another password, such as after a restore.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.admin.access import Acl, ScramCredential
from millstream_kafka.scram_mechanism import MIN_ITERATIONS, ScramMechanism

from ..models import BatchLoad, ConsumerGroup, MirrorMaker, Resource
from ..models.conditions import rfc3339
from .owned import opaque_secret, secret_of, values_of
from .user import (
    MAX_PASSWORD,
    PREVIOUS,
    PREVIOUS_UNTIL,
    ROTATED_FOR,
    Former,
    former_of,
    jaas_config,
    rotated_for,
)

Manifest = dict[str, Any]
OWN_USERS: Final = "millstream-pods."
"""The beginning of these users' names."""
WITH_USER: Final = (MirrorMaker.KIND, BatchLoad.KIND, ConsumerGroup.KIND)
"""Kinds whose pods have a user."""
MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
ITERATIONS: Final = "millstream.dev/iterations"
NUMBERS: Final = 4096
"""Different numbers of iterations, from Kafka's minimum on."""
USERNAME, PASSWORD = "username", "password"


@dataclass(frozen=True, slots=True)
class PodUser:
    """A user and its Secret. ``secret``: the Secret without values."""

    name: str
    secret: Manifest

    @property
    def principal(self) -> str:
        return f"User:{self.name}"


@dataclass(frozen=True, slots=True)
class PodPassword:
    """The contents of the Secret."""

    value: str = field(repr=False)
    iterations: int
    rotated_for: str = ""
    former: Former | None = None
    """The password before it, while brokers accept it, too."""


def user_name(kind: str, uid: str) -> str:
    return f"{OWN_USERS}{kind.lower()}.{uid}"


def has_pods(kind: str, spec: Mapping[str, Any]) -> bool:
    """Whether a resource of a kind WITH_USER has pods that need it."""
    return kind != ConsumerGroup.KIND or spec.get("workload") is not None


def pod_user(resource: Resource, secret: str, metadata: Manifest) -> PodUser:
    """``metadata``: of an object that belongs to the resource, and ``secret`` the Secret's name."""
    return PodUser(user_name(resource.KIND, resource.metadata.uid), secret_of(metadata, secret))


def next_iterations(before: Collection[int], random: int) -> int:
    """A number of iterations that no password before had; ``random`` where nothing is known of them."""
    first = max(before) + 1 if before else MIN_ITERATIONS + random
    return MIN_ITERATIONS + (first - MIN_ITERATIONS) % NUMBERS


def secret_with(user: PodUser, password: PodPassword) -> Manifest:
    values = {
        USERNAME: user.name,
        PASSWORD: password.value,
        "sasl.jaas.config": jaas_config(user.name, password.value),
    }
    annotations = {ROTATED_FOR: password.rotated_for, ITERATIONS: str(password.iterations)}
    if (former := password.former) is not None:
        values[PREVIOUS] = former.value
        annotations[PREVIOUS_UNTIL] = rfc3339(former.until)
    return opaque_secret(user.secret, {key: value.encode() for key, value in values.items()}, annotations)


def password_in(live: Mapping[str, Any], user: PodUser) -> PodPassword | None:
    """The password in the Secret; None if it is not as the operator wrote it, and another one is due."""
    values = values_of(live)
    text = (live["metadata"].get("annotations") or {}).get(ITERATIONS, "")
    try:
        name, value = (values[key].decode() for key in (USERNAME, PASSWORD))
        iterations = int(text)
    except (KeyError, ValueError):
        return None
    known = range(MIN_ITERATIONS, MIN_ITERATIONS + NUMBERS)
    if name != user.name or not 0 < len(value) <= MAX_PASSWORD or iterations not in known:
        return None
    return PodPassword(value, iterations, rotated_for(live), former_of(live))


def credential(user: PodUser, password: PodPassword, now: datetime) -> ScramCredential:
    former = password.former
    return ScramCredential.of_password(
        user.name,
        MECHANISM,
        password.value,
        iterations=password.iterations,
        previous="" if former is None else former.value,
        previous_valid_ms=0 if former is None else former.valid_ms(now),
    )


def rule(
    user: PodUser,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    is_prefix: bool = False,
    is_denied: bool = False,
) -> Acl:
    """A rule for a name, or with ``is_prefix`` for all that begin so; "" is the beginning of every name."""
    pattern = PatternType.PREFIXED if is_prefix and name else PatternType.LITERAL
    permission = PermissionType.DENY if is_denied else PermissionType.ALLOW
    return Acl(kind, name or "*", pattern, user.principal, "*", operation, permission)
