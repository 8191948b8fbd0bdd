"""Cluster: what its spec states of the security of listeners, and the condition that names what it does not state."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...models import Cluster
from ...models.conditions import ConditionType, Reason
from ...resources.listeners import all_listeners
from .plan import Said


def completed(cluster: Cluster) -> Cluster:
    """The Cluster with its defaults in each listener."""
    return replace(cluster, spec=cluster.spec.completed)


def open_listeners(cluster: Cluster) -> list[Said]:
    """The condition ``OpenListeners``; none if every listener states what it has."""
    if not (names := list(_unstated(cluster))):
        return []
    words = (
        f"spec.listeners: not stated, and so open: {'; '.join(names)}. Without authentication, anyone who reaches a"
        " listener can read, write and administer everything; without tls, others can read what is sent. If that is"
        " intended, set `authentication: {type: None}` and `tls: Disabled` in the listener or in spec.listenerDefaults."
        " Otherwise docs/how-to/secure.md shows how to close it without an outage"
    )
    return [(ConditionType.OPEN_LISTENERS, True, Reason.NOT_STATED, words)]


def _unstated(cluster: Cluster) -> Iterator[str]:
    for each in all_listeners(cluster):
        if missing := each.completed(cluster.spec.listener_defaults).unstated:
            yield f"{' and '.join(missing)} of {each.name}"
