"""Holds the Lease of an operator: takes it, renews it in its own thread, releases it at the end.

One operator of a release acts at a time; others stand by, with their watches open, and take over when it ends (at once)
or falls silent (after 15 s; see election.py). Renewal has its own thread, because neither a busy event loop nor a long
reconcile may cost the Lease. An operator that has lost the Lease must not write any more: ``lost`` is called, which
ends the process, and until then ``check`` refuses every write, to the API server and to brokers. A request that was
already sent cannot be recalled.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from ..kubernetes.client import Kube, KubeError
from ..resources.owned import MANAGED_BY
from .election import RENEW_INTERVAL_S, RETRY_INTERVAL_S, Election

logger = logging.getLogger(__name__)

LEASES = "coordination.k8s.io/v1"
REQUEST_TIMEOUT_S = 3.0


class LeaseName(NamedTuple):
    """Names a Lease, and with it the release that contends for it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def own_identity() -> str:
    """Unique among processes that may run at the same time.

    A container that restarts in its pod keeps its identity, so it need not wait for its own Lease.
    """
    return f"{socket.gethostname()}_{os.getpid()}"


def end_process() -> None:
    """End at once: no work in progress may continue."""
    logging.shutdown()
    os._exit(1)


def boot_time() -> float:
    """Seconds since the machine started, including the time it was suspended, when others may take the Lease.

    Linux's monotonic clock leaves that time out; systems without the boot-time clock (macOS) use it anyway.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Leadership:
    """The Lease ``name``; ``start`` contends for it, ``acquired`` is set once this process has it."""

    def __init__(
        self,
        kube: Kube,
        name: LeaseName,
        identity: str,
        lost: Callable[[], None] = end_process,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.name = name
        self.acquired = threading.Event()
        self._kube = kube.limited(REQUEST_TIMEOUT_S)
        self._election = Election(identity)
        self._lost = lost
        self._clock = clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._contend, name="lease", daemon=True)
        self._said = ""

    def start(self) -> None:
        self._thread.start()

    def acts(self) -> bool:
        """Whether this process may write now."""
        return self.acquired.is_set() and self._clock() < self._election.valid_until

    def check(self) -> None:
        """Raises KubeError if this process may not write."""
        if not self.acts():
            raise KubeError(0, "NotLeading", f"this operator does not hold the Lease {self.name}")

    def release(self) -> None:
        """Release the Lease, after the last write of this process."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.acts():
            return
        try:
            live = self._kube.get(LEASES, "Lease", *self.name)
            if live is not None and live["spec"].get("holderIdentity") == self._election.identity:
                self._kube.merge(live, {"spec": self._election.release(datetime.now(UTC))})
                logger.info("released the Lease %s", self.name)
        except KubeError as error:
            logger.warning("cannot release the Lease %s, it will expire: %s", self.name, error)

    def _contend(self) -> None:
        try:
            while not self._ending.is_set():
                begun = self._clock()
                succeeded = self._round()
                if self._election.lost(self._clock()):
                    break
                # the duration of a renewal counts towards the interval
                again = begun + RENEW_INTERVAL_S - self._clock() if succeeded else RETRY_INTERVAL_S
                self._ending.wait(max(0.0, again))
        except Exception:  # a bug of ours: the Lease would not be renewed any more
            logger.exception("the Lease %s is no longer renewed", self.name)
        if not self._ending.is_set():
            holder = self._election.holder
            why = (
                "not renewed in time"
                if holder == self._election.identity
                else f"held by {holder or 'nobody'}"
            )
            logger.error("lost the Lease %s (%s): exiting", self.name, why)
            self._lost()

    def _round(self) -> bool:
        """Read the Lease, and write it if we may; returns whether it was written."""
        election, begun = self._election, self._clock()
        try:
            live = self._kube.get(LEASES, "Lease", *self.name)
            election.see(live, self._clock())
            if not election.may_write(self._clock()):
                self._say(f"standing by: {election.holder} holds the Lease {self.name}")
                return False
            spec = election.renewal(datetime.now(UTC))
            if live is None:
                metadata = {
                    "namespace": self.name.namespace,
                    "name": self.name.name,
                    "labels": dict(MANAGED_BY),
                }
                manifest = {"apiVersion": LEASES, "kind": "Lease", "metadata": metadata, "spec": spec}
                live = self._kube.create(manifest, manager=election.identity)
            else:
                live = self._kube.merge(live, {"spec": spec})
        except KubeError as error:
            if error.status == 409:  # another one was faster
                return False
            self._say(f"cannot renew the Lease {self.name}: {error}", logging.WARNING)
            return False
        election.see(live, begun)
        election.written(begun)
        if not self.acquired.is_set():
            logger.info("holds the Lease %s as %s", self.name, election.identity)
            self.acquired.set()
        self._said = ""
        return True

    def _say(self, words: str, level: int = logging.INFO) -> None:
        if words != self._said:
            logger.log(level, "%s", words)
            self._said = words
