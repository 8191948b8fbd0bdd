"""A MirrorMaker's Kubernetes objects: a ConfigMap with `mirror.json` and a Deployment of workers, both NAME-mirror.

The workers share the partitions among themselves and keep their progress in the target, so a pod holds no state: any
number of them may start and stop. A changed mirror.json restarts them (its hash is an annotation of the pods).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models import API_VERSION, MirrorMaker
from ..models.mirror import (
    MirrorPatterns,
    MirrorSasl,
    MirrorSource,
    MirrorTarget,
    MirrorTls,
    SecretKey,
    SecretValue,
    Username,
)
from .images import Images
from .owned import is_status_current, secret_of
from .pod_user import PASSWORD
from .pods import resources_of, with_template
from .volumes import CONTAINER_SECURITY, pod_security

Manifest = dict[str, Any]

HTTP_PORT = 9404
FOLDER = "/etc/millstream"
CONFIG_FILE = "mirror.json"
CONFIG_HASH = "millstream.dev/config"
LOGS_IN = "millstream.dev/logs-in"
"""Annotation of workers: the Clusters where they log in as their own user, as NAMESPACE/NAME,…, with TLS as
NAMESPACE/NAME/tls."""
USER = 1000
SECRETS = "/run/millstream/secrets"
SECRETS_VOLUME = "run"  # a name that pod templates cannot have


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A cluster as the workers reach it; ``cluster`` is "NAMESPACE/NAME" for one of our Clusters.

    ``login``: the address at which they log in there, if it is another than ``bootstrap``.
    """

    name: str
    bootstrap: str
    cluster: str | None = None
    tls: MirrorTls | None = None
    sasl: MirrorSasl | None = None
    login: str | None = None


Mirrored = tuple[MirrorMaker, Sequence[Endpoint], Endpoint]
"""What a MirrorMaker mirrors, from which sources into which target."""


@dataclass(frozen=True, slots=True)
class MirrorLogin:
    """The workers' own user. ``secret``: has the password, whose number is ``version``; ``clusters``: where it is used,
    as "NAMESPACE/NAME", and ``encrypted`` those of them with TLS."""

    secret: str
    version: int
    clusters: tuple[str, ...]
    encrypted: frozenset[str] = frozenset()


def object_name(mirror: MirrorMaker) -> str:
    return object_named(mirror.name)


def object_named(mirror: str) -> str:
    return f"{mirror}-mirror"


def selector(mirror: MirrorMaker) -> dict[str, str]:
    return {"app.kubernetes.io/name": "millstream-mirror", "app.kubernetes.io/instance": mirror.name}


def labels(mirror: MirrorMaker) -> dict[str, str]:
    return {
        **selector(mirror),
        "app.kubernetes.io/component": "mirror",
        "app.kubernetes.io/managed-by": "millstream-operator",
    }


def mirror_file(
    mirror: MirrorMaker,
    sources: Sequence[Endpoint],
    target: Endpoint,
    http: str = f":{HTTP_PORT}",
    secrets: str = SECRETS,
) -> Manifest:
    """mirror.json: everything that a worker needs to know. ``secrets``: the folder with files SECRET/KEY."""
    spec = mirror.spec
    groups, configs = spec.groups, spec.configs
    return {
        "name": mirror.name,
        "namespace": mirror.namespace,
        "sources": [
            {"name": source.name, **_address(source, secrets), **_fetching(of_spec)}
            for source, of_spec in zip(sources, spec.sources, strict=True)
        ],
        "target": _address(target, secrets),
        "topics": _patterns(spec.topics),
        **({"groups": _patterns(groups)} if groups else {}),
        **({"configs": _patterns(configs)} if configs else {}),
        "mode": spec.mode,
        "naming": spec.naming,
        "onGap": spec.on_gap,
        **({"rejoin": {"requestId": spec.rejoin.request_id}} if spec.rejoin else {}),
        "http": http,
    }


def _patterns(of: MirrorPatterns) -> Manifest:
    return {"include": list(of.include), "exclude": list(of.exclude)}


