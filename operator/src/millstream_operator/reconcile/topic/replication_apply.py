"""Topic: carries out the changes of replication factors that replication.py plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...kafka.admin import KafkaAdmin
from ...kafka.records import TopicState
from ...models import Cluster, Topic
from ...models.conditions import Reason
from ...models.problem import Problem
from .replication import Replication, plan_replication, wanted_factors


def replicate(
    admin: KafkaAdmin, cluster: Cluster, topics: Sequence[Topic], observed: Mapping[str, TopicState]
) -> Replication:
    """Begin reassignments for Topics that do not have their replication factor. Raises AdminError."""
    factors = wanted_factors(topics, observed)
    if not factors:
        return Replication()
    alive = admin.brokers().racks
    # without brokers that are about to leave
    brokers = [broker for broker in alive if broker < cluster.spec.brokers.replicas] or list(alive)
    racks = {broker: rack for broker, rack in alive.items() if rack}
    reassigning = admin.reassigning()  # first: see placement.arrived
    plan = plan_replication(factors, admin.replicas(), reassigning, brokers, racks)
    if plan.moves:
        for (topic, partition), no in sorted(admin.reassign(plan.moves).items()):
            words = f"{topic}-{partition} cannot be reassigned: {no}"
            plan.problems.setdefault(topic, Problem(Reason.REFUSED, words))
    return plan
