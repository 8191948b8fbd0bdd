"""One thin module for each kind: which function reconciles it, and whose changes wake it. This package connects them
to kopf.

kopf maintains the watches (reconnection, bookmarks, streams that fall silent). Its own handlers for creation, change
and deletion are not used: they put finalizers and copies of the spec on every object, and are edge-triggered. Instead,
each event goes into the store and the queue; see manager/controller.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import kopf

from ..manager.controller import Controller, Manager, OwnedResource
from ..models import GROUP, KINDS, VERSION
from ..resources.owned import MANAGED_BY

CONTROLLERS: dict[str, Controller[Any]] = {
    kind: import_module(f".{kind.lower()}", __name__).CONTROLLER for kind in KINDS
}


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, manager: Manager) -> None:
    """Watch every custom resource, and the objects that wake them."""

    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        manager.seen(event["type"], event["object"])

    async def owned_seen(event: kopf.RawEvent, **_: Any) -> None:
        manager.owned_seen(event["object"])

    owned: set[OwnedResource] = set()
    for controller in manager.controllers.values():
        kopf.on.event(GROUP, VERSION, controller.kind.PLURAL, registry=registry)(seen)
        owned.update(controller.owned)
    selector = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
    for kind in sorted(owned, key=lambda kind: kind.plural):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"owned-{kind.plural}")(
            owned_seen
        )
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
