"""Validates resources against the CRDs, as the API server does.

The CRDs in `crds/` define a resource's types, bounds and rules. The API server validates every write against them. This
module validates the rest: manifests on a laptop, and resources stored under older CRDs. The records in ``models`` rely
on it: they declare types, and rules only where no CRD can express them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..models import API_VERSION, KINDS, ManifestError, Resource, decode_as
from ..models.explain import shown, titled
from .schema import crd_schemas, pruned, validate, with_defaults, without_nulls

WAIVED = frozenset(
    (
        "self.type == 'Internal' || self.allowPlaintext || (has(self.tls) && self.tls == 'Enabled')",
        "self.port != 9090",
        "self.port != 9091",
    )
)
"""Rules newer than some resources that break them. The API server does not apply a new rule to a stored value until the
value changes; the operator keeps such resources running."""


def refusal(kind: str, manifest: Mapping[str, Any]) -> str:
    """Why a stored resource is not valid, in one line; empty if it is.

    Unknown fields are ignored: the API server admits only those of newer CRDs, which remain after a rollback.
    """
    return _why(kind, pruned(manifest, crd_schemas()[kind]))


def _why(kind: str, manifest: Mapping[str, Any]) -> str:
    schema = crd_schemas()[kind]
    written = with_defaults({name: value for name, value in manifest.items() if name != "status"}, schema)
    return "; ".join(map(str, validate(written, schema, waived=WAIVED)))


def decode(manifest: object) -> Resource:
    """Decode a manifest (a YAML or JSON document). Raises ManifestError with one line that names kind, resource,
    fields, values and what is allowed::

        Topic flights: spec.partitions: 0 is too small; allowed: 1 or more
    """
    if not isinstance(manifest, Mapping):
        raise ManifestError(f"a manifest must be a mapping with apiVersion and kind, not {shown(manifest)}")
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if version != API_VERSION:
        raise ManifestError(f"apiVersion: {shown(version)} is not allowed: expected {API_VERSION}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ManifestError(f"kind: {shown(kind)} is not allowed: expected one of {', '.join(KINDS)}")
    given = without_nulls(manifest, crd_schemas()[kind])
    if why := _why(kind, given):
        raise ManifestError(titled(kind, given, why))
    return decode_as(KINDS[kind], given)
