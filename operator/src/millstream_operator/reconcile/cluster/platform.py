"""Cluster: the operator's own login, and when the Internal listener may ask for one, or speak TLS.

If the spec has `authentication` or `tls` on the Internal listener, a Cluster whose listener is open gets there without
a failed request of the operator, in two rolls:

    1. brokers ask for a login at the listener for brokers, where the operator's password is valid. They authenticate
       each other there anyway, so it makes no difference to them
    2. when every broker does, the operator connects there, and the Internal listener is closed

A new Cluster is closed from its first broker on. One that was closed is not opened again but by its spec. It waits for
the workers of MirrorMakers and the consumers of workloads, which move as the operator does (common/pod_users.py), and
for the end of BatchLoads' runs that began without a login, or without TLS. Between `authentication` and
`tls`, a closed listener changes in one roll: nothing of ours is there.

Where pods connect is in the status before the Cluster looks for those that do not. Who starts some does the reverse: a
load writes the file of its run, and then reads the status again (load/launch.py). So none is missed.

With `tls`, the traffic between brokers and that of the operator have TLS, too. A listener never changes its protocol
while the operator uses it, and brokers reach those before them and after them. In the same two rolls:

    1. brokers get the platform's listener, where the operator logs in over TLS, and certificates, with which they can
       connect to brokers whose own listener has TLS
    2. when every broker has these, the operator connects there, and the brokers' own listener changes to TLS

It stays so without `tls`: going back would be as long a way, for less.

Where a Cluster is on the way stands in the template of its StatefulSet, and each broker's in its pod.
"""

from __future__ import annotations

import contextlib
import secrets as randomness
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from ...kafka.records import AdminError
from ...kubernetes.client import Kube, KubeError
from ...models import BatchLoad, Cluster, ConsumerGroup, ManifestError, MirrorMaker, decode_as
from ...models.cluster import (
    ClusterSpec,
    PlatformStatus,
    PlatformTls,
    SpecPrepared,
    SpecWithLogin,
    SpecWithTls,
)
from ...models.conditions import Reason
from ...models.keys import ClusterKey, Key
from ...models.load_run import in_flight
from ...models.problem import Problem, shown
from ...resources import load_run_file, workload
from ...resources.certificates import trust_secret
from ...resources.cluster import platform_bootstrap_of
from ...resources.mirror import logs_in, object_named
from ...resources.owned import is_owned_by
from ...resources.platform import CLOSED, STAGE, TLS_STAGE, PlatformLogin, login_of, login_secret, secret
from ...state.cache import cluster_refs, key_for
from ...state.context import ClusterParts, Warn
from ...state.platform import with_password
from ...state.status import write_status
from ..common import secrets
from ..common.objects import find
from ..common.reference import cluster_key
from .stateful_pods import annotations_of, is_of, template_annotations

SALT_BYTES = 16
Manifest = dict[str, Any]


def stage(
    services: ClusterParts,
    cluster: Cluster,
    live: Mapping[str, Any] | None,
    pods: Callable[[], Sequence[Mapping[str, Any]]],
    warn: Warn,
) -> Cluster | Problem:
    """The Cluster as its brokers are to be now, and with the operator's way to them in its status."""
    stages = template_annotations(live)
    before, tls_before = stages.get(STAGE), _tls_of(stages.get(TLS_STAGE, ""))
    asks = not cluster.spec.internal.is_open
    if not asks and not before:
        return _connecting(services, cluster, None)
    wants_tls = cluster.spec.internal.is_encrypted or tls_before is not PlatformTls.NONE
    login = ensure_login(services, cluster)
    if isinstance(login, Problem):
        return login
    mine = [] if live is None else [pod for pod in pods() if is_of(pod, live["metadata"]["name"])]
    is_known = bool(mine) or live is None
    has_login = is_known and all(annotations_of(pod).get(STAGE) for pod in mine)
    has_tls = wants_tls and is_known and all(annotations_of(pod).get(TLS_STAGE) for pod in mine)
    is_ready = has_tls if wants_tls else has_login
    closes = asks and (live is None or before == CLOSED)
    moves = is_ready and (not closes or tls_before is PlatformTls.PREPARED)
    unmoved = _next_tls(wants_tls, is_free=False, is_new=live is None, before=tls_before)
    where: PlatformStatus | None = None
    if has_tls or (has_login and unmoved is not PlatformTls.ON):
        reached = replace(cluster, spec=with_login(cluster.spec, unmoved if has_tls else PlatformTls.NONE))
        where = PlatformStatus(
            bootstrap=platform_bootstrap_of(reached),
            secret=login_secret(cluster),
            ca_secret=trust_secret(cluster) if has_tls else None,
            internal="Closed" if closes else "Open",
        )
        cluster = _connecting(services, cluster, where)
        moves = moves and _shows(services, cluster)
    behind = [*_behind(services, cluster, wants_tls)] if moves else []
    if asks and is_ready and not closes:
        closes = moves and not behind
        if behind:
            warn(
                Reason.LISTENER_OPEN,
                f"spec.listeners: {cluster.spec.internal.name} is still open, because {shown(behind, 3)}",
            )
    is_free = has_tls and moves and not behind  # no pod of ours is at a listener that changes its protocol
    tls = _next_tls(wants_tls, is_free=is_free, is_new=live is None, before=tls_before)
    if has_tls and behind and closes and tls is PlatformTls.PREPARED:
        warn(
            Reason.LISTENER_OPEN,
            f"spec.listeners: brokers have no TLS among themselves yet, because {shown(behind, 3)}",
        )
    spec = with_login(cluster.spec, tls)
    if where is not None and closes:
        cluster = _connecting(services, cluster, replace(where, internal="Closed"))
    if not closes:
        spec = replace(
            spec,
            listeners=tuple(
                listener.opened if listener.type == "Internal" else listener for listener in spec.listeners
            ),
        )
    return replace(cluster, spec=spec)


