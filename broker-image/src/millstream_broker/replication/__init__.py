"""Replication of partitions: a leader that tracks its followers, and followers that fetch from it.

isr               the leader's view of its followers, and the high watermark: a state machine without input or output
divergence        where two logs diverge, by their leader epochs: rules without input or output
alter_partition   writes the ISRs that `isr` proposes
replicas          the replicas on this broker, and its view of the cluster
partition         one led partition; replica: what consumers may read, led or followed
fetch_sessions    sessions and their owners (KIP-227); fetch_session: one of them
follower          one followed partition
fetcher           fetches all followed partitions of one leader
throttle          limits the rate at which reassigned replicas catch up
selector          which replica a consumer should read from (KIP-392)
manager           makes this broker lead and follow according to coordination
"""
