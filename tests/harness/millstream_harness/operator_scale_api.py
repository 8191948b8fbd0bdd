"""The API server of a measurement (operator_scale.py): requests to it, a watch of resources, the kubelets' part."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millstream_operator.kubernetes.client import Kube, KubeError, Manifest, path_of
from millstream_operator.models import API_VERSION

KINDS = ("Cluster", "Topic", "ConsumerGroup", "User")


class Api(Kube):
    """The API server, with requests that only a measurement sends."""

    def post(self, manifest: Mapping[str, Any], namespace: str) -> None:
        path = path_of(manifest["apiVersion"], manifest["kind"], namespace)
        self._request("POST", path, None, manifest)

    def edit(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Manifest:
        path = path_of(API_VERSION, kind, namespace, name)
        return self._request("PATCH", path, None, change, "application/merge-patch+json")

    def watch(self, kind: str, namespace: str) -> Iterator[bytes]:
        """Lines of a watch, until the server ends it."""
        url = f"{self._host}{path_of(API_VERSION, kind, namespace)}?watch=true"
        answer = self._pool.request("GET", url, preload_content=False, timeout=None)
        rest = b""
        for chunk in answer.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def requests(self) -> Counter[tuple[str, str]]:
        """Number of requests to the API server, by verb and resource (with its subresource)."""
        text = self._pool.request("GET", f"{self._host}/metrics").data.decode()
        found: Counter[tuple[str, str]] = Counter()
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, _, count = line[len("apiserver_request_total{") :].partition("} ")
                known = dict(one.split("=", 1) for one in labels.replace('"', "").split(",") if "=" in one)
                name = "/".join(filter(None, (known.get("resource", ""), known.get("subresource", ""))))
                found[known.get("verb", ""), name] += int(float(count))
        return found


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    conditions: tuple[_Condition, ...] = ()


class _Metadata(msgspec.Struct):
    name: str
    generation: int = 0


class _Object(msgspec.Struct):
    metadata: _Metadata
    status: _Status = _Status()


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Seen:
    """Watches resources: which are ready, and when the status showed a generation."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.ready: dict[str, set[str]] = defaultdict(set)
        self.changes: Counter[str] = Counter()
        self._edited: dict[str, tuple[int, float]] = {}
        self.reflected: list[float] = []
        self._lock = threading.Lock()
        for kind in KINDS:
            threading.Thread(target=self._follow, args=(api, kind, namespace), daemon=True).start()

    def edited(self, name: str, generation: int, begun: float) -> None:
        with self._lock:
            self._edited[name] = generation, begun

    def total(self) -> int:
        """Number of changes of all resources so far."""
        return sum(self.changes.values())

    def pending(self) -> int:
        return len(self._edited)

    def _follow(self, api: Api, kind: str, namespace: str) -> None:
        while True:
            with contextlib.suppress(Exception):  # the server regularly ends a watch
                for line in api.watch(kind, namespace):
                    event = msgspec.json.decode(line, type=_Event)
                    if event.type in ("ADDED", "MODIFIED"):
                        self._saw(kind, msgspec.json.decode(event.object, type=_Object))
                        self.changes[kind] += event.type == "MODIFIED"
            time.sleep(0.5)

    def _saw(self, kind: str, one: _Object) -> None:
        name, now = one.metadata.name, time.monotonic()
        ready = any((c.type, c.status) == ("Ready", "True") for c in one.status.conditions)
        (self.ready[kind].add if ready else self.ready[kind].discard)(name)
        if kind == "Topic" and name in self._edited:
            with self._lock:
                generation, begun = self._edited[name]
                if one.status.observed_generation >= generation:
                    del self._edited[name]
                    self.reflected.append(now - begun)


class Kubelets:
    """Replaces nodes, of which there are none: reports every pod of a broker as ready."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(KubeError):
                for pod in self._api.list("v1", "Pod", self._namespace, {}):
                    if (pod.get("status") or {}).get("phase") != "Running":
                        self._make_ready(pod)
            time.sleep(1.0)

    def _make_ready(self, pod: Manifest) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": stamp}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        status = {"phase": "Running", "conditions": conditions, "startTime": stamp}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        self._api.apply(manifest, "status")


def is_ours(verb: str, name: str) -> bool:
    """Whether the operator made this write.

    Apart from it only controllers write, and these never apply; they write some of the Events. The stand-in for
    kubelets writes pods' statuses, and edits are patches.
    """
    if name.startswith(("pods", "namespaces", "serviceaccounts")):
        return False
    return verb == "APPLY" or (verb, name) in (("POST", "events"), ("PUT", "leases"))
