"""Which replica a consumer should read from (KIP-392): Kafka's RackAwareReplicaSelector."""

from __future__ import annotations

from collections.abc import Mapping

from ..coordination import BrokerRecord
from .isr import Isr

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def select(isr: Isr, brokers: Mapping[int, BrokerRecord], rack: str, offset: int) -> int | None:
    """The in-sync replica in the consumer's rack that has the offset and the most records; None: the leader."""
    leader = brokers.get(isr.broker_id)
    if leader is None or leader.rack == rack:
        return None
    found = [
        (follower.log_end, follower.caught_up_ms, replica)
        for replica, follower in isr.followers.items()
        if replica in isr.record.isr
        and replica in brokers
        and brokers[replica].rack == rack
        and follower.log_start <= offset <= follower.log_end
    ]
    return max(found)[2] if found else None
