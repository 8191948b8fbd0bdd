"""MirrorMaker: its workers, their reports summed up in the status, and promotions, on Kubernetes and on a laptop.

While a MirrorMaker is paused by its annotation, its workers keep running with the same configuration. A promotion comes
first: it needs only the target, so only an older MirrorMaker of the name blocks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence

from ...models import Cluster, ManifestError, MirrorMaker
from ...models.conditions import ConditionType
from ...models.keys import Key
from ...models.mirror import MirrorTarget
from ...models.mirror_reports import Workers
from ...models.problem import Problem, is_paused
from ...resources.mirror import Endpoint, Mirrored
from ...state.cache import key_for
from ...state.context import MirrorParts
from ...state.platform import pods_connect
from ...state.status import write_status
from ..common.reference import cluster_key, find_cluster
from . import plan as mirrors
from . import rules as mirror_rules
from .promotion import Promotion, is_over, requested
from .promotion_apply import advance

LOOK_S = 10.0
SOON_S = 2.0

Endpoints = tuple[Sequence[Endpoint], Endpoint]


def reconcile_mirror(services: MirrorParts, mirror: MirrorMaker) -> float:
    """One pass; seconds until the next."""
    if mirror.metadata.deletion_timestamp is not None:
        return LOOK_S  # Kubernetes removes its objects
    runtime = services.mirrors
    reports = functools.cache(functools.partial(runtime.reports, services, mirror))
    count, before = runtime.count(services, mirror), mirror.status.replicas or 0
    late = is_over(mirror) and count + before > 0
    promotion = taken_name(services, mirror) or advance(
        services, mirror, reports, late=late, workers=count > 0
    )
    mirror = promotion.mirror
    if promotion.is_over:  # all topics are promoted: nothing is left to mirror, now or later
        if not is_paused(mirror):
            runtime.stop(services, mirror)
        # A worker may create a replica just before it ends. The status keeps it until a later reconcile has succeeded.
        left = count or (0 if late and promotion.observed else before)
        workers = runtime.observe(services, mirror)
        return _report(services, mirror, dataclasses.replace(workers, replicas=left), promotion)
    if is_paused(mirror):
        return _report(services, mirror, runtime.observe(services, mirror), promotion)
    found = find_endpoints(services, mirror)
    if isinstance(found, Problem):
        # A refused MirrorMaker's workers stop; without a Cluster they continue: its brokers may be running.
        ending = runtime.stop(services, mirror) if found.reason in mirror_rules.REFUSED else None
        return _refused(services, mirror, found, promotion, ending)
    ran = runtime.run(services, mirror, *found)
    if isinstance(ran, Problem):
        return _refused(services, mirror, ran, promotion)
    return _report(services, mirror, ran, promotion)


def _refused(
    services: MirrorParts,
    mirror: MirrorMaker,
    problem: Problem,
    promotion: Promotion,
    ending: int | None = None,
) -> float:
    status = mirrors.refused_status(mirror, problem, services.now(), promotion, ending=ending)
    write_status(services, mirror, status)
    return SOON_S if promotion.runs or ending else LOOK_S


def _report(services: MirrorParts, mirror: MirrorMaker, workers: Workers, promotion: Promotion) -> float:
    write_status(services, mirror, mirrors.status_of(mirror, workers, services.now(), promotion))
    if promotion.runs:
        return SOON_S
    return LOOK_S if promotion.is_over or workers.ready >= mirror.spec.replicas else SOON_S


def find_endpoints(
    services: MirrorParts,
    mirror: MirrorMaker,
) -> Endpoints | Problem:
    """The addresses of sources and target for the workers, or why they must not run."""
    found = _endpoints(services, mirror)
    if isinstance(found, Problem):
        return found
    others = tuple(_all(services))
    return (
        mirror_rules.check(mirror, *found)
        or mirror_rules.check_name(mirror, found[1], (*others, *_idle(services, others)))
        or mirror_rules.check_loop(mirror, *found, others)
        or found
    )


def taken_name(
    services: MirrorParts,
    mirror: MirrorMaker,
) -> Promotion | None:
    """The outcome of a request if the topics in the target are an older MirrorMaker's of the same name; else None."""
    promote, place = requested(mirror), mirror.spec.target
    if promote is None:
        return None
    clusters = _clusters(services, mirror, [place])
    if isinstance(clusters, Problem):
        return None  # then nothing is promoted
    bootstraps = {name: services.mirrors.address_of(cluster) for name, cluster in clusters.items()}
    others = tuple(_all(services))
    target = mirror_rules.endpoint_of(mirror, "target", place, bootstraps)
    taken = mirror_rules.check_name(mirror, target, (*others, *_idle(services, others)))
    if taken is None:
        return None
    words = f"request {promote.request_id}: {taken.message}"
    return Promotion(
        mirror, mirror.status.last_promotion, (ConditionType.PROMOTED, False, taken.reason, words)
    )


def _endpoints(services: MirrorParts, mirror: MirrorMaker) -> Endpoints | Problem:
    clusters = _clusters(services, mirror, [*mirror.spec.sources, mirror.spec.target])
    if isinstance(clusters, Problem):
        return clusters
    bootstraps = {name: services.mirrors.address_of(cluster) for name, cluster in clusters.items()}
    access = {name: pods_connect(cluster) for name, cluster in clusters.items()}
    logins = {name: one.bootstrap for name, one in access.items() if one.has_login}
    encrypted = {name for name, one in access.items() if one.has_tls}
    return mirror_rules.endpoints_of(mirror, bootstraps, logins, encrypted)


def _clusters(
    services: MirrorParts, mirror: MirrorMaker, places: Sequence[MirrorTarget]
) -> dict[str, Cluster] | Problem:
    """The Clusters among these places, by NAMESPACE/NAME; or why one cannot be used."""
    found = {}
    for reference in filter(None, (place.cluster_ref for place in places)):
        cluster = find_cluster(services, mirror.namespace, reference)
        if isinstance(cluster, Problem):
            return cluster
        found["/".join(cluster_key(mirror.namespace, reference))] = cluster
    return found


def _all(services: MirrorParts) -> Iterator[Mirrored]:
    """All mirrored topics: by the specs, or by the workers' configuration if a spec is not in force."""
    for key in services.store.keys(MirrorMaker.KIND):
        found = _as_specified(services, key) or services.mirrors.running(services, key)
        if found is not None:
            yield found


def _idle(services: MirrorParts, others: Sequence[Mirrored]) -> Iterator[Mirrored]:
    """Paused MirrorMakers that never had workers, and will have some. One that breaks a rule will not."""
    known = {key_for(mirror) for mirror, _, _ in others}
    for key in services.store.keys(MirrorMaker.KIND):
        found = None if key in known else _as_specified(services, key, paused=True)
        if found is None or mirror_rules.check(*found) or mirror_rules.check_loop(*found, others):
            continue
        yield found


def _as_specified(services: MirrorParts, key: Key, *, paused: bool = False) -> Mirrored | None:
    """What the spec says; None unless it has addresses and something to mirror, and is ``paused`` or not."""
    with contextlib.suppress(ManifestError):
        mirror = services.store.get(MirrorMaker, key.namespace, key.name)
        if mirror is not None and is_paused(mirror) is paused and not is_over(mirror):
            found = _endpoints(services, mirror)
            if not isinstance(found, Problem):
                return mirror, *found
    return None
