"""User: sets credential, access rules and quotas of users, and removes them with the resource.

plan.py plans; passwords.py has the passwords; this module queries the brokers and carries the plans out. The Users of
one Cluster are reconciled together, so a hundred of them cost a handful of requests. Of two Users of one name the older
one has it. Rights come before the credential, and nothing of a user changes while a part of its spec is not usable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from ...kafka.admin import KafkaAdmin
from ...kafka.records import (
    Acl,
    AdminError,
    Refusal,
    ScramCredential,
    ScramMechanism,
    ScramUser,
)
from ...models import Cluster, User
from ...models.conditions import Reason
from ...models.event import EventType
from ...models.keys import Key
from ...models.problem import PAUSED, Problem, is_paused
from ...state.cache import key_for
from ...state.context import Parts, Resources
from ...state.status import hold_finalizer, write_status
from ..common.concurrent import concurrently
from ..common.deletion import needs_cleanup, release_resource, wait
from ..common.reference import rival_problem
from ..common.report import problem_of, report_problem, tell
from ..common.shared_cluster import PROBLEM_INTERVAL_S, partition_by_readiness
from .certificates import certificate_for
from .client import ensure_client, trusted_by
from .leftovers import empty_leftovers
from .passwords import password_for
from .plan import (
    Observed,
    Password,
    UserPlan,
    impossible,
    iterations_of,
    noted,
    of_principals,
    plan_removal,
    plan_user,
    principal,
    reserved,
    status_of,
)

READY_INTERVAL_S = 300.0
OWN_PASSWORD_INTERVAL_S = 60.0
"""A password of the user's own may change without an event."""
WAITING_INTERVAL_S = 5.0
MECHANISM = ScramMechanism.SCRAM_SHA_512
Plans = Mapping[str, UserPlan]
"""By the user's name in Kafka."""


def reconcile_users(services: Parts, users: Sequence[User]) -> Mapping[Key, float]:
    """Reconcile the Users of one Cluster; returns seconds until the next reconcile by User."""
    found = partition_by_readiness(services, users, conflict, _title)
    if found.cluster is not None:
        admin = services.brokers_of(found.cluster)
        found.again.update(_delete(services, admin, found.deleted))
        found.again.update(_bring_about(services, found.cluster, admin, found.wanted))
    return found.again


def conflict(services: Resources, user: User, cluster: Cluster) -> Problem | None:
    """Why the resource must not have its user: the name is reserved, or an older User has it."""
    within = cluster.namespace if user.kafka_name in cluster.spec.administrators else None
    return reserved(user, cluster) or rival_problem(
        services, user, cluster, user.user_name, "user", Reason.CONFLICTING_USER, within
    )


def observe(admin: KafkaAdmin, users: Sequence[User]) -> dict[str, Observed]:
    """Users in Kafka by name, by three requests."""
    names = [user.kafka_name for user in users if not user.has_certificate]
    credentials = admin.scram_users(names) if names else {}
    rules = admin.rules()
    by_principal = of_principals(rules or ())
    quotas = admin.user_quotas()
    return {
        user.kafka_name: Observed(
            credentials.get(user.kafka_name, {}).get(MECHANISM),
            None if rules is None else by_principal.get(principal(user), frozenset()),
            quotas.get(user.kafka_name, {}),
        )
        for user in users
    }


def _bring_about(
    services: Parts, cluster: Cluster, admin: KafkaAdmin, users: Sequence[User]
) -> Mapping[Key, float]:
    if not users:
        return {}
    concurrently(lambda user: hold_finalizer(services, user, user.spec.deletion_policy == "Delete"), users)
    problems: dict[str, Problem] = {}
    passwords: dict[str, Password | None] = {}
    observed: dict[str, Observed] = {}
    plans: dict[str, UserPlan] = {}
    try:
        observed = observe(admin, users)
        credentials = concurrently(
            lambda user: impossible(user) or _credential(services, user, cluster), users
        )
        for user, found in zip(users, credentials, strict=True):
            if isinstance(found, Problem):
                problems[user.kafka_name] = found
                continue
            passwords[user.kafka_name] = found
            plan = plan_user(user, observed[user.kafka_name], found)
            if plan.problem is not None:
                problems[user.kafka_name] = plan.problem
            elif is_paused(user) and not plan.empty:
                problems[user.kafka_name] = Problem(
                    Reason.RECONCILE_PAUSED, f"the user is not as the spec says: {PAUSED[-1]}"
                )
            plans[user.kafka_name] = plan
        active = {name: plan for name, plan in plans.items() if name not in problems}
        users = concurrently(
            lambda user: _noted(services, user) if user.kafka_name in active else user, users
        )
        problems |= {
            name: Problem(Reason.REFUSED, str(no))
            for name, no in _carry_out(admin, active, passwords, services.now()).items()
        }
    except AdminError as error:
        problems = dict.fromkeys((user.kafka_name for user in users), problem_of(error))

    trusted = trusted_by(services, cluster)

    def report(user: User) -> float:
        problem, password = problems.get(user.kafka_name), passwords.get(user.kafka_name)
        if problem is None and not is_paused(user):
            if password is not None:
                problem = ensure_client(services, user, cluster, password, trusted)
            problem = problem or empty_leftovers(services, user, password)
        if problem is not None:
            return report_problem(services, user, problem, PROBLEM_INTERVAL_S)
        return _report(services, user, observed, plans, passwords)

    return dict(zip(map(key_for, users), concurrently(report, users), strict=True))


