"""The operator's surroundings in memory: Kubernetes as a dictionary, brokers with prepared responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_kafka.client import Security
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.pools import AdminPool
from millstream_operator.kubernetes.client import FIELD_MANAGER, Kube, KubeError, Manifest, Manifests
from millstream_operator.models import KINDS
from millstream_operator.models.conditions import rfc3339
from millstream_operator.models.event import Event
from millstream_operator.models.keys import Key
from millstream_operator.state.context import Services
from millstream_operator.state.status import FINALIZER

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
Name = tuple[str, str]
"""Kind and name: a test of plans has one namespace for each name."""


class MemoryKube(Kube):
    """Objects by kind and name.

    ``applied``, ``deleted`` and ``events`` record the calls, in order; ``refused`` has errors for calls that get,
    list or apply objects of a kind, and ``refused_writes`` for those that apply.
    """

    def __init__(self, *objects: Mapping[str, Any]) -> None:
        self.objects: dict[Name, Manifest] = {}
        self.applied: list[Manifest] = []
        self.deleted: list[Name] = []
        self.events: list[Event] = []
        self.refused: dict[str, KubeError] = {}
        self.refused_writes: dict[str, KubeError] = {}
        self.logs: dict[tuple[str, str], list[str]] = {}
        """By pod and container."""
        for manifest in objects:
            self.put(manifest)

    def put(self, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        metadata = {"uid": f"u-{name}", **manifest["metadata"]}
        self.objects[manifest["kind"], name] = {**manifest, "metadata": metadata}

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        assert name, f"a {kind} without a name is all of them"
        if kind in self.refused and self.refused[kind].status == 404:
            return None  # as for a kind that the API server does not have
        self._refuse(kind)
        found = self.objects.get((kind, name))
        return found if found is not None and found["metadata"].get("namespace") == namespace else None

    def versions(self, api_version: str, kind: str, namespace: str | None) -> Mapping[tuple[str, str], int]:
        found = [one["metadata"] for one in self.list(api_version, kind, namespace, {})]
        return {(one["namespace"], one["name"]): int(one.get("resourceVersion") or 0) for one in found}

    def events_about(self, namespace: str, uid: str, reason: str) -> Manifests:
        return [
            one
            for (kind, _), one in self.objects.items()
            if kind == "Event" and (one["involvedObject"]["uid"], one["reason"]) == (uid, reason)
        ]

    def log(self, namespace: str, pod: str, container: str, lines: int) -> Sequence[str]:
        return self.logs.get((pod, container), [])[-lines:]

    def applied_names(self, kind: str) -> list[str]:
        """Names of the applied objects of a kind, in order."""
        return [one["metadata"]["name"] for one in self.applied if one["kind"] == kind]

    def list(
        self, api_version: str, kind: str, namespace: str | None, labels: Mapping[str, str]
    ) -> list[Manifest]:
        self._refuse(kind)
        return [
            one
            for (of_kind, _), one in list(self.objects.items())  # a thread lists while a test changes them
            if of_kind == kind
            and namespace in (None, one["metadata"].get("namespace"))
            and labels.items() <= one["metadata"].get("labels", {}).items()
        ]

    def create(self, manifest: Mapping[str, Any], manager: str = FIELD_MANAGER) -> Manifest:
        assert (manifest["kind"], manifest["metadata"]["name"]) not in self.objects
        return self.apply(manifest)

    def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Manifest:
        self._refuse(manifest["kind"])
        if manifest["kind"] in self.refused_writes:
            raise self.refused_writes[manifest["kind"]]
        sent: Manifest = msgspec.json.decode(msgspec.json.encode(manifest))
        self.applied.append(sent)
        before = self.objects.get((sent["kind"], sent["metadata"]["name"]), {"metadata": {}})
        self.put({**before, **sent, "metadata": {**before["metadata"], **sent["metadata"]}})
        return self.objects[sent["kind"], sent["metadata"]["name"]]

    def merge(self, live: Mapping[str, Any], change: Mapping[str, Any]) -> Manifest:
        self._refuse(live["kind"])
        before = self.objects[live["kind"], live["metadata"]["name"]]
        metadata = {**before["metadata"], **change["metadata"]}
        if "annotations" in change["metadata"]:
            old = before["metadata"].get("annotations") or {}
            metadata["annotations"] = {**old, **change["metadata"]["annotations"]}
        self.put({**before, "metadata": metadata})
        return self.objects[live["kind"], live["metadata"]["name"]]

    def delete(self, api_version: str, kind: str, namespace: str, name: str, *, uid: str) -> bool:
        found = self.objects.get((kind, name))
        if found is not None and found["metadata"]["uid"] != uid:
            return False
        self.deleted.append((kind, name))
        return self.objects.pop((kind, name), None) is not None

    def record_event(self, key: Key, uid: str, event: Event, now: datetime) -> None:
        self._refuse("Event")
        self.events.append(event)

    def _refuse(self, kind: str) -> None:
        if kind in self.refused:
            raise self.refused[kind]


def stored(
    manifest: Mapping[str, Any], status: Mapping[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """A resource of namespace ns, as the API server stores it."""
    name = manifest["metadata"]["name"]
    known = {
        "namespace": "ns",
        "uid": f"u-{name}",
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    merged = {**known, **manifest["metadata"], **metadata}
    return {**manifest, "metadata": merged, **({"status": status} if status else {})}


def deleted(seconds: float, **metadata: Any) -> dict[str, Any]:
    """Metadata of a resource that was deleted this long ago and has the operator's finalizer."""
    stamp = rfc3339(NOW - timedelta(seconds=seconds))
    return {"deletionTimestamp": stamp, "finalizers": [FINALIZER], **metadata}


