"""A small client for the Kubernetes API: get, list, server-side apply, delete; JSON in, JSON out.

Connection, certificates and token renewal come from the official client; its 700 model classes are not loaded, to keep
the operator small. Calls block (they run in worker threads) and are thread-safe.

Every write is a server-side apply with one field manager, so fields set by others remain theirs.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import urllib3

from ..models import API_VERSION, KINDS
from ..models.event import Event
from ..models.keys import Key

# Imported where they are used: `millstream local` needs no connection, and these take half a second.
if TYPE_CHECKING:
    import kopf
    from kubernetes.client.configuration import Configuration

FIELD_MANAGER = "millstream-operator"
TIMEOUT = urllib3.Timeout(connect=10, read=30)
# Every request of the operator may be repeated. 429: the server is busy and says when to retry.
RETRIES = urllib3.Retry(
    connect=2,
    read=2,
    status=4,
    other=0,
    allowed_methods=None,
    status_forcelist=(429,),
    backoff_factor=0.25,
    raise_on_status=False,
)
Manifest = dict[str, Any]
Manifests = list[Manifest]
PAGE = 500
NAME_OF_EVENT, MESSAGE_OF_EVENT = 230, 1024
"""Longest beginning of an object's name in its Events' names, and longest message, in characters."""
PARTIAL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

# Kinds that the operator uses besides its own: kind -> plural. Paths follow from apiVersion and plural.
PLURALS = {
    "ConfigMap": "configmaps",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Deployment": "deployments",
    "Event": "events",
    "Job": "jobs",
    "Lease": "leases",
    "NetworkPolicy": "networkpolicies",
    "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "SparkApplication": "sparkapplications",
    "StatefulSet": "statefulsets",
    "StorageClass": "storageclasses",
    **{kind.KIND: kind.PLURAL for kind in KINDS.values()},
}


class KubeError(Exception):
    """A request to the API server failed; ``status`` is the HTTP status, 0 if there was no response."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Kube:
    """The API server that the service account or ``KUBECONFIG`` names."""

    def __init__(
        self,
        configuration: Configuration,
        timeout: urllib3.Timeout = TIMEOUT,
        retries: urllib3.Retry | bool = RETRIES,
    ) -> None:
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = 16
        self._configuration = configuration
        self._timeout, self._retries = timeout, retries
        # Called before each write; raises KubeError if this process may not write (see manager/leadership.py).
        self.fence: Callable[[], None] = lambda: None
        self._pool = RESTClientObject(configuration).pool_manager
        self._host = configuration.host.rstrip("/")
        self.observe: Callable[[str, str, int, float], object] = lambda *_: None
        """Called after each request with method, resource (plural), status (0 without a response) and seconds."""

    @classmethod
    def connect(cls) -> Kube:
        """From inside a pod by its service account, from elsewhere by kubeconfig; raises ConfigException."""
        from kubernetes import config
        from kubernetes.client.configuration import Configuration

        configuration = Configuration()
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(configuration)

    def limited(self, seconds: float) -> Kube:
        """A client for the same server with its own connections, this timeout and no retries."""
        return Kube(self._configuration, urllib3.Timeout(total=seconds), retries=False)

    def credentials(self) -> kopf.ConnectionInfo:
        """The same server and credentials for kopf, which calls this again when they are refused."""
        import kopf

        configuration = self._configuration
        token = configuration.auth_settings().get("BearerToken", {}).get("value") or ""
        scheme, _, value = token.rpartition(" ")
        return kopf.ConnectionInfo(
            server=self._host,
            ca_path=configuration.ssl_ca_cert,
            insecure=None if configuration.verify_ssl else True,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme.capitalize() or None,
            token=value or None,
        )

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None if it or its kind does not exist."""
        try:
            return self._request("GET", path_of(api_version, kind, namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def served(self, api_version: str) -> set[str]:
        """The kinds that the API server serves in a version of an API group."""
        try:
            found = self._request("GET", f"/apis/{api_version}")
        except KubeError as error:
            if error.status == 404:
                return set()
            raise
        return {resource["kind"] for resource in found.get("resources", ())}

    def list(
        self, api_version: str, kind: str, namespace: str | None, labels: Mapping[str, str]
    ) -> Manifests:
        """The objects with these labels, in one namespace or all."""
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return self._list(api_version, kind, namespace, {"labelSelector": selector})

    def named(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifests:
        """The objects with this name, in one namespace or all."""
        return self._list(api_version, kind, namespace, {"fieldSelector": f"metadata.name={name}"})

    def events_about(self, namespace: str, uid: str, reason: str) -> Manifests:
        """The Events with this reason about the object with this uid."""
        query = {"fieldSelector": f"involvedObject.uid={uid},reason={reason}"}
        return self._list("v1", "Event", namespace, query)

    def log(self, namespace: str, pod: str, container: str, lines: int) -> Sequence[str]:
        """The last lines of a container's log; none if the pod does not exist or has not started."""
        query = {"container": container, "tailLines": str(lines)}
        path = f"{path_of('v1', 'Pod', namespace, pod)}/log"
        try:
            answer = self._send("GET", path, query)
        except KubeError as error:
            if error.status in (400, 404):
                return []
            raise
        return answer.decode(errors="replace").splitlines()[-lines:]

    def _list(
        self, api_version: str, kind: str, namespace: str | None, query: Mapping[str, str]
    ) -> Manifests:
        found = self._request("GET", path_of(api_version, kind, namespace), query)
        # the items of a list lack these two
        return [{"apiVersion": api_version, "kind": kind, **item} for item in found.get("items") or ()]

    def versions(self, api_version: str, kind: str, namespace: str | None) -> Mapping[tuple[str, str], int]:
        """The resourceVersion of every object of a kind by namespace and name, in one namespace or all: in pages and
        without specs, since there may be thousands."""
        found: dict[tuple[str, str], int] = {}
        query = {"limit": str(PAGE)}
        while True:
            page = self._request(
                "GET", path_of(api_version, kind, namespace), query, accept=f"{PARTIAL},application/json"
            )
            for one in page["items"] or ():
                metadata = one["metadata"]
                found[metadata["namespace"], metadata["name"]] = int(metadata.get("resourceVersion") or 0)
            if not (further := page["metadata"].get("continue")):
                return found
            query["continue"] = further

    def create(self, manifest: Mapping[str, Any], manager: str = FIELD_MANAGER) -> Manifest:
        """Create an object that did not exist a moment ago.

        If somebody has created it since, it keeps its fields: status 409 if they differ and ``manager`` is another.
        """
        return self._apply(manifest, force=False, manager=manager)

    def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Manifest:
        """Server-side apply: create the object or set the fields we own; returns the result."""
        return self._apply(manifest, subresource)

    def _apply(
        self,
        manifest: Mapping[str, Any],
        subresource: str = "",
        *,
        force: bool = True,
        manager: str = FIELD_MANAGER,
    ) -> Manifest:
        metadata = manifest["metadata"]
        path = path_of(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])
        query = {"fieldManager": manager[:128], "force": "true" if force else "false"}
        if subresource:
            path = f"{path}/{subresource}"
        return self._request("PATCH", path, query, manifest, "application/apply-patch+yaml")

    def merge(self, live: Mapping[str, Any], change: Mapping[str, Any]) -> Manifest:
        """Change fields of an object by a merge patch; status 409 if it has changed since ``live`` was read."""
        metadata = live["metadata"]
        path = path_of(live["apiVersion"], live["kind"], metadata.get("namespace"), metadata["name"])
        identity = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {**change, "metadata": {**change.get("metadata", {}), **identity}}
        return self._request(
            "PATCH", path, {"fieldManager": FIELD_MANAGER}, body, "application/merge-patch+json"
        )

    def delete(self, api_version: str, kind: str, namespace: str, name: str, *, uid: str) -> bool:
        """Delete the object with this uid, and what it owns; returns whether it existed. An object that has the same
        name and another uid stays."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            self._request("DELETE", path_of(api_version, kind, namespace, name), None, body)
        except KubeError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def record_event(self, key: Key, uid: str, event: Event, now: datetime) -> None:
        """Report to users what happened to a resource and why, as shown by `kubectl describe`."""
        about = {
            "apiVersion": API_VERSION,
            "kind": key.kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        }
        self.record(about, event.type, event.reason, event.message, now)

    def record(self, about: Mapping[str, str], kind: str, reason: str, message: str, now: datetime) -> None:
        """An Event of type Normal or Warning about any object."""
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        name = f"{about['name'][:NAME_OF_EVENT]}.{time.time_ns():x}"
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": about["namespace"], "name": name},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message[:MESSAGE_OF_EVENT],
            "action": "Reconcile",
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": FIELD_MANAGER,
            "source": {"component": FIELD_MANAGER},
            "eventTime": stamp,
            "firstTimestamp": stamp[:19] + "Z",
            "lastTimestamp": stamp[:19] + "Z",
            "count": 1,
        }
        self._request("POST", path_of("v1", "Event", about["namespace"]), None, manifest)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        answer: Manifest = msgspec.json.decode(self._send(method, path, query, body, content_type, accept))
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "*/*",
    ) -> bytes:
        if method != "GET":
            self.fence()
        url = f"{self._host}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {"Accept": accept, "User-Agent": FIELD_MANAGER}
        if (token := self._configuration.auth_settings().get("BearerToken")) and token["value"]:
            headers["Authorization"] = token["value"]
        payload = None
        if body is not None:
            headers["Content-Type"] = content_type
            payload = msgspec.json.encode(body)
        began, status = time.monotonic(), 0
        try:
            response = self._pool.request(
                method, url, body=payload, headers=headers, timeout=self._timeout, retries=self._retries
            )
            status = response.status
        except urllib3.exceptions.HTTPError as error:
            raise KubeError(
                0, "Unreachable", f"the Kubernetes API server does not answer: {error}"
            ) from error
        finally:
            self.observe(method, resource_of(path), status, time.monotonic() - began)
        if response.status < 400:
            return response.data
        raise _error_of(method, path, response.status, response.data)


def path_of(api_version: str, kind: str, namespace: str | None, name: str | None = None) -> str:
    """An object's path, or its collection's without a name."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    parts = [
        root,
        *(["namespaces", namespace] if namespace else []),
        PLURALS[kind],
        *([name] if name else []),
    ]
    return "/".join(parts)


def resource_of(path: str) -> str:
    """The plural and subresource in a path: ``topics/status``; empty for the path of an API group."""
    parts = path.split("/")[3 if path.startswith("/api/") else 4 :]
    if parts[:1] == ["namespaces"]:
        parts = parts[2:]
    return "/".join((*parts[:1], *parts[2:3]))


def _error_of(method: str, path: str, status: int, data: bytes) -> KubeError:
    try:
        answer = msgspec.json.decode(data)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
    except (msgspec.DecodeError, AttributeError):
        reason, message = "", data.decode(errors="replace")[:200]
    return KubeError(status, reason, message or f"{method} {path}: status {status}")
