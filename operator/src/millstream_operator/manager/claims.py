"""Which release acts in a namespace: the namespace's Lease `millstream.dev` names it.

A release takes this Lease in each namespace that it watches, unless another release holds it. The other release then
leaves everything in the namespace alone, and reports this in its log, by an Event on the Lease and on `/healthz`. The
Lease never expires, and no release takes it from another: an operator that is down for an hour must not find its
Clusters restarted with another release's images. To hand a namespace over, a user deletes the Lease; the chart's
uninstall hook deletes it, too.

The holder is cached for ``RECHECK_S``, so most reconciles cost no request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ..kubernetes.client import Kube, KubeError, Manifest
from ..resources.owned import MANAGED_BY
from .election import micro_time
from .leadership import LEASES

logger = logging.getLogger(__name__)

CLAIM = "millstream.dev"
RECHECK_S = 13.0
"""Shorter than the time between two reconciles of a resource of another release, so that each reads the Lease."""


class Claims:
    """The namespaces of a release, named by ``holder`` (NAMESPACE/NAME of its own Lease). Usable from any thread."""

    def __init__(self, kube: Kube, holder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._holder, self._clock = kube, holder, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float]] = {}  # holder, and when to read it again

    def foreign(self) -> dict[str, str]:
        """The namespaces that other releases hold, with the holders."""
        with self._lock:
            return {where: holder for where, (holder, _) in self._known.items() if holder != self._holder}

    def ours(self, namespace: str) -> bool:
        """Whether this release acts there. Raises KubeError."""
        with self._lock:
            before, until = self._known.get(namespace, ("", 0.0))
        if self._clock() < until:
            return before == self._holder
        holder = self._take(namespace)
        if holder is None:
            with self._lock:
                self._known.pop(namespace, None)
            return True
        with self._lock:
            self._known[namespace] = (holder, self._clock() + RECHECK_S)
        if holder != before:
            self._say(namespace, holder, before)
        return holder == self._holder

    def _take(self, namespace: str) -> str | None:
        """Take the Lease if nobody holds it; returns the holder.

        None if the namespace is being deleted and its Lease is gone: only deletions are left, which every release may
        finish. The release that acted there may be gone as well.
        """
        live = self._kube.get(LEASES, "Lease", namespace, CLAIM)
        if live is None:
            try:
                live = self._kube.create(
                    claim(namespace, self._holder, datetime.now(UTC)), manager=self._holder
                )
            except KubeError as error:
                if error.status == 404 or (error.status == 403 and "being terminated" in str(error)):
                    return None
                if error.status != 409:
                    raise
                live = self._kube.get(LEASES, "Lease", namespace, CLAIM)  # another one was faster
        holder = ((live or {}).get("spec") or {}).get("holderIdentity") or ""
        if live is None or holder:
            return holder
        self._kube.merge(live, {"spec": {"holderIdentity": self._holder}})
        return self._holder

    def _say(self, namespace: str, holder: str, before: str) -> None:
        if holder == self._holder:
            logger.info("acting in namespace %s", namespace)
            return
        words = (
            f"{self._holder} watches namespace {namespace} too, and leaves it alone: it belongs to the operator of "
            f"{holder}. Take the namespace from operator.watchNamespaces of one of the two; to hand it over, then run: "
            f"kubectl --namespace {namespace} delete lease {CLAIM}"
        )
        (logger.error if before == self._holder else logger.warning)("%s", words)
        try:
            about = {"apiVersion": LEASES, "kind": "Lease", "namespace": namespace, "name": CLAIM}
            self._kube.record(about, "Warning", "WatchedTwice", words, datetime.now(UTC))
        except KubeError as error:
            logger.warning("cannot record the Event for Lease %s/%s: %s", namespace, CLAIM, error)


def claim(namespace: str, holder: str, now: datetime) -> Manifest:
    """The Lease of a namespace. It has no duration."""
    return {
        "apiVersion": LEASES,
        "kind": "Lease",
        "metadata": {"namespace": namespace, "name": CLAIM, "labels": dict(MANAGED_BY)},
        "spec": {"holderIdentity": holder, "acquireTime": micro_time(now)},
    }
