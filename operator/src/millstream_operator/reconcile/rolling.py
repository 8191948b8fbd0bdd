"""Which broker to restart next, if any: the plan of a rolling restart, pure.

The brokers' StatefulSet is updated OnDelete: Kubernetes restarts nothing by itself, and the operator deletes one pod at
a time, only

- while every other broker is ready, so that there is never a second one away;
- while each partition that has a replica on the broker keeps its minimum ISR without it. A minimum above what the
  partition's replicas can give without one is clamped to that, with a warning: else a roll would never end;
- the controller last, because each of its restarts costs an election.

There is no window: a roll that is blocked says by what, and goes on as soon as it can. Of brokers that are down, one
that runs an old revision is restarted at once: it may be down because of what is about to be mended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """A broker's pod as it is. ``reasons``: why it has to restart; none when it is as it should be."""

    broker: int
    name: str
    ready: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """Where a partition's replicas are, and what its topic asks for."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def needed(self) -> int:
        """In-sync replicas it must keep while one broker restarts. One replica only: nothing can be kept."""
        return max(0, min(self.min_isr, len(self.replicas) - 1))


@dataclass(frozen=True, slots=True)
class Roll:
    """What to do now: restart a pod, or wait for what ``blocked`` says, or neither when all is done."""

    restart: BrokerPod | None = None
    blocked: str = ""
    remaining: int = 0


def plan_roll(
    pods: Sequence[BrokerPod],
    desired: int,
    partitions: Iterable[PartitionReplicas] | None,
    controller: int | None,
) -> Roll:
    """The next step. ``partitions`` None: the brokers could not be asked."""
    stale = [pod for pod in pods if pod.reasons]
    if not stale:
        return Roll()
    down = [pod for pod in pods if not pod.ready]
    if mend := [pod for pod in down if pod.reasons]:
        return Roll(restart=min(mend, key=lambda pod: pod.broker), remaining=len(stale))
    if down or len(pods) < desired:
        names = ", ".join(pod.name for pod in down) or f"{len(pods)} of {desired} pods are there"
        return Roll(blocked=f"waiting for brokers to be ready: {names}", remaining=len(stale))
    if partitions is None:
        return Roll(blocked="the brokers do not answer", remaining=len(stale))
    in_use = list(partitions)
    waits = ""
    for pod in sorted(stale, key=lambda pod: (pod.broker == controller, pod.broker)):
        if not (held := blocking(in_use, pod.broker)):
            return Roll(restart=pod, remaining=len(stale))
        waits = waits or _explain(pod, held)
    return Roll(blocked=waits, remaining=len(stale))


def blocking(partitions: Iterable[PartitionReplicas], broker: int) -> list[PartitionReplicas]:
    """The partitions that would fall below their minimum ISR without this broker."""
    return [
        one
        for one in partitions
        if broker in one.replicas and sum(member != broker for member in one.isr) < one.needed
    ]


def unreachable_minimums(partitions: Iterable[PartitionReplicas]) -> list[str]:
    """Topics whose min.insync.replicas can only be held with every replica up: any restart stops acks=all."""
    return sorted(
        {one.topic for one in partitions if one.min_isr > len(one.replicas) - 1 and len(one.replicas) > 1}
    )


def _explain(pod: BrokerPod, held: Sequence[PartitionReplicas]) -> str:
    first = held[0]
    others = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return (
        f"{pod.name} waits: {first} has {len(first.isr)} of {len(first.replicas)} replicas in sync and must keep "
        f"{first.needed} without it{others}"
    )


def restart_reasons(
    *,
    revision: bool = False,
    annotations: Mapping[str, str] | None = None,
    wanted: Mapping[str, str] | None = None,
    requested: Collection[str] = (),
) -> tuple[str, ...]:
    """Why a pod has to restart, in words for an Event: annotations of the template that changed name themselves."""
    reasons = []
    before, after = annotations or {}, wanted or {}
    for key, reason in REASONS.items():
        if key in after and before.get(key) != after[key]:
            reasons.append(reason)
    if revision and not reasons:
        reasons.append("PodTemplateChanged")
    return (*reasons, *requested)


REASONS = {
    "millstream.dev/config-hash": "ConfigurationChanged",
    "millstream.dev/image": "ImageChanged",
    "millstream.dev/listeners-hash": "ListenersChanged",
    "millstream.dev/restarted-at": "RestartRequested",
}
