"""A step of a rolling restart, of brokers or ZooKeeper servers; as pods on Kubernetes, as processes on a laptop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RollingPod:
    """A pod of a StatefulSet.

    ``number``: of the broker or ZooKeeper server. ``reasons``: why it must restart; empty if it is up to date.
    ``running``: whether its process may be alive. ``uid``: identifies this pod, not its successors.
    """

    number: int
    name: str
    ready: bool
    reasons: tuple[str, ...] = ()
    running: bool = True
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Roll:
    """The next action: restart a pod, or wait for ``blocked``, or neither when all is done.

    ``remaining`` is the number of pods yet to be restarted. ``is_usual``: every rolling restart waits like this.
    ``is_end``: all pods are restarted, and the roll waits until they are ready.
    """

    restart: RollingPod | None = None
    blocked: str = ""
    is_usual: bool = False
    remaining: int = 0
    is_end: bool = False

    @property
    def words(self) -> str:
        """The current action or wait; "" when all is done."""
        if self.restart is None:
            return self.blocked
        return f"restarting {self.restart.name} ({', '.join(self.restart.reasons)}); {self.remaining} to go"
