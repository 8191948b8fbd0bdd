"""MirrorMaker: the workers' own user in Clusters that ask for a login."""

from __future__ import annotations

from collections.abc import Mapping

from ...kubernetes.client import KubeError
from ...models import Cluster, MirrorMaker
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources import mirror as resources
from ...resources.certificates import CA, trust_secret
from ...resources.mirror import Endpoint, MirrorLogin
from ...resources.owned import opaque_secret, values_of
from ...resources.pod_user import pod_user
from ...state.context import MirrorParts
from ..common.objects import NotOurs, ensure
from ..common.pod_users import ensure_user
from ..common.secrets import not_readable
from .rights import rights_of


def login_of(
    services: MirrorParts, mirror: MirrorMaker, sources: tuple[Endpoint, ...], target: Endpoint
) -> MirrorLogin | Problem | None:
    """The login, which brokers know by now; None if no Cluster asks for one."""
    places = sorted({one.cluster for one in (*sources, target) if one.cluster and one.login})
    if not places:
        return None
    user = pod_user(mirror, resources.login_secret(mirror), resources.metadata(mirror))
    clusters = {}
    for place in places:
        namespace, _, name = place.partition("/")
        cluster = services.store.get(Cluster, namespace, name)
        if cluster is None:  # it was there a moment ago
            return Problem(
                Reason.CLUSTER_NOT_FOUND, f"there is no Cluster {name} in namespace {namespace} any more"
            )
        clusters[place] = cluster, rights_of(mirror, user, sources, target, place)
    request = mirror.spec.rotate.request_id if mirror.spec.rotate is not None else ""
    password = ensure_user(services, user, clusters, request)
    if isinstance(password, Problem):
        return password
    encrypted = {one.cluster for one in (*sources, target) if one.cluster and one.login and one.tls}
    try:
        problem = _trust(services, mirror, {place: clusters[place][0] for place in sorted(encrypted)})
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except KubeError as error:
        return not_readable(error, "a Cluster has TLS, and for its authorities the operator has")
    return problem or MirrorLogin(
        resources.login_secret(mirror), password.iterations, tuple(places), frozenset(encrypted)
    )


def _trust(services: MirrorParts, mirror: MirrorMaker, clusters: Mapping[str, Cluster]) -> Problem | None:
    """Give the workers a copy of the authorities of each of these Clusters, which may be in other namespaces.

    Workers read it for each connection. Both authorities are trusted for longer than the copy takes (LEAST_OVERLAP).
    """
    values = {}
    for place, cluster in clusters.items():
        live = services.kube.get("v1", "Secret", cluster.namespace, trust_secret(cluster))
        if not (found := values_of(live).get(CA)):
            return Problem(
                Reason.CLUSTER_NOT_READY,
                f"Cluster {place} has no Secret {trust_secret(cluster)} with its authorities yet: see its condition"
                " CertificatesReady",
            )
        values[resources.trust_key(place)] = found
    if values:
        metadata = {**resources.metadata(mirror), "name": resources.own_trust(mirror)}
        reference = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        ensure(services.kube, opaque_secret(reference, values, {}))
    return None
