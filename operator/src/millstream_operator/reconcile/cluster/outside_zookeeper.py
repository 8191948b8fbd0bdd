"""Cluster: the brokers' login and trusted certificates for a ZooKeeper ensemble that others run, from the user's
Secrets.

The values are checked and copied into a Secret of the Cluster, NAME-brokers-zookeeper, which brokers mount. So a Secret
that is lost or damaged later does no harm to brokers, whether they run or restart: they keep the earlier values, and a
condition names it. Another password restarts brokers; other certificates do not, because brokers read the file again.

`zookeeper.set.acl=true` of the user's configuration is held back until every broker logs in: the others could not use
restricted nodes.
"""

from __future__ import annotations

import secrets as randomness
from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import asdict, replace

from ...certificates.issuing import read_certificates, shown, shown_time
from ...kubernetes.client import KubeError, Manifest
from ...models import Cluster
from ...models.cluster import SecuredZooKeeper, TrustedCertificate, ZooKeeper
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources.broker_config import ZOOKEEPER_ACLS, ZOOKEEPER_CA, ZOOKEEPER_FILE, broker_set_name
from ...resources.owned import values_of
from ...resources.user import password_of
from ...resources.zookeeper_login import ACCESS, outside_login, outside_secret, version_of
from ...state.context import ClusterParts
from ..common.objects import bring, find
from ..common.secrets import not_readable
from .plan import StatefulSet
from .stateful_pods import all_have

VERSION_BYTES = 12


class Invalid(Exception):
    """A Secret of the user's is missing or malformed."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.problem = Problem(reason, f"spec.zookeeper.{words}; the brokers are unchanged")


def stage(services: ClusterParts, cluster: Cluster, brokers: StatefulSet | None) -> Cluster | Problem:
    """The Cluster as its brokers are to be now. ``brokers``: their StatefulSet. Raises NotOurs."""
    outside = cluster.spec.zookeeper
    if outside is None or (outside.authentication is None and outside.tls is None):
        return cluster
    try:
        files = _files(services, cluster, outside)
        login = files.get(ZOOKEEPER_FILE)
        live = find(services.kube, outside_secret(cluster, {}, ""))
        version = "" if login is None else version_of(live, login) or randomness.token_hex(VERSION_BYTES)
        bring(services.kube, outside_secret(cluster, files, version), live)
    except Invalid as error:
        return error.problem
    except KubeError as error:
        return not_readable(
            error, "spec.zookeeper: authentication and tls need Secrets, and the operator has"
        )
    sets_acls = (
        login is not None
        and cluster.spec.config.get(ZOOKEEPER_ACLS, "").strip().lower() == "true"
        and all_have(services.kube, cluster, brokers, broker_set_name(cluster), "broker", ACCESS)
    )
    secured = SecuredZooKeeper(
        **asdict(outside), login=version, logs_in=login is not None, sets_acls=sets_acls
    )
    return replace(cluster, spec=replace(cluster.spec, zookeeper=secured))


def _files(services: ClusterParts, cluster: Cluster, outside: ZooKeeper) -> dict[str, str]:
    """What brokers read, by file. Raises Invalid."""
    found = {}
    if (authentication := outside.authentication) is not None:
        key = authentication.password_secret
        where = "authentication.passwordSecret"
        live = _secret(services, cluster, where, key.secret_name, f"the password in key {key.password}")
        try:
            password = password_of(live, key.password)
        except ValueError as error:
            raise Invalid(Reason.SECRET_INVALID, f"{where}: {error}") from None
        if not password.isascii():
            raise Invalid(
                Reason.SECRET_INVALID,
                f"{where}: key {key.password} of Secret {key.secret_name} has a character outside ASCII, which"
                " DIGEST-MD5 does not allow: use another password",
            )
        found[ZOOKEEPER_FILE] = outside_login(authentication.username, password)
    if outside.tls is not None:
        certificates = outside.tls.trusted_certificates
        found[ZOOKEEPER_CA] = "".join(_trusted(services, cluster, certificates))
    return found


def _trusted(
    services: ClusterParts, cluster: Cluster, certificates: Iterable[TrustedCertificate]
) -> Iterable[str]:
    """Each value in PEM format. Raises Invalid."""
    where = "tls.trustedCertificates"
    for each in certificates:
        what = f"certificates in PEM format in key {each.certificate}"
        live = _secret(services, cluster, where, each.secret_name, what)
        value = values_of(live).get(each.certificate)
        name = f"{where}: key {each.certificate} of Secret {each.secret_name}"
        if not value:
            there = ", ".join(sorted(live.get("data") or {})) or "no key"
            raise Invalid(Reason.SECRET_INVALID, f"{name} is missing or empty; the Secret has {there}")
        yield f"{_valid(name, value, services.now())}\n"


def _valid(name: str, value: bytes, now: datetime) -> str:
    """The text of certificates of which at least one is valid. Raises Invalid."""
    try:
        found, text = read_certificates(value), value.decode().strip()
    except ValueError as error:
        raise Invalid(Reason.SECRET_INVALID, f"{name} {error}: store certificates in PEM format") from None
    last = max(found, key=lambda each: each.not_valid_after_utc)
    if last.not_valid_after_utc <= now:
        raise Invalid(
            Reason.SECRET_INVALID,
            f"{name}: {shown(last)} expired at {shown_time(last.not_valid_after_utc)}: store the present certificate"
            " of the authority",
        )
    return text


def _secret(services: ClusterParts, cluster: Cluster, where: str, name: str, what: str) -> Manifest:
    live = services.kube.get("v1", "Secret", cluster.namespace, name)
    if live is None:
        raise Invalid(
            Reason.SECRET_MISSING,
            f"{where}: there is no Secret {name} in namespace {cluster.namespace}: create it with {what}",
        )
    return live