class ToldBrokers:
    """Responds to requests of KafkaAdmin as a test says: with a value, an error to raise, or a function of the request.

    ``asked`` keeps the requests; one without a response fails the test.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, request: str) -> Callable[..., Any]:
        assert hasattr(KafkaAdmin, request), request

        def ask(*wanted: Any, **options: Any) -> Any:
            self.asked.append((request, *wanted))
            assert request in self.answers, f"the brokers were asked for {request}{wanted}"
            answer = self.answers[request]
            if isinstance(answer, Exception):
                raise answer
            return answer(*wanted, **options) if callable(answer) else answer

        return ask

    def close(self) -> None:
        pass

    def requests(self, request: str) -> list[Any]:
        """Arguments of each call of one request."""
        return [wanted[0] if wanted else None for name, *wanted in self.asked if name == request]


class _OneCluster(AdminPool):
    def __init__(self, brokers: ToldBrokers) -> None:
        super().__init__()
        self.brokers = brokers

    def at(self, bootstrap: str, security: Security | None = None) -> KafkaAdmin:
        return cast(KafkaAdmin, self.brokers)

    def new(self, bootstrap: str) -> KafkaAdmin:
        return cast(KafkaAdmin, self.brokers)


@dataclass(frozen=True)
class InMemory:
    """``services``, and the objects and brokers behind them."""

    kube: MemoryKube = field(default_factory=MemoryKube)
    brokers: ToldBrokers = field(default_factory=ToldBrokers)
    services: Services = field(init=False)
    again: dict[str, float] = field(default_factory=dict)
    """Seconds until the next look by resource, if a test looked."""

    def __post_init__(self) -> None:
        services = services_on_kubernetes(
            self.kube, admins=_OneCluster(self.brokers), now=lambda: NOW, nonce=lambda: "u-daily"
        )
        object.__setattr__(self, "services", services)
        for manifest in self.kube.objects.values():
            if manifest["kind"] in KINDS:
                services.store.put(manifest)

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Status of a resource; empty if none was written."""
        found: dict[str, Any] = self.kube.objects.get((kind, name), {}).get("status", {})
        return found

    def condition(self, kind: str, name: str, which: str = "Ready") -> tuple[str, str, str] | None:
        """Status, reason and message of a condition."""
        for one in self.status(kind, name).get("conditions", ()):
            if one["type"] == which:
                return one["status"], one["reason"], one["message"]
        return None


def in_memory(*objects: Mapping[str, Any], **answers: Any) -> InMemory:
    """Services with these objects, and brokers with these responses."""
    return InMemory(MemoryKube(*objects), ToldBrokers(**answers))
