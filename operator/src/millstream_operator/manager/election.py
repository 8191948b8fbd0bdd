"""Which of several operators acts: the rules of a Lease (coordination.k8s.io/v1), pure.

The rules are client-go's. The holder renews its Lease. A candidate waits until it has seen no renewal for the Lease's
duration, by its own clock, because the clocks of two nodes may differ. The holder stops acting before that: when it has
not renewed for ``RENEW_DEADLINE_S``, counted from the start of its last successful renewal. A holder that shuts down
cleanly releases the Lease, so the next one need not wait.

Every write names the resourceVersion on which it is based, so only one of two simultaneous candidates gets the Lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

DURATION_S = 15
RENEW_INTERVAL_S = 3.0  # from start to start
RENEW_DEADLINE_S = 10.0
RETRY_INTERVAL_S = 1.0

Spec = dict[str, Any]


@dataclass(slots=True)
class Election:
    """One candidate. Times are seconds of a monotonic clock."""

    identity: str
    valid_until: float = 0.0
    """When the candidate must stop acting, by its own clock."""
    _seen: object = None
    _seen_at: float = 0.0
    _spec: Mapping[str, Any] = field(default_factory=dict)

    def see(self, lease: Mapping[str, Any] | None, now: float) -> None:
        """The Lease as read now; None if it does not exist."""
        spec = (lease or {}).get("spec") or {}
        version = lease["metadata"].get("resourceVersion") if lease is not None else None
        if self._seen != version:
            self._seen, self._seen_at = version, now
        self._spec = spec

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was last read; empty for none."""
        return self._spec.get("holderIdentity") or ""

    def may_write(self, now: float) -> bool:
        """Whether this candidate may write the Lease: it holds it, nobody does, or the Lease has expired."""
        duration = self._spec.get("leaseDurationSeconds") or DURATION_S
        return self.holder in ("", self.identity) or now >= self._seen_at + duration

    def renewal(self, wall: datetime) -> Spec:
        """The spec that takes or keeps the Lease."""
        mine = self.holder == self.identity
        taken = self._spec.get("acquireTime") if mine else None
        changes = int(self._spec.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": taken or micro_time(wall),
            "renewTime": micro_time(wall),
            "leaseTransitions": changes if mine or not self._spec else changes + 1,
        }

    def written(self, begun: float) -> None:
        """A renewal that began at ``begun`` succeeded."""
        self.valid_until = begun + RENEW_DEADLINE_S

    def lost(self, now: float) -> bool:
        """Whether a former holder must stop acting: somebody else holds the Lease, or renewals failed for too long."""
        return self.valid_until > 0.0 and (now >= self.valid_until or self.holder != self.identity)

    def release(self, wall: datetime) -> Spec:
        """The spec that releases the Lease."""
        return {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time(wall)}


def micro_time(moment: datetime) -> str:
    """A time as Kubernetes writes its MicroTime: UTC, microseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