def with_login(spec: ClusterSpec, tls: PlatformTls = PlatformTls.NONE) -> SpecWithLogin:
    kinds = {PlatformTls.PREPARED: SpecPrepared, PlatformTls.ON: SpecWithTls}
    return kinds.get(tls, SpecWithLogin)(**asdict(spec))


def _next_tls(wanted: bool, *, is_free: bool, is_new: bool, before: PlatformTls) -> PlatformTls:
    """``is_free``: whether every broker is prepared, and nobody but brokers uses their listener."""
    if not wanted:
        return PlatformTls.NONE
    if is_new or before is PlatformTls.ON or (before is PlatformTls.PREPARED and is_free):
        return PlatformTls.ON
    return PlatformTls.PREPARED


def rotate(services: ClusterParts, cluster: Cluster) -> bool:
    """Take the next step to another password, if the spec requests one; returns whether more steps follow.

    All brokers are ready.
    """
    if cluster.status.platform is None:
        return False
    login = ensure_login(services, cluster)
    if isinstance(login, Problem):
        return False
    request = cluster.spec.rotate.request_id if cluster.spec.rotate is not None else ""
    if login.following:
        if not _is_valid_everywhere(services, cluster, "next"):
            return True
        _write(services.kube, cluster, login.turned())
        return True
    if login.previous:
        _write(services.kube, cluster, login.ended())
    elif request and request != login.rotated_for:
        _write(services.kube, cluster, login.begun(secrets.new_password(), request))
        return True
    return False


def _tls_of(found: str) -> PlatformTls:
    return PlatformTls(found) if found in set(PlatformTls) else PlatformTls.NONE


def _connecting(services: ClusterParts, cluster: Cluster, where: PlatformStatus | None) -> Cluster:
    """Where the operator connects stands in the status before any broker closes another way."""
    if cluster.status.platform == where:
        return cluster
    status = replace(cluster.status, platform=where)
    before, after = services.address_of(cluster), replace(cluster, status=status)
    write_status(services, cluster, status)
    if services.address_of(after) != before:
        services.admins.leave(before)
    return after


def _shows(services: ClusterParts, cluster: Cluster) -> bool:
    """Whether the stored status has where pods connect; not if another writer was faster."""
    raw = services.store.raw(key_for(cluster))
    return raw is not None and decode_as(Cluster, raw).status.platform == cluster.status.platform


def ensure_login(services: ClusterParts, cluster: Cluster) -> PlatformLogin | Problem:
    """The operator's password, which is generated once."""
    new = PlatformLogin(secrets.new_password(), randomness.token_bytes(SALT_BYTES))
    try:
        live = find(services.kube, secret(cluster, new))
        if live is not None:
            return login_of(live)
        services.kube.create(secret(cluster, new))
        return new
    except ValueError as error:
        return Problem(Reason.SECRET_INVALID, f"{error}: delete it, and a new one is generated")
    except KubeError as error:
        return secrets.not_readable(
            error,
            "spec.listeners: authentication or tls of the Internal listener needs a password of the operator's own,"
            " and it has",
        )


