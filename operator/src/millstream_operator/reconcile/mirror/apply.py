"""MirrorMaker on Kubernetes: workers as a Deployment, their reports summed up in the status; and promotions.

While a MirrorMaker is paused by its annotation, its workers keep running with the same configuration. A promotion comes
first: it needs only the target, so only an older MirrorMaker of the name blocks it.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence

from ...kubernetes.client import KubeError, Manifest
from ...models import Cluster, ManifestError, MirrorMaker, decode_as
from ...models.addresses import host_port
from ...models.conditions import ConditionType, Reason
from ...models.keys import Key
from ...models.mirror import MirrorTarget
from ...models.problem import Problem, is_paused
from ...resources import mirror as resources
from ...resources.cluster import bootstrap_of
from ...resources.mirror import Endpoint
from ...resources.owned import is_owned_by
from ...state.cache import key_for
from ...state.context import MirrorParts
from ...state.platform import pods_connect
from ...state.status import write_status
from ...validation.admission import refusal
from ..common.objects import NotOurs, delete, ensure, find
from ..common.pods import is_ready, refused, trouble_of, unscheduled
from ..common.reference import cluster_key, find_cluster
from . import plan as mirrors
from . import rules as mirror_rules
from .logins import login_of
from .promotion import Promotion, is_over, requested
from .promotion_apply import advance
from .reports import Workers
from .workers import MOST_WORKERS, ask_all

LOOK_S = 10.0
SOON_S = 2.0

Endpoints = tuple[Sequence[Endpoint], Endpoint]
Running = Callable[[MirrorParts, Key], mirror_rules.Mirrored | None]
"""The configuration that a MirrorMaker's workers run with, if it may differ from the spec."""


def reconcile_mirror(services: MirrorParts, mirror: MirrorMaker) -> float:
    """One pass; seconds until the next."""
    if mirror.metadata.deletion_timestamp is not None:
        return LOOK_S  # Kubernetes removes its objects
    workers = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": resources.metadata(mirror)}
    reports = functools.cache(lambda: ask_all(_addresses(_pods(services, mirror))))
    pods, before = len(_pods(services, mirror)), mirror.status.replicas or 0
    late = is_over(mirror) and pods + before > 0
    promotion = taken_name(services, mirror, bootstrap_of, _running) or advance(
        services, mirror, reports, late=late, workers=pods > 0
    )
    mirror = promotion.mirror
    # A worker may create a replica just before it ends. So the status keeps its pods until a later look has succeeded.
    looked = late and promotion.looked
    ended = {"status": {"replicas": pods or (0 if looked else before)}} if promotion.is_over else {}
    if is_paused(mirror):
        return _report(services, mirror, find(services.kube, workers) or ended, promotion)
    if promotion.is_over:  # all topics are promoted: nothing is left to mirror, now or later
        delete(services.kube, workers)
        return _report(services, mirror, ended, promotion)
    found = find_endpoints(services, mirror, bootstrap_of, _running)
    if isinstance(found, Problem):
        ending = None
        if found.reason in mirror_rules.REFUSED:
            # A refused MirrorMaker's workers stop; without a Cluster they continue: its brokers may be running.
            delete(services.kube, workers)
            ending = pods
        return _refused(services, mirror, found, promotion, ending)
    sources, target = found
    login = login_of(services, mirror, tuple(sources), target)
    if isinstance(login, Problem):
        return _refused(services, mirror, login, promotion)
    file = resources.mirror_file(mirror, sources, target)
    if services.images.mirror_log_format != "plain":
        file["logFormat"] = services.images.mirror_log_format
    try:
        ensure(services.kube, resources.config_map(mirror, file))
        deployment = ensure(services.kube, resources.deployment(mirror, file, services.images, login))
    except NotOurs as error:
        return _refused(services, mirror, Problem(Reason.OBJECT_NOT_OURS, str(error)), promotion)
    except KubeError as error:
        if error.status not in (400, 403, 422):
            raise
        return _refused(services, mirror, Problem(Reason.WORKLOAD_REFUSED, str(error)), promotion)
    return _report(services, mirror, deployment, promotion)


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


def _report(services: MirrorParts, mirror: MirrorMaker, deployment: Manifest, promotion: Promotion) -> float:
    seen = _workers(services, mirror, deployment)
    write_status(services, mirror, mirrors.status_of(mirror, seen, services.now(), promotion))
    if promotion.runs:
        return SOON_S
    return LOOK_S if promotion.is_over or seen.ready >= mirror.spec.replicas else SOON_S


def find_endpoints(
    services: MirrorParts,
    mirror: MirrorMaker,
    address_of: Callable[[Cluster], str],
    running: Running = lambda services, key: None,
) -> Endpoints | Problem:
    """The addresses of sources and target for the workers, or why they must not run."""
    found = _endpoints(services, mirror, address_of)
    if isinstance(found, Problem):
        return found
    others = tuple(_all(services, address_of, running))
    return (
        mirror_rules.check(mirror, *found)
        or mirror_rules.check_name(mirror, found[1], (*others, *_idle(services, address_of, others)))
        or mirror_rules.check_loop(mirror, *found, others)
        or found
    )


