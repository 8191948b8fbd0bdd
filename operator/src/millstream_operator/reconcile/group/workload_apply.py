"""Workloads of ConsumerGroups as Deployments."""

from __future__ import annotations

from dataclasses import replace

from ...kubernetes.client import KubeError, Manifest
from ...models import Cluster, ConsumerGroup
from ...models.conditions import Reason
from ...models.consumers import Consumers, Decide
from ...models.problem import Problem
from ...resources import workload as resources
from ...resources.cluster import bootstrap_of
from ...state.context import GroupParts
from ..common.objects import NotOurs, bring, delete, find
from ..common.pods import refused, trouble_of
from .logins import ensure_login


class Deployments:
    """Each workload is a Deployment that the resource owns."""

    def address_of(self, services: GroupParts, cluster: Cluster) -> str:
        return bootstrap_of(cluster)

    def run(
        self,
        services: GroupParts,
        group: ConsumerGroup,
        cluster: Cluster,
        decide: Decide,
        *,
        paused: bool,
        is_reachable: bool,
    ) -> Consumers:
        """Apply the Deployment.

        Another owner's Deployment is left alone and reported; so is a template that the API server refuses, because it
        concerns no other group.
        """
        assert group.spec.workload is not None
        wanted = 0
        try:
            live = find(services.kube, resources.reference(group))
            present = None if live is None else int(live["spec"].get("replicas", 1))
            wanted = (present or 0) if paused else decide(present)
            if not paused:
                login = ensure_login(services, group, cluster, is_reachable=is_reachable)
                if isinstance(login, Problem):
                    return replace(_consumers(services, group, live or {}, wanted), problem=login)
                manifest = resources.deployment(
                    group,
                    group.spec.workload,
                    self.address_of(services, cluster),
                    wanted,
                    services.images,
                    login,
                )
                live = bring(services.kube, manifest, live)
        except NotOurs as error:
            return Consumers(problem=Problem(Reason.OBJECT_NOT_OURS, str(error)))
        except KubeError as error:
            if error.status not in (400, 403, 422):
                raise
            return Consumers(wanted, problem=Problem(Reason.WORKLOAD_REFUSED, str(error)))
        return _consumers(services, group, live or {}, wanted)

    def stop(self, services: GroupParts, group: ConsumerGroup) -> str:
        """Delete the Deployment. Its pods leave the group when they end."""
        delete(services.kube, resources.reference(group))
        names = [pod["metadata"]["name"] for pod in _pods(services, group)]
        return f"the consumers {', '.join(sorted(names)[:5])} to end" if names else ""


def _consumers(services: GroupParts, group: ConsumerGroup, live: Manifest, wanted: int) -> Consumers:
    status = live.get("status") or {}
    ready = status.get("readyReplicas", 0)
    failure = ""
    if ready < wanted:
        troubles = map(trouble_of, _pods(services, group))
        failure = next((trouble.words for trouble in troubles if trouble), "") or refused(live)
    selector = ",".join(f"{key}={value}" for key, value in sorted(resources.selector(group).items()))
    return Consumers(wanted, status.get("replicas", 0), ready, selector, failure)


def _pods(services: GroupParts, group: ConsumerGroup) -> list[Manifest]:
    return list(services.kube.list("v1", "Pod", group.namespace, resources.selector(group)))
