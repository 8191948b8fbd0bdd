"""Which BatchLoad a table belongs to: the oldest one that names it. Two loads of one table would each know only half of
its contents."""

from __future__ import annotations

from ..conditions import Reason
from ..models import BatchLoad, ManifestError
from ..store import Store
from .load_ranges import table_name
from .problem import Problem

Table = tuple[str, ...]


def table_of(load: BatchLoad) -> Table:
    """The identity of a load's table: a folder includes its volume, a URI is the same everywhere."""
    name, claim = table_name(load).rstrip("/"), load.spec.output.volume_claim_name or ""
    return (load.namespace, claim, name) if name.startswith("/") else (name,)


def check_table(store: Store, load: BatchLoad) -> Problem | None:
    """Why the load may not write its table; None if it may."""
    mine, table = _age(load), table_of(load)
    for key in store.keys(BatchLoad.KIND):
        if key == (BatchLoad.KIND, load.namespace, load.name):
            continue
        try:
            other = store.get(BatchLoad, key.namespace, key.name)
        except ManifestError:
            continue
        if other is not None and table_of(other) == table and _age(other) < mine:
            where = other.name if other.namespace == load.namespace else f"{other.namespace}/{other.name}"
            output = load.spec.output
            field, value = ("table", output.table) if output.table else ("path", output.path)
            return Problem(
                Reason.CONFLICTING_TABLE,
                f"spec.output.{field}: {value} is the table of BatchLoad {where}, which is older: "
                f"choose another {field}, or add the topics to that load",
            )
    return None


def _age(load: BatchLoad) -> tuple[str, str, str]:
    return load.metadata.creation_timestamp, load.namespace, load.name
