"""RUN.json, the file of a BatchLoad's run: what `millstream-load` reads, with pinned offsets and the run's fence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..models import BatchLoad
from ..models.load import Written
from .load_output import output_of
from .load_value import reading, value
from .pod_access import PodAccess

Manifest = dict[str, Any]
RUN_FILE = "run.json"
BOOTSTRAP, LOGIN, TLS = "bootstrap", "login", "tls"
"""Keys of RUN.json."""


def run_name(load: BatchLoad) -> str:
    run = load.status.last_run
    if run is None or not run.name:
        raise ValueError(f"BatchLoad {load.name} has no run")
    return run.name


def run_id(load: BatchLoad) -> str:
    """The id of the run's rows and its result: the names of older releases' runs have no uid."""
    name, uid, run = run_name(load), load.metadata.uid[:8], load.status.last_run
    if run is not None and run.id:
        return run.id
    return name if name.endswith(f"-{uid}") else f"{name}-{uid}"


def run_file(load: BatchLoad, access: PodAccess, *, result: str, output_path: str | None = None) -> Manifest:
    """RUN.json: everything that the job needs to know."""
    topic_ids = {part.topic: part.topic_id for part in load.status.offsets or () if part.topic_id}
    return {
        "name": run_id(load),
        BOOTSTRAP: access.bootstrap,
        "offsets": [
            {"topic": part.topic, "partition": part.partition, "from": part.from_, "until": part.until}
            for part in load.status.offsets or ()
        ],
        **({"topicIds": topic_ids} if topic_ids else {}),
        "fence": _fence(load),
        "value": value(load),
        **reading(load),
        "output": {
            **output_of(load, output_path or load.spec.output.path),
            **({"mode": "New"} if _begins_a_table(load) else {}),
        },
        "result": result,
        **({LOGIN: {"folder": access.folder}} if access.has_login else {}),
        **({TLS: {"caFile": access.ca_file}} if access.has_tls else {}),
    }


def logs_in(config_map: Mapping[str, Any], *, has_tls: bool = False) -> bool:
    """Whether the run of a ConfigMap logs in at brokers, with TLS or without."""
    found = json.loads(config_map["data"][RUN_FILE])
    return LOGIN in found and (TLS in found) is has_tls


def connects_as(config_map: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the runs of two ConfigMaps connect in the same way."""
    one, another = (json.loads(each["data"][RUN_FILE]) for each in (config_map, other))
    return all(one.get(key) == another.get(key) for key in (BOOTSTRAP, LOGIN, TLS))


def _begins_a_table(load: BatchLoad) -> bool:
    """Whether the run must find none of its records in the table: it is the load's first there, or follows a failed
    run that may have published its rows.

    Its status decides: a load that was deleted and created again does not know its predecessor's rows.
    """
    status, run = load.status, load.status.last_run
    decided = load.spec.from_.request_id is not None
    if run is None:
        return False
    if run.trigger == "Rerun":
        return status.committed is None and not decided
    if status.asked is None:
        return False
    if status.committed is None or status.committed.path != status.asked.path:
        return not decided
    if status.committed.from_ != status.asked.from_:  # who edits `from` may load records twice
        return follows_unsettled(load) and not decided
    return follows_unsettled(load) or (_written(load) is None and not decided)


def _fence(load: BatchLoad) -> Manifest:
    """RUN.json's fence: a run that continues where the last run of its table ended must follow that run."""
    request, written = _request(load), _written(load)
    begins = {"request": request} if request else {}
    if written is None:
        return begins
    failed = [run for run in written.since if run != run_id(load)]
    return {"after": written.run, **({"failed": failed} if failed else {}), **begins}


def _request(load: BatchLoad) -> str:
    """The request with which the run begins, "" if it continues one: the table may have its rows already, although the
    status, which may be older, does not know it.
    """
    status, run = load.status, load.status.last_run
    if run is not None and run.trigger == "Rerun":
        return f"rerun {run.request_id}"
    committed, asked, request_id = status.committed, status.asked, load.spec.from_.request_id
    if request_id is None or asked is None:
        return ""
    is_known = committed is not None and (committed.path, committed.from_) == (asked.path, asked.from_)
    return "" if is_known else f"from {request_id}"


def _written(load: BatchLoad) -> Written | None:
    """The runs that the table must end with; None if this run may find any."""
    committed, asked, written, run = (
        load.status.committed,
        load.status.asked,
        load.status.written,
        load.status.last_run,
    )
    if committed is None or written is None or written.run is None or written.path != committed.path:
        return None
    if run is not None and run.trigger == "Rerun":
        return written
    if asked is None or asked.path != committed.path:
        return None
    removed = (
        load.spec.from_.position == "Committed" and load.spec.from_.request_id is None
    )  # decides nothing
    return written if removed or asked.from_ == committed.from_ else None


def follows_unsettled(load: BatchLoad) -> bool:
    """Whether the last run left out a failed run of the same table, as `topics` or `until` were edited since."""
    last, asked = load.status.unsettled, load.status.asked
    return last is not None and asked is not None and last.path == asked.path and last.id != run_id(load)
