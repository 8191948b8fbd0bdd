"""MirrorMaker: the workers' own user in Clusters that ask for a login."""

from __future__ import annotations

from ...models import Cluster, MirrorMaker
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources import mirror as resources
from ...resources.mirror import Endpoint, MirrorLogin
from ...resources.pod_user import pod_user
from ...state.context import MirrorParts
from ..common.pod_trust import ensure_trust
from ..common.pod_users import ensure_user
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
    password = ensure_user(services, user, clusters, mirror.spec.rotate)
    if isinstance(password, Problem):
        return password
    encrypted = {one.cluster for one in (*sources, target) if one.cluster and one.login and one.tls}
    trusted = {resources.trust_key(place): clusters[place][0] for place in sorted(encrypted)}
    problem = ensure_trust(services, resources.own_trust_reference(mirror), trusted)
    return problem or MirrorLogin(
        resources.login_secret(mirror), password.iterations, tuple(places), frozenset(encrypted)
    )