def _address(endpoint: Endpoint, secrets: str) -> Manifest:
    found: Manifest = {"bootstrap": endpoint.login or endpoint.bootstrap}

    def of(key: SecretKey) -> Manifest:
        return {"file": f"{secrets}/{key.name}/{key.key}", "from": f"key {key.key} of Secret {key.name}"}

    if (tls := endpoint.tls) is not None:
        found["tls"] = {
            "caCertificates": [of(certificate.secret_key_ref) for certificate in tls.ca_certificates],
            **({"certificate": of(tls.certificate.secret_key_ref)} if tls.certificate else {}),
            **({"key": of(tls.key.secret_key_ref)} if tls.key else {}),
            "verifyHostname": tls.verify_hostname,
        }
    if (sasl := endpoint.sasl) is not None:
        name = sasl.username
        found["sasl"] = {
            "mechanism": sasl.mechanism,
            "username": of(name.secret_key_ref) if name.secret_key_ref else {"value": name.value or ""},
            "password": of(sasl.password.secret_key_ref),
        }
    return found


def _fetching(source: MirrorSource) -> Manifest:
    """The source's settings for fetching."""
    settings = {"maxBytesPerSecond": source.max_bytes_per_second, "rack": source.rack}
    return {name: value for name, value in settings.items() if value is not None}


def secret_keys(mirror: MirrorMaker) -> list[SecretKey]:
    """Every key of a Secret that its sources and target name, each once."""
    found: dict[SecretKey, None] = {}
    places: list[MirrorTarget] = [*mirror.spec.sources, mirror.spec.target]
    for place in places:
        if (tls := place.tls) is not None:
            values = [*tls.ca_certificates, tls.certificate, tls.key]
            found |= dict.fromkeys(one.secret_key_ref for one in values if one is not None)
        if (sasl := place.sasl) is not None:
            found |= dict.fromkeys(
                one for one in (sasl.username.secret_key_ref, sasl.password.secret_key_ref) if one is not None
            )
    return list(found)


def _secrets_volume(keys: Sequence[SecretKey]) -> Manifest:
    """Files SECRET/KEY, which Kubernetes replaces when a Secret changes.

    A missing Secret does not keep a pod from starting: its worker reports better what is missing, and continues once it
    exists.
    """
    by_secret: dict[str, list[Manifest]] = {}
    for one in keys:
        by_secret.setdefault(one.name, []).append({"key": one.key, "path": f"{one.name}/{one.key}"})
    sources = [
        {"secret": {"name": name, "items": items, "optional": True}} for name, items in by_secret.items()
    ]
    return {"name": SECRETS_VOLUME, "projected": {"sources": sources}}


def specified(file: Mapping[str, Any]) -> Manifest:
    """The spec behind a mirror.json, with addresses for Clusters and without credentials."""
    spec = {name: file[name] for name in ("topics", "mode", "naming")}
    spec["sources"] = [{name: source[name] for name in ("name", "bootstrap")} for source in file["sources"]]
    spec["target"] = {"bootstrap": file["target"]["bootstrap"]}
    return spec | {name: file[name] for name in ("groups", "configs", "onGap", "rejoin") if name in file}


def config_map(mirror: MirrorMaker, file: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(mirror),
        "data": {CONFIG_FILE: _text(file)},
    }


def login_secret(mirror: MirrorMaker) -> str:
    """The Secret of the workers' own user."""
    return f"{object_name(mirror)}-user"


def own_trust(mirror: MirrorMaker) -> str:
    """The Secret with the authorities of Clusters where the workers log in with TLS, each in a key of its own."""
    return f"{object_name(mirror)}-trust"


def own_trust_reference(mirror: MirrorMaker) -> Manifest:
    """This Secret without values."""
    return secret_of(metadata(mirror), own_trust(mirror))


def trust_key(cluster: str) -> str:
    """``cluster``: "NAMESPACE/NAME"."""
    return f"{cluster.replace('/', '.')}.crt"


def own_tls(mirror: MirrorMaker, cluster: str) -> MirrorTls:
    authorities = SecretKey(name=own_trust(mirror), key=trust_key(cluster))
    return MirrorTls(ca_certificates=(SecretValue(secret_key_ref=authorities),))


