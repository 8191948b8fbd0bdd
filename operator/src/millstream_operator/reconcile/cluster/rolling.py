"""Which broker to restart next, if any: the plan of a rolling restart, pure.

The brokers' StatefulSet is updated OnDelete: Kubernetes restarts nothing by itself, and the operator deletes one pod at
a time, only

- while every other broker is ready, so no two brokers are down at once;
- while each partition that has a replica on the broker keeps its minimum ISR without it. A minimum that needs every
  replica is clamped to one less than their number, with a warning: otherwise a roll would never end;
- while the Cluster's own ZooKeeper is not being updated: a broker that stops without a quorum cannot hand over its
  leaderships, and no other leader is elected until there is a quorum;
- the controller last, because each of its restarts costs an election.

A blocked roll reports what blocks it, and continues as soon as it can. A broker that is not ready and runs an old
revision goes first: the update may repair it. A broker that has ended (its container does not run, or no broker of its
number is registered) is restarted unconditionally, and so is any broker while none is ready. A broker that may still
serve is restarted only if partitions keep their minimum ISR without it. A ready broker that is not registered has lost
ZooKeeper, and can lead or follow nothing until its restart: it goes before the others, whatever the ISRs are, but also
only while all others are ready.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from ...kafka.records import BrokersState, PartitionReplicas
from ...models.roll import Roll, RollingPod
from ...resources.cluster import ADDRESSES, CONFIG_HASH, LISTENERS_HASH, TEMPLATE_HASH, USER_HASH
from ...resources.owned import RELEASE, SPEC_HASH
from ...resources.zookeeper_login import ACCESS

NO_ANSWER = "the brokers do not answer"


def plan_roll(
    pods: Sequence[RollingPod],
    desired: int,
    partitions: Iterable[PartitionReplicas] | None,
    brokers: BrokersState | None,
    zookeeper: Roll | None = None,
) -> Roll:
    """The next step.

    ``partitions``, ``brokers``: None if the brokers do not respond. ``zookeeper``: the next step of ZooKeeper's
    servers, for which brokers wait.
    """
    zookeeper = zookeeper or Roll()
    stale = [pod for pod in pods if pod.reasons]
    if not stale:
        return Roll()
    down = [pod for pod in pods if not pod.ready]
    mend = sorted((pod for pod in down if pod.reasons), key=lambda pod: pod.number)
    for pod in mend:
        if len(down) == len(pods) or _ended(pod, brokers):
            return Roll(restart=pod, remaining=len(stale))
    if mend and partitions is not None:
        return _mend(mend, list(partitions), {pod.number for pod in down}, len(stale))
    if mend:
        return Roll(blocked=NO_ANSWER, remaining=len(stale))
    if (wait := wait_for_all(pods, desired)).words:
        return replace(wait, remaining=len(stale), is_end=False)
    if zookeeper.words and not zookeeper.is_end:
        is_usual = zookeeper.restart is not None or zookeeper.is_usual
        return Roll(blocked=zookeeper.words, is_usual=is_usual, remaining=len(stale))
    if partitions is None:
        return Roll(blocked=NO_ANSWER, remaining=len(stale))
    for pod in stale:
        if _ended(pod, brokers):
            return Roll(restart=pod, remaining=len(stale))
    in_use = list(partitions)
    controller = brokers.controller if brokers is not None else None
    waits = ""
    for pod in sorted(stale, key=lambda pod: (pod.number == controller, pod.number)):
        if not (held := blocking(in_use, pod.number)):
            return Roll(restart=pod, remaining=len(stale))
        waits = waits or _explain(pod, held)
    return Roll(blocked=waits, remaining=len(stale))


def wait_for_all(pods: Sequence[RollingPod], desired: int, what: str = "brokers") -> Roll:
    """The wait for pods that are not ready, if any, at the end of a roll."""
    down = [pod.name for pod in pods if not pod.ready]
    missing = len(down) + max(0, desired - len(pods))
    if not missing:
        return Roll()
    names = ", ".join(down) or f"{len(pods)} of {desired} pods are there"
    return Roll(blocked=f"waiting for {what} to be ready: {names}", is_usual=missing == 1, is_end=True)


def _ended(pod: RollingPod, brokers: BrokersState | None) -> bool:
    return not pod.running or (brokers is not None and pod.number not in brokers.racks)


def _mend(
    mend: Sequence[RollingPod], partitions: Sequence[PartitionReplicas], down: Set[int], stale: int
) -> Roll:
    """Restart a pod that is not ready but may still serve, if the ISRs can spare it.

    Replicas of other brokers that are down may be out of date, so they do not count.
    """

    def held(pod: RollingPod) -> list[PartitionReplicas]:
        in_sync = [partition for partition in partitions if pod.number in partition.isr]
        others = down - {pod.number}
        return blocking(
            (
                replace(one, isr=tuple(member for member in one.isr if member not in others))
                for one in in_sync
            ),
            pod.number,
        )

    for pod in mend:
        if not held(pod):
            return Roll(restart=pod, remaining=stale)
    return Roll(blocked=_explain(mend[0], held(mend[0])), remaining=stale)


def needed(partition: PartitionReplicas) -> int:
    """The in-sync replicas that a partition must keep while one broker restarts; none if it has only one replica."""
    return max(0, min(partition.min_isr, len(partition.replicas) - 1))


def blocking(partitions: Iterable[PartitionReplicas], broker: int) -> list[PartitionReplicas]:
    """The partitions that would fall below their minimum ISR without this broker."""
    return [
        partition
        for partition in partitions
        if broker in partition.replicas
        and sum(member != broker for member in partition.isr) < needed(partition)
    ]


def unreachable_minimums(partitions: Iterable[PartitionReplicas]) -> list[str]:
    """Topics whose min.insync.replicas can only be held with every replica up: any restart stops acks=all."""
    return sorted(
        {
            partition.topic
            for partition in partitions
            if partition.min_isr > len(partition.replicas) - 1 and len(partition.replicas) > 1
        }
    )


def _explain(pod: RollingPod, held: Sequence[PartitionReplicas]) -> str:
    first = held[0]
    others = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return (
        f"{pod.name} waits: {first} has {len(first.isr)} of {len(first.replicas)} replicas in sync and must keep "
        f"{needed(first)} without it{others}"
    )


UPGRADE = "Upgrade"
"""The reason for a restart that only a new release of the operator causes, or a step of the login to ZooKeeper."""
TEMPLATE_CHANGED = "PodTemplateChanged"
REASONS = {
    CONFIG_HASH: "ConfigurationChanged",
    LISTENERS_HASH: "ListenersChanged",
    TEMPLATE_HASH: TEMPLATE_CHANGED,
    "kubectl.kubernetes.io/restartedAt": "RestartRequested",  # kubectl rollout restart
}


def restart_reasons(
    broker: int, annotations: Mapping[str, str], wanted: Mapping[str, str]
) -> tuple[str, ...]:
    """Why a pod must restart, each reason one word for an Event: from its annotations and those of its template."""
    reasons = [reason for key, reason in REASONS.items() if annotations.get(key) != wanted.get(key)]
    if _address(broker, annotations) != _address(broker, wanted):
        reasons.append("AddressChanged")
    # listeners are ports of the pod too
    if len(reasons) > 1 and TEMPLATE_CHANGED in reasons:
        reasons.remove(TEMPLATE_CHANGED)
    if any(annotations.get(key) != wanted.get(key) for key in (RELEASE, ACCESS)):
        reasons = _of_release(reasons, annotations, wanted)
    return tuple(reasons)


def _of_release(
    reasons: Sequence[str], annotations: Mapping[str, str], wanted: Mapping[str, str]
) -> list[str]:
    """The reasons for a pod that another release made, or with another access to ZooKeeper: a difference that the user
    did not cause is an upgrade."""
    causes = {CONFIG_HASH: USER_HASH, LISTENERS_HASH: USER_HASH, TEMPLATE_HASH: SPEC_HASH}
    upgrades = {
        REASONS[key]
        for key, cause in causes.items()
        if annotations.get(cause) in (None, wanted.get(cause))  # earlier releases did not record it
    }
    others = [reason for reason in reasons if reason not in upgrades]
    return others or [UPGRADE][: len(reasons)]


def _address(broker: int, annotations: Mapping[str, str]) -> object:
    try:
        return json.loads(annotations.get(ADDRESSES, "{}")).get(str(broker))
    except (ValueError, AttributeError):
        return None
