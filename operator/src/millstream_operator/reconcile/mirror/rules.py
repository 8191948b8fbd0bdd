"""MirrorMaker: whether it may mirror; pure.

Records that return to their origin would be copied endlessly, and a cluster mirrored twice would duplicate its
records. So a MirrorMaker is refused before a worker runs if a source is the target, if two sources are one cluster, or
if it closes a loop with older ones for the same topics (see validation/overlap.py); and if it would share an older
one's progress. Two references mean one cluster if they name the same Cluster, or if they share an address of
`bootstrap`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...kafka.mirror_records import group_of
from ...models import MirrorMaker, MirrorPatterns
from ...models.conditions import ConditionType, Reason
from ...models.mirror import MirrorTarget
from ...models.problem import Problem
from ...resources.mirror import Endpoint, Mirrored, own_sasl, own_tls
from ...resources.pod_user import user_name
from ...validation.overlap import Names, Shared, shared

REFUSED = frozenset(
    (Reason.SAME_CLUSTER, Reason.MIRROR_LOOP, Reason.NAME_TAKEN, Reason.NAMESPACE_NOT_ALLOWED)
)
"""The reasons for which a MirrorMaker has no workers."""
MOST_WAYS = 1000  # paths searched for a loop


NO_LOGINS: Mapping[str, str] = {}


def endpoints_of(
    mirror: MirrorMaker,
    bootstraps: Mapping[str, str],
    logins: Mapping[str, str] = NO_LOGINS,
    encrypted: Collection[str] = (),
) -> tuple[tuple[Endpoint, ...], Endpoint]:
    """Sources and target; the addresses of Clusters are given by "NAMESPACE/NAME". ``logins``: where the workers log in
    as a user of their own; ``encrypted``: where they do with TLS."""
    sources = tuple(
        endpoint_of(mirror, source.name, source, bootstraps, logins, encrypted)
        for source in mirror.spec.sources
    )
    return sources, endpoint_of(mirror, "target", mirror.spec.target, bootstraps, logins, encrypted)


def endpoint_of(
    mirror: MirrorMaker,
    name: str,
    place: MirrorTarget,
    bootstraps: Mapping[str, str],
    logins: Mapping[str, str] = NO_LOGINS,
    encrypted: Collection[str] = (),
) -> Endpoint:
    if (reference := place.cluster_ref) is None:
        return Endpoint(name, place.bootstrap or "", None, place.tls, place.sasl)
    key = f"{reference.namespace or mirror.namespace}/{reference.name}"
    if key not in logins:
        return Endpoint(name, bootstraps[key], key)
    sasl = own_sasl(mirror, user_name(mirror.KIND, mirror.metadata.uid))
    tls = own_tls(mirror, key) if key in encrypted else None
    return Endpoint(name, bootstraps[key], key, tls, sasl, logins[key])


def same_cluster(one: Endpoint, other: Endpoint) -> bool:
    if one.cluster is not None and one.cluster == other.cluster:
        return True
    return not _addresses(one).isdisjoint(_addresses(other))


def _addresses(endpoint: Endpoint) -> set[str]:
    """HOST:PORT in every possible spelling."""
    found = set()
    named = f"{endpoint.bootstrap},{endpoint.login or ''}"
    for address in filter(None, named.lower().split(",")):
        host, _, port = address.strip().rpartition(":")
        host = (
            "127.0.0.1"
            if host in ("localhost", "[::1]")
            else host.removesuffix(".").removesuffix(".cluster.local")
        )
        found.add(f"{host.removesuffix('.svc')}:{port}")
    return found


def check(mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint) -> Problem | None:
    """Why this MirrorMaker would copy records in a loop or duplicate them."""
    for index, source in enumerate(sources):
        for other in sources[:index]:
            if same_cluster(source, other):
                return Problem(
                    Reason.SAME_CLUSTER,
                    f"spec.sources: {other.name} and {source.name} are one cluster ({source.bootstrap}): "
                    "every record would be mirrored twice; list it once",
                )
        if not same_cluster(source, target):
            continue
        if mirror.spec.naming == "Same":
            return Problem(
                Reason.SAME_CLUSTER,
                f"spec.target: is the source {source.name} ({target.bootstrap}): with naming Same a topic would be "
                "mirrored into itself; allowed: another cluster, or naming Prefixed",
            )
        prefix = f"{source.name}."
        topics = mirror.spec.topics
        if (found := shared(frozenset({_names(topics, ""), _names(topics, prefix)}))) is not None:
            why = f" ({prefix}{found.name})" if found.name else f": {found.why}"
            return Problem(
                Reason.SAME_CLUSTER,
                f"spec.topics.include: may take the mirrored topics again, since source {source.name} is the target"
                f"{why}; add {source.name}[.].* to spec.topics.exclude",
            )
    return None


def check_name(mirror: MirrorMaker, target: Endpoint, others: Iterable[Mirrored]) -> Problem | None:
    """Whether an older MirrorMaker keeps its progress in the same group of the same target.

    It does as long as the resource exists, whether it has workers or not: the younger one would take over its progress.
    The host in an address may mean another cluster in each namespace, if it has no dot. There, and in another
    Kubernetes cluster, workers find out whether they share a group.
    """
    groups = {group_of(mirror.name, source.name) for source in mirror.spec.sources}
    for other, _, its_target in others:
        if _age(other) >= _age(mirror) or _is_refused(other):
            continue
        if not _same_target(mirror, target, other, its_target):
            continue
        for source in other.spec.sources:
            if (group := group_of(other.name, source.name)) in groups:
                return Problem(
                    Reason.NAME_TAKEN,
                    f"metadata.name: MirrorMaker {other.name} in namespace {other.namespace} mirrors into the same"
                    f" target, and keeps its progress in the same group, {group}: create this one under another name",
                )
    return None


def _same_target(mirror: MirrorMaker, target: Endpoint, other: MirrorMaker, its_target: Endpoint) -> bool:
    if target.cluster is not None and target.cluster == its_target.cluster:
        return True
    shared = _addresses(target) & _addresses(its_target)
    return any("." in address or mirror.namespace == other.namespace for address in shared)


def check_loop(
    mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint, others: Iterable[Mirrored]
) -> Problem | None:
    """Whether older MirrorMakers bring the same topics back from the target to a source. The older ones continue."""
    older = [one for one in others if _age(one[0]) < _age(mirror)]
    for source in sources:
        if (circle := _circle(mirror, source, target, older)) is None:
            continue
        names = " and ".join(f"{one.name} in namespace {one.namespace}" for one in circle.way)
        subject = f"MirrorMaker {names} mirrors" if len(circle.way) == 1 else f"MirrorMakers {names} mirror"
        if circle.shared.name is None:
            return Problem(
                Reason.MIRROR_LOOP,
                f"spec.topics: {subject} from the target to {source.name}, perhaps the same topics, which would loop: "
                f"{circle.shared.why}; list the names in include, or use only [a-z], (a|b), . and * + ?",
            )
        return Problem(
            Reason.MIRROR_LOOP,
            f"spec.topics: {subject} the same topics from the target to {source.name} (such as "
            f"{circle.shared.name}): records would loop; {circle.remedy}",
        )
    return None


@dataclass(frozen=True, slots=True)
class _Circle:
    """``way`` are the mirrors that bring records back from the target to the source."""

    way: tuple[MirrorMaker, ...]
    shared: Shared
    remedy: str


def _circle(
    mirror: MirrorMaker, source: Endpoint, target: Endpoint, others: Sequence[Mirrored]
) -> _Circle | None:
    """The shortest loop that a MirrorMaker closes.

    With naming Prefixed each round creates topics of another name; the workers themselves detect a loop of two
    clusters.
    """
    first = frozenset({_names(mirror.spec.topics, "")})
    prefix = _prefix(mirror, source)
    ways: list[tuple[tuple[Endpoint, ...], tuple[MirrorMaker, ...], frozenset[Names], str]] = [
        ((target,), (), first, prefix)
    ]
    seen = set()
    for places, way, names, prefix in ways:  # it grows meanwhile: shortest first
        for one, sources, end in others:
            for begin in sources:
                if not same_cluster(begin, places[-1]) or any(same_cluster(end, place) for place in places):
                    continue
                together = names | {_names(one.spec.topics, prefix)}
                after = _prefix(one, begin) + prefix
                closed = same_cluster(end, source)
                if closed and after:
                    if not way:
                        continue
                    together |= {_names(mirror.spec.topics, after)}
                key = (end.cluster, end.bootstrap, frozenset(map(_place, places)), together, after)
                if key in seen or (found := shared(together)) is None:
                    continue
                seen.add(key)
                if closed:
                    remedy = (
                        f"add {after.replace('.', '[.]')}.* to spec.topics.exclude"
                        if after
                        else "allowed: other topics, or naming Prefixed"
                    )
                    return _Circle((*way, one), found, remedy)
                if len(seen) > MOST_WAYS:
                    return _Circle((*way, one), Shared(None, "there are too many ways between them"), "")
                ways.append(((*places, end), (*way, one), together, after))
    return None


def _place(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.cluster or "", endpoint.bootstrap


def _prefix(mirror: MirrorMaker, source: Endpoint) -> str:
    """The prefix that its workers put before the names of this source's topics."""
    return "" if mirror.spec.naming == "Same" else f"{source.name}."


def _names(topics: MirrorPatterns, prefix: str) -> Names:
    return Names(topics.include, topics.exclude, prefix)


def _is_refused(mirror: MirrorMaker) -> bool:
    """Whether it has no workers by these rules, or will have none soon."""
    is_deleted = mirror.metadata.deletion_timestamp is not None
    conditions = mirror.status.conditions or ()
    return is_deleted or any(
        condition.type == ConditionType.READY and condition.reason in REFUSED for condition in conditions
    )


def _age(mirror: MirrorMaker) -> tuple[str, str]:
    return mirror.metadata.creation_timestamp, mirror.metadata.uid