def own_sasl(mirror: MirrorMaker, user: str) -> MirrorSasl:
    """The login of the workers' own user."""
    password = SecretKey(name=login_secret(mirror), key=PASSWORD)
    return MirrorSasl(
        mechanism="SCRAM-SHA-512",
        username=Username(value=user),
        password=SecretValue(secret_key_ref=password),
    )


def login_keys(mirror: MirrorMaker, login: MirrorLogin) -> list[SecretKey]:
    """The keys of the Secrets that a login needs."""
    trusted = [SecretKey(name=own_trust(mirror), key=trust_key(one)) for one in sorted(login.encrypted)]
    return [SecretKey(name=login.secret, key=PASSWORD), *trusted]


def deployment(
    mirror: MirrorMaker, file: Manifest, images: Images, login: MirrorLogin | None = None
) -> Manifest:
    """``login``: of the workers' own user. Another password restarts them, so that each has it from its start."""
    text, keys = _text(file), secret_keys(mirror)
    annotations: dict[str, str] = {}
    if login is not None:
        keys += login_keys(mirror, login)
        annotations[LOGS_IN] = ",".join(
            _access(cluster, cluster in login.encrypted) for cluster in login.clusters
        )
        text += str(login.version)
    annotations[CONFIG_HASH] = hashlib.sha256(text.encode()).hexdigest()[:16]
    template = with_template(
        {
            "metadata": {"labels": labels(mirror), "annotations": annotations},
            "spec": _pod(mirror, images, keys),
        },
        mirror.spec.template,
        container="mirror",
        selector=selector(mirror),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(mirror),
        "spec": {
            "replicas": mirror.spec.replicas,
            "selector": {"matchLabels": selector(mirror)},
            "template": template,
        },
    }


def _access(cluster: str, has_tls: bool) -> str:
    return f"{cluster}/tls" if has_tls else cluster


def logs_in(deployment: Mapping[str, Any], cluster: str, *, has_tls: bool = False) -> bool:
    """Whether all workers log in at a Cluster, named "NAMESPACE/NAME", with TLS or without."""
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    annotations = spec["template"]["metadata"].get("annotations") or {}
    if _access(cluster, has_tls) not in annotations.get(LOGS_IN, "").split(","):
        return False
    return is_status_current(deployment) and bool(
        status.get("replicas", 0) == status.get("updatedReplicas", 0)
    )


def _pod(mirror: MirrorMaker, images: Images, keys: Sequence[SecretKey]) -> Manifest:
    def probe(path: str, **timing: int) -> Manifest:
        return {"httpGet": {"path": path, "port": "http"}, **timing}

    mounts = [{"name": SECRETS_VOLUME, "mountPath": SECRETS, "readOnly": True}] if keys else []
    return {
        "automountServiceAccountToken": False,
        "securityContext": pod_security(USER, images.user_ids),
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "mirror",
                "image": images.broker,
                "imagePullPolicy": images.pull_policy,
                "command": ["millstream-mirror", f"{FOLDER}/{CONFIG_FILE}"],
                "env": [
                    {"name": "MILLSTREAM_MIRROR_UID", "value": mirror.metadata.uid},
                    {"name": "MILLSTREAM_MIRROR_CREATED", "value": mirror.metadata.creation_timestamp},
                ],
                "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
                "livenessProbe": probe("/healthz", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
                "readinessProbe": probe("/readyz", periodSeconds=5, timeoutSeconds=5),
                "resources": resources_of(mirror.spec.resources),
                "securityContext": CONTAINER_SECURITY,
                # A worker that refuses to run gives the reason in its last line: the MirrorMaker's condition shows it.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "config", "mountPath": FOLDER, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                    *mounts,
                ],
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": object_name(mirror)}},
            {"name": "tmp", "emptyDir": {}},
            *([_secrets_volume(keys)] if keys else []),
        ],
    }


def metadata(mirror: MirrorMaker) -> Manifest:
    return {
        "name": object_name(mirror),
        "namespace": mirror.namespace,
        "labels": labels(mirror),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": mirror.kind,
                "name": mirror.name,
                "uid": mirror.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _text(file: Manifest) -> str:
    return json.dumps(file, indent=1)
