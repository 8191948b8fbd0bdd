"""Cluster: its certificates in Secrets. certificates/plan.py decides; this module reads, asks brokers, and writes.

Secrets are written in the order of the plan's invariant: the key of an authority before anything that it issues, and
what clients trust before what brokers serve. Nothing is written while an authority of the user's own is not usable:
brokers keep running with what they have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ...certificates.issuing import Certificate, Issued, fingerprint, shown_time
from ...certificates.plan import Found, Step, Target, plan
from ...kafka.served_certificate import served_certificate
from ...kubernetes.client import KubeError, Manifest
from ...models import Cluster
from ...models.conditions import ConditionType, Reason
from ...models.problem import NewCondition, Problem
from ...resources import certificates as build
from ...resources.listeners import platform_ports
from ...resources.owned import digest, secret_reference
from ...resources.platform import TLS_STAGE
from ...state.context import ClusterParts
from ..common.objects import NotOurs, bring, find
from ..common.report import tell
from ..common.secrets import not_readable
from .stateful_pods import annotations_of

SERVED_WITHIN = timedelta(minutes=10)
"""Longest time until brokers serve what was issued: Kubernetes updates mounted Secrets within two minutes."""
ASKING_S = 10.0
"""Longest time for asking all brokers of a Cluster."""
Endpoints = Mapping[int, Sequence[tuple[str, int]]]
"""Host and port of each listener with TLS, by running broker."""


def apply_certificates(
    services: ClusterParts, cluster: Cluster, names: Mapping[int, frozenset[str]], endpoints: Endpoints
) -> tuple[Problem | None, NewCondition, bool]:
    """Why brokers cannot have their certificates, the condition, and whether to reconcile again soon."""
    live: dict[str, Manifest | None] = {}
    try:
        if len(names) > build.MOST_BROKERS:
            raise _Unusable(
                Reason.INVALID_SPEC,
                f"spec.brokers.replicas: at most {build.MOST_BROKERS} brokers can have listeners with TLS",
            )
        live = {
            name: find(services.kube, secret_reference(cluster, name))
            for name in (
                build.authority_secret(cluster),
                build.trust_secret(cluster),
                build.brokers_secret(cluster),
            )
        }
        target = _apply(services, cluster, live, names, endpoints)
    except (_Unusable, NotOurs, KubeError) as error:
        problem = _problem(error)
        there = build.certificates_of(live.get(build.brokers_secret(cluster)))
        is_complete = names.keys() <= there.keys()
        words = f"{problem.message}{KEPT if is_complete else LACKING}"
        failed = (ConditionType.CERTIFICATES_READY, False, problem.reason, words)
        return (None if is_complete else problem), failed, False
    said = condition(target, services.now())
    return None, said, bool(said[1] and target.not_served)


KEPT = "; nothing was changed, and brokers keep the certificates that they have"
LACKING = "; brokers are unchanged until then"


class _Unusable(Exception):
    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


def _problem(error: _Unusable | NotOurs | KubeError) -> Problem:
    if isinstance(error, _Unusable):
        return Problem(error.reason, str(error))
    if isinstance(error, NotOurs):
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    return not_readable(error)


def _apply(
    services: ClusterParts,
    cluster: Cluster,
    live: Mapping[str, Manifest | None],
    names: Mapping[int, frozenset[str]],
    endpoints: Endpoints,
) -> Target:
    own, trust, brokers = live.values()
    request = cluster.spec.authority_request
    before = ((own or {}).get("metadata", {}).get("annotations") or {}).get(build.ROTATED_FOR, "")
    certificates = build.certificates_of(brokers)
    found = Found(
        _authorities(services, cluster, own),
        build.published_of(trust),
        certificates,
        (*build.trusted_of(brokers), *build.trusted_of(trust)),
        _served(services, cluster, certificates, endpoints),
    )
    # a Cluster without an authority gets one whatever was requested
    wanted = build.wanted(cluster, names, rotate=request not in ("", before) and own is not None)
    target = plan(found, wanted, services.now())
    rotated_for = request if target.rotated or own is None else before
    if cluster.spec.own_authority is None:
        bring(services.kube, build.authority_manifest(cluster, target, rotated_for), own)
    bring(services.kube, build.trust_manifest(cluster, target), trust)
    bring(services.kube, build.brokers_manifest(cluster, target), brokers)
    if target.certificates != certificates:
        tell(services, cluster, "CertificatesIssued", _issued(certificates, target))
    return target


def _issued(before: Mapping[int, Issued], target: Target) -> str:
    changed = [str(broker) for broker, each in target.certificates.items() if before.get(broker) != each]
    until = min(each.ends_at for each in target.certificates.values())
    return f"issued certificates of brokers {', '.join(changed) or 'none'}, valid until {shown_time(until)}"


def _authorities(services: ClusterParts, cluster: Cluster, live: Manifest | None) -> tuple[Issued, ...]:
    name = cluster.spec.own_authority
    if name is None:
        return build.authorities_of(live)
    own = services.kube.get("v1", "Secret", cluster.namespace, name)
    if own is None:
        raise _Unusable(
            Reason.AUTHORITY_INVALID,
            f"spec.certificateAuthority.secretName: there is no Secret {name} in namespace {cluster.namespace}: create"
            " it with the authority's certificate in ca.crt and its private key in ca.key",
        )
    try:
        return (build.own_authority(own, services.now()),)
    except ValueError as error:
        raise _Unusable(Reason.AUTHORITY_INVALID, f"spec.certificateAuthority.secretName: {error}") from None


def _served(
    services: ClusterParts, cluster: Cluster, certificates: Mapping[int, Issued], endpoints: Endpoints
) -> dict[int, Certificate | None]:
    """What each running broker serves. Brokers that served these certificates are not asked again."""
    issued = {broker: fingerprint(each.certificate) for broker, each in certificates.items()}
    known = digest([sorted(issued.items())])
    if services.served.get(cluster.metadata.uid) == known:
        return {broker: certificates[broker].certificate for broker in endpoints if broker in certificates}
    until = time.monotonic() + ASKING_S
    found = {
        broker: _ask(where, issued.get(broker)) if time.monotonic() < until else None
        for broker, where in endpoints.items()
    }
    if endpoints and all(each and fingerprint(each) == issued.get(broker) for broker, each in found.items()):
        services.served[cluster.metadata.uid] = known
    return found


def _ask(where: Iterable[tuple[str, int]], issued: str | None) -> Certificate | None:
    """What a broker serves; of listeners that differ, what was not issued last."""
    found = None
    for host, port in where:
        found = served_certificate(host, port)
        if found is None or fingerprint(found) != issued:
            return found
    return found


def endpoints_of(cluster: Cluster, pods: Iterable[Mapping[str, Any]]) -> dict[int, list[tuple[str, int]]]:
    """Where running brokers with certificates listen with TLS."""
    ports = [listener.port for listener in cluster.spec.listeners if listener.is_encrypted]
    of_operator = [*platform_ports(cluster).values()]
    found = {}
    for pod in pods:
        number = pod["metadata"]["name"].rpartition("-")[2]
        host = (pod.get("status") or {}).get("podIP")
        if (
            number.isdecimal()
            and host
            and not pod["metadata"].get("deletionTimestamp")
            and build.has_certificates(cluster, pod)
        ):
            has_platform = TLS_STAGE in annotations_of(pod)
            there = [*ports, *(of_operator if has_platform else ())]
            found[int(number)] = [(host, port) for port in there]
    return found


def condition(target: Target, now: datetime) -> NewCondition:
    kind = ConditionType.CERTIFICATES_READY
    late = [
        str(broker)
        for broker in target.not_served
        if now - target.certificates[broker].issued_at > SERVED_WITHIN
    ]
    if late:
        words = (
            f"brokers that do not serve what was issued for them: {', '.join(late[:10])}; their logs say why (a refused"
            " certificate), or they do not answer"
        )
        return kind, False, Reason.CERTIFICATE_NOT_SERVED, words
    if target.step is not Step.NONE:
        return kind, True, STEPS[target.step], f"the certificate authority is being replaced: {target.waits}"
    until = shown_time(min(each.ends_at for each in target.certificates.values()))
    authority = shown_time(target.issuer.ends_at)
    words = f"certificates are valid until {until} and renewed before; their authority until {authority}"
    return kind, True, Reason.CERTIFICATES_CURRENT, words


STEPS = {
    Step.BOTH_TRUSTED: Reason.AUTHORITY_BOTH_TRUSTED,
    Step.REISSUED: Reason.AUTHORITY_REISSUED,
    Step.RETIRING: Reason.AUTHORITY_RETIRING,
}
