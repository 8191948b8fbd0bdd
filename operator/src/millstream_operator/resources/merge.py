"""Strategic merge: the user's fields over the pods that the operator builds.

Mappings merge by key, containers, their environment and volumes by name, other lists and values are replaced, null
removes. As `kubectl patch --type strategic` does for pod templates:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/

models/pods.py lists the fields that a user may add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..models.pods import LIST_KEYS


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``override`` over it; neither is changed."""
    result = dict(base)
    for key, value in override.items():
        current = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(current, Mapping):
            result[key] = merge(current, value)
        elif isinstance(value, list) and isinstance(current, list) and key in LIST_KEYS:
            result[key] = _merge_lists(current, value, LIST_KEYS[key])
        else:
            result[key] = value
    return result


def _merge_lists(base: list[Any], override: list[Any], merge_key: str) -> list[Any]:
    result = list(base)
    places = {item.get(merge_key): place for place, item in enumerate(base) if isinstance(item, Mapping)}
    for item in override:
        place = places.get(item.get(merge_key)) if isinstance(item, Mapping) else None
        if place is None:
            result.append(item)
        else:
            result[place] = merge(result[place], item)
    return result
