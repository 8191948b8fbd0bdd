"""User: the certificate in a Secret, issued by the authority of the Cluster.

It is issued again at two thirds of its life, for each new `spec.rotate.requestId`, and when another authority issues
for the Cluster. The certificate before it stays valid until its end, since brokers read no list of revoked ones.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ...certificates.issuing import Issued, fingerprint, issue, named
from ...certificates.plan import is_due, lasts
from ...kubernetes.client import KubeError
from ...models import Cluster, User
from ...models.conditions import Reason
from ...models.problem import PAUSED, Problem, is_paused
from ...resources import certificates as of_cluster
from ...resources.owned import values_of
from ...resources.user import certificate_of, certificate_secret, reference, rotated_for, version_of
from ...state.context import Parts
from ..common.objects import NotOurs, bring, find
from ..common.secrets import not_readable
from .plan import Password


def certificate_for(services: Parts, user: User, cluster: Cluster) -> Password | Problem:
    """The certificate of a User, as a credential without a password."""
    try:
        return _certificate(services, user, cluster)
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except KubeError as error:
        return not_readable(error)


def _certificate(services: Parts, user: User, cluster: Cluster) -> Password | Problem:
    now = services.now()
    authority = _authority(services, cluster, now)
    if isinstance(authority, Problem):
        return authority
    trust = services.kube.get("v1", "Secret", cluster.namespace, of_cluster.trust_secret(cluster))
    published = {fingerprint(each.certificate): each.since for each in of_cluster.published_of(trust)}
    since = published.get(fingerprint(authority.certificate))
    is_trusted = since is not None and now - since >= of_cluster.LEAST_OVERLAP
    live = find(services.kube, reference(user))
    found = certificate_of(live)
    request = user.spec.rotate.request_id if user.spec.rotate is not None else ""
    before = rotated_for(live) if live is not None else ""
    subject = named(user.user_name)
    keep = (
        found is not None
        and found.certificate.subject == subject
        and lasts(found, now)
        and request in ("", before, user.status.rotated_for)
        and not (is_trusted and is_due(found, authority, now, of_cluster.LIFE))
    )
    if is_paused(user) and not keep:
        return Problem(
            Reason.RECONCILE_PAUSED, f"there is no valid certificate, and none is issued: {PAUSED[-1]}"
        )
    if not keep or found is None:
        found = issue(authority, subject, (), now, of_cluster.LIFE, is_server=False)
        before = request
    trusted = values_of(trust).get(of_cluster.CA, b"")
    wanted = certificate_secret(user, found, trusted, before)
    if not is_paused(user):
        live = bring(services.kube, wanted, live)
    assert live is not None
    return Password("", version_of(live), user.name, rotated_for(live) or None, is_certificate=True)


def _authority(services: Parts, cluster: Cluster, now: datetime) -> Issued | Problem:
    own = cluster.spec.own_authority
    name = own if own is not None else of_cluster.authority_secret(cluster)
    live: dict[str, Any] | None = services.kube.get("v1", "Secret", cluster.namespace, name)
    if live is not None and own is not None:
        try:
            return of_cluster.own_authority(live, now)
        except ValueError as error:
            return Problem(Reason.AUTHORITY_INVALID, f"the authority of Cluster {cluster.name}: {error}")
    for authority in of_cluster.authorities_of(live):
        if lasts(authority, now):
            return authority
    return Problem(
        Reason.AUTHORITY_INVALID,
        f"Cluster {cluster.name} has no valid authority (Secret {name} in namespace {cluster.namespace}): give it a"
        " listener with tls: Enabled and authentication: {type: Tls}, and see its condition CertificatesReady",
    )
