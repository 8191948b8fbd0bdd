"""BatchLoads and their statuses, for tests of plans."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream_operator.models import BatchLoad, BatchLoadStatus, Run, decode_as
from millstream_operator.models.load_run import ObservedRun, RunState
from millstream_operator.reconcile.load import plan as runs
from millstream_operator.reconcile.load.ranges import Ends, Partitions
from millstream_operator.validation.schema import crd_schemas

NONCE = "1a2b3c4d"
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
FLIGHTS = {("flights", 0): Ends(0, 100, topic_id="T1"), ("flights", 1): Ends(20, 50, topic_id="T1")}
MORE = {("flights", 0): Ends(0, 130, topic_id="T1"), ("flights", 1): Ends(20, 50, topic_id="T1")}


def conf_rule() -> str:
    """The rule for keys of ``spec.spark.conf``, in CEL."""
    spec = crd_schemas()["BatchLoad"]["properties"]["spec"]
    rule, _ = spec["properties"]["spark"]["properties"]["conf"]["x-kubernetes-validations"]
    return str(rule["rule"])


def allowed_conf() -> tuple[str, ...]:
    """The allowed keys; one that ends with a dot allows all keys with that prefix."""
    return tuple(re.findall(r"'(spark[^']*)'", conf_rule()))


def a_load(generation: int = 1, **spec: Any) -> BatchLoad:
    return decode_as(
        BatchLoad,
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "BatchLoad",
            "metadata": {
                "name": "daily",
                "namespace": "flights",
                "uid": "1a2b3c4d-0000",
                "generation": generation,
            },
            "spec": {
                "clusterRef": {"name": "default"},
                "topics": ["flights"],
                "value": {"format": "JSON", "schema": "carrier STRING"},
                "output": {"path": "/lake/flights", "volumeClaimName": "lake"},
                **spec,
            },
        },
    )


def edited(load: BatchLoad, **spec: Any) -> BatchLoad:
    """The load with another spec, as stored by the API server: with the next generation if anything changed."""
    changed = a_load(load.metadata.generation + bool(spec), **spec)
    return msgspec.structs.replace(changed, status=load.status)


def observed(load: BatchLoad, now: datetime = NOW) -> BatchLoad:
    return runs.with_status(load, runs.observe(load, now))


def started(load: BatchLoad, now: datetime = NOW, partitions: Partitions = FLIGHTS) -> BatchLoad:
    """The load with a run that begins now."""
    request = runs.request(load, now)
    load = request.load
    assert request.cause is not None
    begun = runs.begin(load, request.cause, partitions, now, NONCE)
    assert isinstance(begun, BatchLoadStatus), begun
    return runs.with_status(load, begun)


def ended(load: BatchLoad, seen: ObservedRun | None = None, now: datetime = NOW, **edit: Any) -> BatchLoad:
    """The load whose run has ended, successfully unless ``seen`` says otherwise; then with another spec."""
    rows = run_of(load).records
    load = runs.with_status(
        load, runs.end(load, seen or ObservedRun(RunState.SUCCEEDED, rows=rows, corrupt_records=0), now)
    )
    return edited(load, **edit) if edit else load


def run_of(load: BatchLoad) -> Run:
    assert load.status.last_run is not None
    return load.status.last_run


def listed(*offsets: tuple[int, int]) -> dict[str, Any]:
    """The position at these offsets by partition."""
    entries = [{"topic": "flights", "partition": partition, "offset": at} for partition, at in offsets]
    return {"position": "Offsets", "offsets": entries}