def _credential(services: Parts, user: User, cluster: Cluster) -> Password | Problem | None:
    """None for a user without authentication."""
    if user.spec.authentication is None:
        return None
    if user.has_certificate:
        return certificate_for(services, user, cluster)
    return password_for(services, user)


def _noted(services: Parts, user: User) -> User:
    status = noted(user)
    write_status(services, user, status)
    return replace(user, status=status)


def _carry_out(
    admin: KafkaAdmin, plans: Plans, passwords: Mapping[str, Password | None], now: datetime
) -> dict[str, Refusal]:
    """Carry out plans, each kind of change of all users together; returns the brokers' refusals by user.

    New rules come before old ones go: a client that keeps a right by another rule must not fail in between.
    """
    refused: dict[str, Refusal] = {}
    if create := [rule for plan in plans.values() for rule in plan.create]:
        for rule, no in admin.create_rules(create).items():
            if no is not None:
                refused.setdefault(rule.principal.partition(":")[2], _about(rule, no))
    if remove := [rule for name, plan in plans.items() if name not in refused for rule in plan.remove]:
        admin.delete_rules(remove)
    if quotas := {name: plan.quotas for name, plan in plans.items() if plan.quotas is not None}:
        refused |= {name: no for name, no in admin.change_user_quotas(quotas).items() if no is not None}
    changed = [
        (name, password)
        for name, plan in plans.items()
        if plan.upsert and name not in refused and (password := passwords.get(name)) is not None
    ]
    upsertions = concurrently(lambda each: _salted(*each, now), changed)
    deletions = [ScramUser(name, MECHANISM) for name, plan in plans.items() if plan.delete_credential]
    if upsertions or deletions:
        done = admin.change_scram_users(upsertions, deletions)
        refused |= {name: no for name, no in done.items() if no is not None}
    return refused


def _salted(name: str, password: Password, now: datetime) -> ScramCredential:
    return ScramCredential.of_password(
        name,
        MECHANISM,
        password.value,
        iterations=iterations_of(password.version),
        previous=password.former.value if password.former is not None else "",
        previous_valid_ms=password.former_ms(now),
    )


def _about(rule: Acl, refusal: Refusal) -> Refusal:
    return Refusal(refusal.error, f"{rule}: {refusal}")


def _report(
    services: Parts,
    user: User,
    observed: Mapping[str, Observed],
    plans: Plans,
    passwords: Mapping[str, Password | None],
) -> float:
    name = user.kafka_name
    plan, paused = plans[name], is_paused(user)
    status = status_of(user, observed[name], plan, passwords.get(name), is_paused=paused, now=services.now())
    write_status(services, user, status)
    if plan.drift and user.spec.drift == "Mend" and not paused:
        words = f"others had changed the user; the spec applies again: {plan.drift}"
        tell(services, user, "DriftMended", words, EventType.WARNING)
    is_own = user.password_key is not None and not user.generates_password
    if is_own:
        return OWN_PASSWORD_INTERVAL_S
    password = passwords.get(name)
    former_ms = password.former_ms(services.now()) if password is not None else 0
    return min(READY_INTERVAL_S, former_ms / 1000 + 1) if former_ms else READY_INTERVAL_S


def _delete(services: Parts, admin: KafkaAdmin, users: Sequence[User]) -> Mapping[Key, float]:
    """Remove what resources that are being deleted have set, if their policy says so, and release the resources."""
    doomed = [user for user in users if needs_cleanup(user)]
    failed: dict[str, str] = {}
    if doomed:
        try:
            observed = observe(admin, doomed)
            plans = {user.kafka_name: plan_removal(user, observed[user.kafka_name]) for user in doomed}
            failed = {name: str(no) for name, no in _carry_out(admin, plans, {}, services.now()).items()}
        except AdminError as error:
            failed = {user.kafka_name: problem_of(error).message for user in doomed}
    return {
        key_for(user): wait(services, user, _title(user), failed[user.kafka_name])
        if user in doomed and user.kafka_name in failed
        else release_resource(services, user, _title(user))
        for user in users
    }


def _title(user: User) -> str:
    return f"user {user.kafka_name}"
