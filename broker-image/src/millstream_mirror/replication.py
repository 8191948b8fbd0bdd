"""How many replicas a new topic of the target gets: as many as wanted, as far as the target has brokers.

Nobody adds replicas later, so a broker that is down must not count as one that does not exist. The target's brokers are
those that are up and those that hold a replica of any topic. While one of them is missing, a topic that needs it waits.
In a target that starts, perhaps nothing tells of the others: so the number of brokers must have been the same for
``SETTLED_S`` before a topic gets fewer replicas than wanted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode

SETTLED_S = 20.0


class ReplicationFactors:
    """For one worker and target. Raises BrokerError, ApiError."""

    def __init__(self, target: ClusterClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._brokers, self._since = 0, 0.0
        """The number of brokers that were up, and since when."""

    async def of(self, wanted: Mapping[str, int]) -> tuple[dict[str, int], dict[str, str]]:
        """The replication factors of new topics; and of those that wait, the reason."""
        if max(wanted.values()) <= len(self._target.brokers):
            return dict(wanted), {}
        up, all_brokers = await brokers_of(self._target)
        now = self._clock()
        if len(up) != self._brokers:
            self._brokers, self._since = len(up), now
        granted, waiting = {}, {}
        for name, factor in wanted.items():
            if (needed := min(factor, len(all_brokers))) > len(up):
                waiting[name] = lacking(needed, up, all_brokers)
            elif needed < factor and now < self._since + SETTLED_S:
                waiting[name] = (
                    f"has {factor} replicas in the source, and {len(up)} brokers run in the target:"
                    f" waiting up to {SETTLED_S:g} s for more"
                )
            else:
                granted[name] = max(needed, 1)
        return granted, waiting


async def brokers_of(target: ClusterClient) -> tuple[set[int], set[int]]:
    """The target's brokers that are up, and all: also those that hold replicas. Raises BrokerError."""
    cluster = await target.metadata(None)
    up = {broker.node_id for broker in cluster.brokers}
    assigned = {
        broker
        for topic in cluster.topics
        for partition in topic.partitions
        for broker in partition.replica_nodes
    }
    return up, up | assigned


def lacking(needed: int, up: set[int], all_brokers: set[int]) -> str:
    missing = ", ".join(map(str, sorted(all_brokers - up)))
    return f"needs {needed} replicas, and {len(up)} brokers run in the target: start broker {missing}"


async def factor_at_once(target: ClusterClient, wanted: int) -> int:
    """The replication factor of a new topic. Raises BrokerError, and ApiError while a broker is missing."""
    up, all_brokers = await brokers_of(target)
    if (needed := min(wanted, len(all_brokers))) > len(up):
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, lacking(needed, up, all_brokers))
    return max(needed, 1)
