"""Which BatchLoad a table belongs to: the oldest one that names it.

Two loads of one table would each know only half of its contents. Readers of a table see the files of another one inside
its folder, so that is refused, too.
"""

from __future__ import annotations

import posixpath

from ...models import BatchLoad, ManifestError
from ...models.conditions import Reason
from ...models.problem import Problem
from ...state.cache import Store
from .ranges import table_name

Table = tuple[str, ...]


def table_of(load: BatchLoad) -> Table:
    """The folders down to a load's table: those of a volume begin with it, a URI is the same everywhere."""
    name, claim = table_name(load), load.spec.output.volume_claim_name or ""
    folders = (part for part in posixpath.normpath(name).split("/") if part)
    return (load.namespace, claim, *folders) if name.startswith("/") else tuple(folders)


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
        if other is not None and _age(other) < mine and (relation := _relation(table, table_of(other))):
            where = other.name if other.namespace == load.namespace else f"{other.namespace}/{other.name}"
            output = load.spec.output
            field, value = ("table", output.table) if output.table else ("path", output.path)
            return Problem(
                Reason.CONFLICTING_TABLE,
                f"spec.output.{field}: {value} {relation} the table of BatchLoad {where}, which is older: "
                f"choose another {field}, or add the topics to that load",
            )
    return None


def _relation(table: Table, other: Table) -> str:
    """The relation to another table; "" if neither folder contains the other."""
    shorter = min(len(table), len(other))
    if table[:shorter] != other[:shorter]:
        return ""
    return "is" if table == other else "is inside" if len(table) > len(other) else "contains"


def _age(load: BatchLoad) -> tuple[str, str, str]:
    return load.metadata.creation_timestamp, load.namespace, load.name
