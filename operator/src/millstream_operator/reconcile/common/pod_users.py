"""The users as which our pods log in: their Secrets, credentials and access rules in the Clusters that they use.

A resource sets those of its own pods, before they start. Users whose resource is gone, or no longer uses a Cluster,
are removed when the Cluster is reconciled. A deleted resource waits for no Cluster, and a tree restored from an older
copy brings back no user for long.

A credential is stored before its rules, and deleted after them: a user with rules is always found by its credential.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets as randomness
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...kafka.admin import KafkaAdmin
from ...kafka.records import Acl, AdminError, NotAuthorized, Refusal, ScramUser
from ...kubernetes.client import KubeError
from ...models import Cluster
from ...models.base import OverlappingRotate
from ...models.conditions import Reason
from ...models.keys import ClusterKey
from ...models.problem import Problem
from ...resources.pod_user import (
    MECHANISM,
    NUMBERS,
    OWN_USERS,
    WITH_USER,
    PodPassword,
    PodUser,
    credential,
    has_pods,
    next_iterations,
    password_in,
    secret_with,
    user_name,
)
from ...resources.user import Former
from ...state.cache import Store, cluster_refs
from ...state.context import Parts
from .objects import NotOurs, find
from .reference import may_refer
from .report import problem_of
from .secrets import new_password, not_readable, replace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rights:
    """A user's rules in one Cluster. ``stay``: rules that it no longer needs are not removed."""

    rules: frozenset[Acl]
    stay: bool = False


def ensure_user(
    services: Parts,
    user: PodUser,
    clusters: Mapping[str, tuple[Cluster, Rights]],
    rotate: OverlappingRotate | None = None,
    *,
    must_be_stored: bool = False,
) -> PodPassword | Problem:
    """The password, after brokers have been given it and the rights. ``rotate``: the last request for another one.

    Brokers accept the former password for as long as that says, because pods have it until they restart. Brokers that
    do not respond get password and rights at a later reconcile; with ``must_be_stored`` it is a problem.
    """
    try:
        observed = _observed(services, user, clusters, must_be_stored)
        password = _password(services, user, set(filter(None, observed.values())), rotate)
        for name, iterations in observed.items():
            cluster, rights = clusters[name]
            with _unreachable(user, name, must_be_stored):
                _store(services.brokers_of(cluster), user, password, iterations, rights, services.now())
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except KubeError as error:
        return not_readable(error, "a Cluster asks for a login, for which the operator has")
    except AdminError as error:
        return problem_of(error, f"user {user.name}")
    except _Refused as error:
        return Problem(Reason.REFUSED, f"user {user.name}: {error}")
    return password


class _Refused(Exception):
    """Brokers refuse a credential or a rule."""


@contextlib.contextmanager
def _unreachable(user: PodUser, cluster: str, must_be_stored: bool) -> Iterator[None]:
    try:
        yield
    except AdminError as error:
        if must_be_stored or isinstance(error, NotAuthorized):
            raise
        logger.info("user %s in Cluster %s: %s", user.name, cluster, error)


def _observed(
    services: Parts,
    user: PodUser,
    clusters: Mapping[str, tuple[Cluster, Rights]],
    must_be_stored: bool,
) -> dict[str, int | None]:
    """The iterations of the user's credential, None without one, in the Clusters whose brokers respond."""
    found: dict[str, int | None] = {}
    for name, (cluster, _) in clusters.items():
        with _unreachable(user, name, must_be_stored):
            users = services.brokers_of(cluster).scram_users([user.name])
            found[name] = users.get(user.name, {}).get(MECHANISM)
    return found


def _password(
    services: Parts, user: PodUser, known: Collection[int], rotate: OverlappingRotate | None
) -> PodPassword:
    """The password in the Secret, or a new one. ``known``: the iterations that brokers have."""
    live = find(services.kube, user.secret)
    before = None if live is None else password_in(live, user)
    if before is None or (rotate is not None and rotate.request_id != before.rotated_for):
        used = {*known, *(() if before is None else (before.iterations,))}
        number = next_iterations(used, randomness.randbelow(NUMBERS))
        wanted = PodPassword(
            new_password(),
            number,
            "" if rotate is None else rotate.request_id,
            _former(before, rotate, services.now()),
        )
    elif before.former is not None and (former := before.former.kept(services.now())) != before.former:
        wanted = dataclasses.replace(before, former=former)
    else:
        return before
    if live is None:
        services.kube.create(secret_with(user, wanted))
    else:
        replace(services.kube, live, secret_with(user, wanted))
    return wanted


def _former(password: PodPassword | None, rotate: OverlappingRotate | None, now: datetime) -> Former | None:
    """The password that is replaced, for as long as the request lets it be valid."""
    if password is None or rotate is None or not rotate.previous_valid_seconds:
        return None
    return Former(password.value, now + timedelta(seconds=rotate.previous_valid_seconds))


def _store(
    admin: KafkaAdmin,
    user: PodUser,
    password: PodPassword,
    iterations: int | None,
    rights: Rights,
    now: datetime,
) -> None:
    if iterations != password.iterations:
        _accepted(admin.change_scram_users([credential(user, password, now)], []))
    rules = admin.rules(user.principal)
    if rules is None:
        return  # the brokers have no authorizer
    if missing := rights.rules - frozenset(rules):
        _accepted(admin.create_rules(missing))
    if extra := frozenset() if rights.stay else frozenset(rules) - rights.rules:
        admin.delete_rules(extra)


def _accepted(answers: Mapping[Any, Refusal | None]) -> None:
    for what, no in answers.items():
        if no is not None:
            raise _Refused(f"{what}: {no}")


def remove_unused_users(services: Parts, cluster: Cluster, admin: KafkaAdmin) -> None:
    """Remove the users of resources that are gone, or that no longer use the Cluster."""
    try:
        present = {name for name in admin.scram_users(None) if name.startswith(OWN_USERS)}
        for name in sorted(present - frozenset(_users_of(services.store, cluster))):
            if rules := admin.rules(f"User:{name}"):
                admin.delete_rules(rules)
            _accepted(admin.change_scram_users([], [ScramUser(name, MECHANISM)]))
            logger.info("Cluster %s: user %s is removed: its resource is gone", cluster.name, name)
    except (AdminError, _Refused) as error:
        logger.warning("Cluster %s: users without a resource stay for now: %s", cluster.name, error)


def _users_of(store: Store, cluster: Cluster) -> Iterator[str]:
    """The names of all users that the Cluster is to have; of invalid resources, too, whose pods continue."""
    mine = ClusterKey(cluster.namespace, cluster.name)
    for kind in WITH_USER:
        for key in store.keys(kind):
            raw = store.raw(key)
            if raw is None or not may_refer(cluster, key.namespace):
                continue
            spec = raw.get("spec") or {}
            if has_pods(kind, spec) and mine in cluster_refs(key, spec):
                yield user_name(kind, raw["metadata"]["uid"])
