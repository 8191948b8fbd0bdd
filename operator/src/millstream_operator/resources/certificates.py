"""The Secrets with a Cluster's certificates, and the names that brokers are reached by.

    NAME-cluster-ca        the authority's key (ca.crt, ca.key), and while it is replaced that of the next (next.crt,
                           next.key): for the operator only
    NAME-cluster-ca-cert   ca.crt: the authorities that clients trust. An annotation says since when
    NAME-brokers-tls       broker-N.pem: key and certificate of broker N; ca.crt: the authorities that brokers trust

All belong to the Cluster. What cannot be read counts as missing, so that it is replaced; only an authority of the
user's own is never replaced.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final

from cryptography import x509

from ..certificates.issuing import (
    Certificate,
    Issued,
    fingerprint,
    is_authority,
    named,
    new_authority,
    pem_of,
    read_certificates,
    read_issued,
    shown,
    shown_time,
)
from ..certificates.plan import Published, Target, Wanted
from ..models import Cluster, Listener
from .broker_config import broker_set_name, pod_name
from .listeners import Address, Addresses, broker_host, external_listeners, external_service_name
from .owned import Manifest, opaque_secret, secret_reference, values_of
from .volumes import mounts_secret, secret_volume

ROTATED_FOR: Final = "millstream.dev/rotated-for"
AUTHORITIES: Final = "millstream.dev/authorities"
"""Annotation: by fingerprint, since when an authority is published, and since when it is no longer used."""
LIFE: Final = timedelta(days=365)
"""Of a broker's certificate."""
LEAST_OVERLAP: Final = timedelta(minutes=15)
"""Kubernetes updates mounted Secrets within two minutes, and Users get new certificates within five."""
MOST_BROKERS: Final = 500
"""A Secret has at most 1 MiB."""
CA: Final = "ca.crt"


def authority_secret(cluster: Cluster) -> str:
    return f"{cluster.name}-cluster-ca"


def trust_secret(cluster: Cluster) -> str:
    return f"{cluster.name}-cluster-ca-cert"


def brokers_secret(cluster: Cluster) -> str:
    return f"{broker_set_name(cluster)}-tls"


def wanted(cluster: Cluster, names: Mapping[int, frozenset[str]], *, rotate: bool) -> Wanted:
    given = cluster.spec.certificate_authority
    life = timedelta(days=given.validity_days)

    def authority(now: datetime) -> Issued:
        return new_authority(cluster.name, cluster.namespace, now, life)

    return Wanted(
        names=names,
        subject=lambda broker: subject(cluster, broker),
        new_authority=None if cluster.spec.own_authority is not None else authority,
        life=min(LIFE, life),
        overlap=max(LEAST_OVERLAP, timedelta(days=given.overlap_days)),
        rotate=rotate,
    )


def subject(cluster: Cluster, broker: int) -> x509.Name:
    """It never changes: brokers keep their certificate's subject."""
    return named(f"broker-{broker}", organization=cluster.name, organizational_unit=cluster.namespace)


def names_of_brokers(
    cluster: Cluster,
    brokers: Iterable[int],
    addresses: Addresses,
    bootstraps: Mapping[str, Address | None],
    nodes: Iterable[str],
) -> dict[int, frozenset[str]]:
    """The hosts and addresses by which clients reach each broker. ``nodes``: addresses of nodes."""
    common = {*_inside(cluster, f"{cluster.name}-bootstrap"), *_inside(cluster, broker_set_name(cluster))}
    secured = [listener for listener in external_listeners(cluster) if listener.is_encrypted]
    for listener in secured:
        common |= _inside(cluster, f"{cluster.name}-{listener.name}-all")
        common |= _outside(listener, bootstraps.get(listener.name), nodes, listener.bootstrap.host)
    found = {}
    for broker in brokers:
        pod = f"{pod_name(cluster, broker)}.{broker_set_name(cluster)}"
        names = {
            *common,
            *_inside(cluster, pod),
            *_inside(cluster, broker_host(cluster, broker).split(".")[0]),
        }
        for listener in secured:
            names |= _inside(cluster, external_service_name(cluster, listener, broker))
            names |= _outside(listener, addresses.get((listener.name, broker)), nodes, None)
        found[broker] = frozenset(map(_canonical, names))
    return found


LAPTOP: Final = frozenset(("localhost", "127.0.0.1"))
"""The names of a local broker."""


def _inside(cluster: Cluster, service: str) -> set[str]:
    there = f"{service}.{cluster.namespace}"
    return {service, there, f"{there}.svc", f"{there}.svc.cluster.local"}


def _outside(
    listener: Listener, address: Address | None, nodes: Iterable[str], override: str | None
) -> set[str]:
    if override:
        return {override}
    if address is not None and address.host is not None:
        return {address.host}
    return set(nodes) if listener.type == "NodePort" else set()


