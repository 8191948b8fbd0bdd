"""The workers of a MirrorMaker on Kubernetes: a Deployment, its ConfigMap and pods. Blocking."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...kubernetes.client import KubeError, Manifest
from ...models import Cluster, ManifestError, MirrorMaker, decode_as
from ...models.addresses import host_port
from ...models.conditions import Reason
from ...models.keys import Key
from ...models.mirror_reports import WorkerReport, Workers
from ...models.problem import Problem
from ...resources import mirror as resources
from ...resources.cluster import bootstrap_of
from ...resources.mirror import Endpoint, Mirrored
from ...resources.owned import is_owned_by, is_status_current
from ...state.context import MirrorParts
from ...validation.admission import refusal
from ..common.objects import NotOurs, delete, ensure, find
from ..common.pods import is_ready, refused, trouble_of, unscheduled
from . import rules as mirror_rules
from .logins import login_of
from .workers import MOST_WORKERS, ask_all


class Deployments:
    """Workers as a Deployment. It keeps running while its MirrorMaker is paused."""

    def address_of(self, cluster: Cluster) -> str:
        return bootstrap_of(cluster)

    def run(
        self, services: MirrorParts, mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint
    ) -> Workers | Problem:
        login = login_of(services, mirror, tuple(sources), target)
        if isinstance(login, Problem):
            return login
        file = resources.mirror_file(mirror, sources, target)
        if services.images.mirror_log_format != "plain":
            file["logFormat"] = services.images.mirror_log_format
        try:
            ensure(services.kube, resources.config_map(mirror, file))
            deployment = ensure(services.kube, resources.deployment(mirror, file, services.images, login))
        except NotOurs as error:
            return Problem(Reason.OBJECT_NOT_OURS, str(error))
        except KubeError as error:
            if error.status not in (400, 403, 422):
                raise
            return Problem(Reason.WORKLOAD_REFUSED, str(error))
        return _workers(services, mirror, deployment)

    def observe(self, services: MirrorParts, mirror: MirrorMaker) -> Workers:
        return _workers(services, mirror, find(services.kube, _reference(mirror)) or {})

    def stop(self, services: MirrorParts, mirror: MirrorMaker) -> int:
        delete(services.kube, _reference(mirror))
        return self.count(services, mirror)

    def count(self, services: MirrorParts, mirror: MirrorMaker) -> int:
        return len(_pods(services, mirror))

    def reports(self, services: MirrorParts, mirror: MirrorMaker) -> tuple[WorkerReport, ...]:
        return ask_all(_addresses(_pods(services, mirror)))

    def running(self, services: MirrorParts, key: Key) -> Mirrored | None:
        """The last configuration of the workers; None also if a user has changed their file into one they refuse."""
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
            manifest = {**found, "spec": spec, "status": {}}
            if refusal(MirrorMaker.KIND, manifest):
                return None
            mirror = decode_as(MirrorMaker, manifest)
            return mirror, *mirror_rules.endpoints_of(mirror, {})
        except (ManifestError, ValueError, LookupError, TypeError, RecursionError):
            return None


def _reference(mirror: MirrorMaker) -> Manifest:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": resources.metadata(mirror)}


def _workers(services: MirrorParts, mirror: MirrorMaker, deployment: Manifest) -> Workers:
    status, spec = deployment.get("status") or {}, deployment.get("spec") or {}
    is_seen = is_status_current(deployment)
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
