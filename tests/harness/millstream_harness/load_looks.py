"""Reconciles of a BatchLoad on a Kubernetes in memory, and what they left there."""

from __future__ import annotations

from typing import Any

from millstream_harness.in_memory import InMemory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.kafka.records import EARLIEST, TopicIdentity
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.reconcile.load.apply import reconcile_load

AT_ONCE, SOON, ENDED = 0, 5, 300


CLUSTER = stored(cluster("default"))


BROKERS = {
    "identities": {"flights": TopicIdentity("T1", 1)},
    "offsets": lambda wanted, **_: {one: 2 if when == EARLIEST else 10 for one, when in wanted.items()},
}


OFFSETS = [{"topic": "flights", "partition": 0, "from": 2, "until": 10, "topicId": "T1"}]


PENDING = {"lastRun": {"name": "daily-0001-u-daily", "state": "Pending"}, "offsets": OFFSETS}


def a_load(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    wanted = {
        "clusterRef": {"name": "default"},
        "topics": ["flights"],
        "value": {"format": "JSON", "schema": "carrier STRING"},
        "output": {"path": "s3a://bucket/flights"},
        **spec,
    }
    return stored(resource("BatchLoad", "daily", **wanted), status)


def look(found: InMemory, seen: dict[str, Any] | None = None) -> float:
    """One reconcile; ``seen``: the watch's view, if it differs from the stored one."""
    manifest = seen or found.kube.objects["BatchLoad", "daily"]
    return reconcile_load(found.services, decode_as(BatchLoad, manifest))


def says(found: InMemory, which: str = "Ready") -> tuple[str, str, str] | None:
    return found.condition("BatchLoad", "daily", which)


def run_state(found: InMemory) -> str:
    state: str = found.status("BatchLoad", "daily")["lastRun"]["state"]
    return state


def written(found: InMemory) -> list[str]:
    """Kinds of the applied objects, without the load's status."""
    return [one["kind"] for one in found.kube.applied if one["kind"] != "BatchLoad"]


OWN = {
    "namespace": "ns",
    "name": "daily-0001-u-daily",
    "uid": "u-job",
    "ownerReferences": [{"kind": "BatchLoad", "uid": "u-daily"}],
}


def a_pod(run: str, phase: str, created: str = "1") -> dict[str, Any]:
    labels = {"millstream.dev/run": run}
    metadata: dict[str, Any] = {
        "namespace": "ns",
        "name": f"{run}-{created}",
        "labels": labels,
        "creationTimestamp": created,
    }
    metadata["ownerReferences"] = [{"kind": "Job", "uid": "u-job"}]
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}}


def a_job(**status: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": OWN, "status": status}


def spark(**status: Any) -> dict[str, Any]:
    return {"kind": "SparkApplication", "metadata": OWN, "status": status}
