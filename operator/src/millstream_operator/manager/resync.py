"""Lists all resources beside the watches: at the start, and from time to time.

The first listing: nothing is reconciled before every kind is known.

A reconcile depends on other resources: which of two Topics that name one topic is older, whether a Cluster exists.
While half of them are unknown, a younger Topic would win, and a deletion would find no Cluster to carry it out. So the
workers start when the watches have shown every resource that existed when the operator started, unless it has been
deleted since.

Ghosts: a watch that falls behind (410 Gone) restarts with a listing, which does not show what was deleted in between;
and if the API server's data was restored from an older copy, resources are older than the store's. So the store is
compared with listings of versions, after a watch has restarted and every few minutes. A resource that is missing or
older is read individually; the store then takes the result, or forgets the resource.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from ..kubernetes.client import KubeError, Manifest
from ..models import API_VERSION, KINDS
from ..models.keys import Key
from ..state.context import Services

logger = logging.getLogger(__name__)

POLL_S = 0.05
AGAIN_S = 5.0  # what the watches have not shown by then may have been deleted: list again


async def listed(services: Services, namespaces: Sequence[str]) -> None:
    """Return once the store has every custom resource in these namespaces; an empty sequence means all namespaces."""
    loop = asyncio.get_running_loop()
    missing: set[Key] | None = None
    while missing is None or missing:
        try:
            there = await asyncio.to_thread(_all, services, namespaces)
        except KubeError as error:
            logger.warning("cannot list resources, retrying: %s", error)
            await asyncio.sleep(AGAIN_S)
            continue
        missing = set(there) if missing is None else missing & there.keys()
        again_at = loop.time() + AGAIN_S
        while missing and loop.time() < again_at:
            missing = {key for key in missing if key not in services.store}
            if missing:
                await asyncio.sleep(POLL_S)
        if missing:
            logger.info("waiting for %d resources to be listed, such as %s", len(missing), min(missing))


async def missed(services: Services, namespaces: Sequence[str]) -> list[tuple[str | None, Manifest]]:
    """Events that the watches have missed, in kopf's form: type and resource. Raises KubeError."""
    held = services.store.versions()  # read before the listing: newer resources are not in it
    there = await asyncio.to_thread(_all, services, namespaces)
    behind = [key for key, version in held.items() if there.get(key, -1) < version]
    return await asyncio.to_thread(_confirmed, services, behind)


def _confirmed(services: Services, behind: Iterable[Key]) -> list[tuple[str | None, Manifest]]:
    found: list[tuple[str | None, Manifest]] = []
    unknown: list[Key] = []
    why: KubeError | None = None
    for key in behind:
        held = services.store.raw(key)
        try:
            live = services.kube.get(API_VERSION, key.kind, key.namespace, key.name)
        except KubeError as error:  # such as a namespace without rights: continue with the others
            unknown.append(key)
            why = error
            continue
        if held is not None and (live is None or _is_another(live, held)):
            found.append(("DELETED", held))
        if live is not None:
            found.append((None, live))
    if unknown:
        logger.warning(
            "cannot check whether %d resources still exist, such as %s, continuing without: %s",
            len(unknown),
            unknown[0],
            why,
        )
    return found


def _is_another(live: Manifest, held: Manifest) -> bool:
    """Whether ``live`` is another resource than the one held, or an earlier state of it."""
    before, now = held["metadata"], live["metadata"]
    earlier = int(now.get("resourceVersion") or 0) < int(before.get("resourceVersion") or 0)
    return earlier or now["uid"] != before["uid"]


def _all(services: Services, namespaces: Sequence[str]) -> dict[Key, int]:
    """The resourceVersion of every custom resource by key."""
    found: dict[Key, int] = {}
    for kind in KINDS:
        for namespace in namespaces or (None,):
            try:
                listed = services.kube.versions(API_VERSION, kind, namespace)
                found |= {Key(kind, *name): version for name, version in listed.items()}
            except KubeError as error:
                if error.status != 403 or namespace is None:
                    raise
                # such as a deleted namespace, with the rights in it: continue with the others
                logger.warning(
                    "cannot list %s in namespace %s, continuing without: %s", kind, namespace, error
                )
    return found
