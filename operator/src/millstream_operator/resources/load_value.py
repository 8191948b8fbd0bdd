"""RUN.json's fields about values and records; `millstream_jobs.value` reads them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..models import BatchLoad


def value(load: BatchLoad) -> dict[str, Any]:
    """RUN.json's `value`, without unset fields."""
    spec = load.spec.value
    found = {
        "format": spec.format,
        "schema": spec.schema,
        "options": spec.options or None,
        "schemaRegistry": {"url": spec.schema_registry.url} if spec.schema_registry else None,
        "descriptorSet": spec.descriptor_set,
        "message": spec.message,
        "timeColumn": spec.time_column,
        "maxCorruptRecords": spec.max_corrupt_records,
    }
    return {name: content for name, content in found.items() if content is not None}


def reading(load: BatchLoad) -> dict[str, Any]:
    """The other fields of RUN.json about reading, without defaults."""
    spec = load.spec
    found: dict[str, Any] = {}
    if spec.record.key != "Binary" or spec.record.headers:
        found["record"] = {"key": spec.record.key, "headers": spec.record.headers}
    if spec.min_partitions is not None:
        found["minPartitions"] = spec.min_partitions
    if (begins := _from_timestamp(load)) is not None:
        found["fromTimestamp"] = begins.isoformat()
    return found


def _from_timestamp(load: BatchLoad) -> datetime | None:
    """The time at which the run begins: an older record may follow the first one that is not older."""
    run, rerun = load.status.last_run, load.spec.rerun
    if run is not None and run.trigger == "Rerun":
        return rerun.from_.timestamp if rerun is not None and rerun.request_id == run.request_id else None
    return load.spec.from_.timestamp