def taken_name(
    services: MirrorParts,
    mirror: MirrorMaker,
    address_of: Callable[[Cluster], str],
    running: Running = lambda services, key: None,
) -> Promotion | None:
    """The outcome of a request if the topics in the target are an older MirrorMaker's of the same name; else None."""
    promote, place = requested(mirror), mirror.spec.target
    if promote is None:
        return None
    clusters = _clusters(services, mirror, [place])
    if isinstance(clusters, Problem):
        return None  # then nothing is promoted
    bootstraps = {name: address_of(cluster) for name, cluster in clusters.items()}
    others = tuple(_all(services, address_of, running))
    target = mirror_rules.endpoint_of(mirror, "target", place, bootstraps)
    taken = mirror_rules.check_name(mirror, target, (*others, *_idle(services, address_of, others)))
    if taken is None:
        return None
    words = f"request {promote.request_id}: {taken.message}"
    return Promotion(
        mirror, mirror.status.last_promotion, (ConditionType.PROMOTED, False, taken.reason, words)
    )


def _endpoints(
    services: MirrorParts, mirror: MirrorMaker, address_of: Callable[[Cluster], str]
) -> Endpoints | Problem:
    clusters = _clusters(services, mirror, [*mirror.spec.sources, mirror.spec.target])
    if isinstance(clusters, Problem):
        return clusters
    bootstraps = {name: address_of(cluster) for name, cluster in clusters.items()}
    access = {name: pods_connect(cluster) for name, cluster in clusters.items()}
    logins = {name: one.bootstrap for name, one in access.items() if one.has_login}
    return mirror_rules.endpoints_of(mirror, bootstraps, logins)


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


def _all(
    services: MirrorParts, address_of: Callable[[Cluster], str], running: Running
) -> Iterator[mirror_rules.Mirrored]:
    """All mirrored topics: by the specs, or by the workers' configuration if a spec is not in force."""
    for key in services.store.keys(MirrorMaker.KIND):
        found = _as_specified(services, key, address_of) or running(services, key)
        if found is not None:
            yield found


def _idle(
    services: MirrorParts, address_of: Callable[[Cluster], str], others: Sequence[mirror_rules.Mirrored]
) -> Iterator[mirror_rules.Mirrored]:
    """Paused MirrorMakers that never had workers, and will have some. One that breaks a rule will not."""
    known = {key_for(mirror) for mirror, _, _ in others}
    for key in services.store.keys(MirrorMaker.KIND):
        found = None if key in known else _as_specified(services, key, address_of, paused=True)
        if found is None or mirror_rules.check(*found) or mirror_rules.check_loop(*found, others):
            continue
        yield found


def _as_specified(
    services: MirrorParts, key: Key, address_of: Callable[[Cluster], str], *, paused: bool = False
) -> mirror_rules.Mirrored | None:
    """What the spec says; None unless it has addresses and something to mirror, and is ``paused`` or not."""
    with contextlib.suppress(ManifestError):
        mirror = services.store.get(MirrorMaker, key.namespace, key.name)
        if mirror is not None and is_paused(mirror) is paused and not is_over(mirror):
            found = _endpoints(services, mirror, address_of)
            if not isinstance(found, Problem):
                return mirror, *found
    return None


def _running(services: MirrorParts, key: Key) -> mirror_rules.Mirrored | None:
    """The last configuration of a MirrorMaker's workers.

    None without workers, or if a user has changed their file into one that they refuse.
    """
    found = services.store.raw(key)
    if found is None:
        return None
    live = []
    for api, kind in (("apps/v1", "Deployment"), ("v1", "ConfigMap")):
        one = services.kube.get(api, kind, key.namespace, resources.object_named(key.name))
        if one is None or not is_owned_by(one, found["metadata"]["uid"]):
            return None
        live.append(one)
    try:
        spec = resources.specified(json.loads(live[1]["data"][resources.CONFIG_FILE]))
        told = {**found, "spec": spec, "status": {}}
        if refusal(MirrorMaker.KIND, told):
            return None
        mirror = decode_as(MirrorMaker, told)
        return mirror, *mirror_rules.endpoints_of(mirror, {})
    except (ManifestError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _workers(services: MirrorParts, mirror: MirrorMaker, deployment: Manifest) -> Workers:
    status, spec = deployment.get("status") or {}, deployment.get("spec") or {}
    is_seen = status.get("observedGeneration", 0) >= (deployment.get("metadata") or {}).get("generation", 0)
    pods = _pods(services, mirror)
    # Until they are replaced, workers with the former configuration report about other topics, or to another target.
    configured = [pod for pod in pods if not spec or _config_of(pod) == _config_of(spec["template"])]
    ready = _addresses([pod for pod in configured if is_ready(pod)])
    others = _addresses([pod for pod in configured if not is_ready(pod)])
    reports = ask_all(ready)
    silent = max(0, min(len(ready), MOST_WORKERS) - len(reports))
    return Workers(
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        reports=(*reports, *(ask_all(others) if others else ())),
        failure=next((trouble.words for trouble in map(trouble_of, pods) if trouble), ""),
        waiting=next(filter(None, map(unscheduled, pods)), "") or refused(deployment),
        updated=status.get("updatedReplicas", 0) if is_seen else 0,
        silent=silent,
    )


def _config_of(pod: Manifest) -> str | None:
    """The hash of the configuration that a pod, or a template for pods, is to have."""
    found: str | None = ((pod.get("metadata") or {}).get("annotations") or {}).get(resources.CONFIG_HASH)
    return found


def _pods(services: MirrorParts, mirror: MirrorMaker) -> list[Manifest]:
    return services.kube.list("v1", "Pod", mirror.namespace, resources.selector(mirror))


def _addresses(pods: Sequence[Manifest]) -> list[str]:
    """The addresses of the remaining workers."""
    return [
        host_port(pod["status"]["podIP"], resources.HTTP_PORT)
        for pod in pods
        if (pod.get("status") or {}).get("podIP") and "deletionTimestamp" not in pod["metadata"]
    ]