def _canonical(name: str) -> str:
    """As a certificate has it, so that it is found there again."""
    with contextlib.suppress(ValueError):
        return str(ip_address(name))
    return name.lower()


def certificates_volume(cluster: Cluster) -> list[Manifest]:
    """The volume of brokers with listeners with TLS; "run" is a name that no volume of a user's has."""
    if not cluster.spec.is_encrypted:
        return []
    return [secret_volume("run", brokers_secret(cluster), defaultMode=0o440)]


def has_certificates(cluster: Cluster, pod: Mapping[str, Any]) -> bool:
    """Whether a pod mounts the brokers' certificates."""
    return mounts_secret(pod, brokers_secret(cluster))


# What is in the Secrets


def authorities_of(live: Mapping[str, Any] | None) -> tuple[Issued, ...]:
    values, found = values_of(live), []
    for name in ("ca", "next"):
        with contextlib.suppress(ValueError, KeyError):
            found.append(read_issued(values[f"{name}.key"], values[f"{name}.crt"]))
    return tuple(each for each in found if all(map(is_authority, each.chain)))


def own_authority(live: Mapping[str, Any], now: datetime) -> Issued:
    """The authority in a Secret of the user's. Raises ValueError, which says what to do."""
    where, values = f"Secret {live['metadata']['name']}", values_of(live)
    for key in (CA, "ca.key"):
        if not values.get(key):
            there = ", ".join(sorted(values)) or "nothing"
            raise ValueError(
                f"{where} has no key {key}: it has {there}. Store the authority's certificate in ca.crt and its private"
                " key in ca.key, both in PEM format"
            )
    try:
        found = read_issued(values["ca.key"], values[CA])
    except ValueError as error:
        raise ValueError(f"{where}: {error}: store a key and a certificate that belong together") from None
    for each in found.chain:
        if not is_authority(each):
            raise ValueError(
                f"{where}: {shown(each)} is not the certificate of an authority: its extension basicConstraints must be"
                " CA:TRUE"
            )
        if each.not_valid_after_utc <= now:
            raise ValueError(
                f"{where}: {shown(each)} expired at {shown_time(each.not_valid_after_utc)}: store a new authority"
            )
        if now < each.not_valid_before_utc:
            raise ValueError(
                f"{where}: {shown(each)} is not valid before {shown_time(each.not_valid_before_utc)}: store an"
                " authority that is valid now, or correct the clock"
            )
    return found


def published_of(live: Mapping[str, Any] | None) -> tuple[Published, ...]:
    """The published authorities, without those that the operator did not publish."""
    try:
        times = json.loads(((live or {}).get("metadata", {}).get("annotations") or {}).get(AUTHORITIES, "{}"))
        certificates = {fingerprint(each): each for each in read_certificates(values_of(live).get(CA, b""))}
        return tuple(
            Published(
                certificates[name],
                datetime.fromtimestamp(found["since"], UTC),
                None if found.get("unused") is None else datetime.fromtimestamp(found["unused"], UTC),
            )
            for name, found in times.items()
            if name in certificates
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        OSError,
    ):  # the last for times far away
        return ()


def certificates_of(live: Mapping[str, Any] | None) -> dict[int, Issued]:
    found = {}
    for key, value in values_of(live).items():
        number = key.removeprefix("broker-").removesuffix(".pem")
        if number.isdecimal():
            with contextlib.suppress(ValueError):
                found[int(number)] = read_issued(value, value)
    return found


def trusted_of(live: Mapping[str, Any] | None) -> tuple[Certificate, ...]:
    try:
        return read_certificates(values_of(live).get(CA, b""))
    except ValueError:
        return ()


# What they should be


def authority_manifest(cluster: Cluster, target: Target, rotated_for: str) -> Manifest:
    values: dict[str, bytes] = {}
    for name, each in zip(("ca", "next"), target.authorities, strict=False):
        values |= {f"{name}.crt": pem_of(each.chain), f"{name}.key": each.key}
    return opaque_secret(
        secret_reference(cluster, authority_secret(cluster)), values, {ROTATED_FOR: rotated_for}
    )


def trust_manifest(cluster: Cluster, target: Target) -> Manifest:
    times = {
        fingerprint(each.certificate): {
            "since": int(each.since.timestamp()),
            "unused": None if each.unused_since is None else int(each.unused_since.timestamp()),
        }
        for each in target.published
    }
    annotations = {AUTHORITIES: json.dumps(times, separators=(",", ":"))}
    return opaque_secret(
        secret_reference(cluster, trust_secret(cluster)), {CA: pem_of(target.trusted)}, annotations
    )


def brokers_manifest(cluster: Cluster, target: Target) -> Manifest:
    values = {f"broker-{broker}.pem": each.pem() for broker, each in target.certificates.items()}
    # the authorities first: a broker that serves a new certificate has read them, wherever files are written in order
    return opaque_secret(
        secret_reference(cluster, brokers_secret(cluster)), {CA: pem_of(target.trusted), **values}, {}
    )