def _write(kube: Kube, cluster: Cluster, login: PlatformLogin) -> None:
    """Replace the Secret as it was read, and no later version of it."""
    wanted = secret(cluster, login)
    live = find(kube, wanted)
    if live is not None:
        secrets.replace(kube, live, wanted)


def _is_valid_everywhere(services: ClusterParts, cluster: Cluster, key: str) -> bool:
    """Whether each broker accepts the password in that key: kubelet brings it to them within a minute or two."""
    assert cluster.status.platform is not None
    found = services.client_of(cluster)
    admin = services.admins.new(found.bootstrap)
    admin.security = with_password(services.kube, cluster, cluster.status.platform, key)
    try:
        brokers = admin.brokers().racks
        return len(brokers) >= cluster.spec.brokers.replicas and admin.held(brokers) is not None
    except AdminError:
        return False
    finally:
        admin.close()


def _behind(services: ClusterParts, cluster: Cluster, has_tls: bool) -> Iterator[str]:
    """What has pods that do not connect where the operator does, with TLS or without, and how this ends."""
    for found in (_mirrors_behind, _consumers_behind, _loads_behind):
        yield from found(services, cluster, has_tls)


def _mirrors_behind(services: ClusterParts, cluster: Cluster, has_tls: bool) -> Iterator[str]:
    """MirrorMakers whose workers do not log in where the operator does, with TLS or without."""
    mine = f"{cluster.namespace}/{cluster.name}"
    for key, raw in _referring(services, cluster, MirrorMaker.KIND):
        live = _deployment(services, key, raw, object_named(key.name))
        if live is not None and not logs_in(live, mine, has_tls=has_tls):
            yield _not_yet("workers", key, has_tls)


def _consumers_behind(services: ClusterParts, cluster: Cluster, has_tls: bool) -> Iterator[str]:
    """ConsumerGroups with consumers of their workload that do not log in where the operator does."""
    for key, raw in _referring(services, cluster, ConsumerGroup.KIND):
        if (raw.get("spec") or {}).get("workload") is None:
            continue
        live = _deployment(services, key, raw, workload.object_named(key.name))
        if live is None:
            continue
        name = workload.configuration_named(key.name)
        secret = services.kube.get("v1", "Secret", key.namespace, name) if has_tls else None
        if not workload.logs_in(live, secret, has_tls=has_tls):
            yield _not_yet("consumers", key, has_tls)


def _referring(services: ClusterParts, cluster: Cluster, kind: str) -> Iterator[tuple[Key, Manifest]]:
    """The resources of a kind that refer to the Cluster, as they are stored."""
    mine = ClusterKey(cluster.namespace, cluster.name)
    for key in services.store.keys(kind):
        raw = services.store.raw(key)
        if raw is not None and mine in cluster_refs(key, raw.get("spec") or {}):
            yield key, raw


def _deployment(services: ClusterParts, key: Key, raw: Manifest, name: str) -> Manifest | None:
    """The Deployment of a resource; None if there is none, or it belongs to another."""
    live = services.kube.get("apps/v1", "Deployment", key.namespace, name)
    return live if live is not None and is_owned_by(live, raw["metadata"]["uid"]) else None


def _not_yet(pods: str, key: Key, has_tls: bool) -> str:
    what = "log in with TLS" if has_tls else "log in"
    return f"{pods} of {key} do not {what} yet: they will, unless it is paused or has a problem"


def _loads_behind(services: ClusterParts, cluster: Cluster, has_tls: bool) -> Iterator[str]:
    """BatchLoads with a run that does not log in where the operator does, with TLS or without."""
    mine = ClusterKey(cluster.namespace, cluster.name)
    for key in services.store.keys(BatchLoad.KIND):
        with contextlib.suppress(ManifestError):
            load = services.store.get(BatchLoad, key.namespace, key.name)
            if load is None or cluster_key(key.namespace, load.spec.cluster_ref) != mine:
                continue
            if not in_flight(load.status):
                continue
            live = services.kube.get("v1", "ConfigMap", key.namespace, load_run_file.run_name(load))
            if (
                live is not None
                and is_owned_by(live, load.metadata.uid)
                and not load_run_file.logs_in(live, has_tls=has_tls)
            ):
                what = "log in with TLS" if has_tls else "log in"
                yield f"{key} has a run that does not {what}: the next step follows when the run ends"
