"""Replication of partitions: a leader that knows how far its followers are, and followers that fetch from it.

isr               the leader's view of its followers, and the high watermark: a state machine without input or output
divergence        where two logs part, by their leader epochs: rules without input or output
alter_partition   writes the ISRs that `isr` proposes
replicas          the replicas on this broker, and the cluster as it sees it
partition         one partition that is led; replica: what consumers may read, led or followed
fetch_sessions    who reads by which session (KIP-227); fetch_session: one of them
follower          one partition that is followed
fetcher           fetches all that is followed from one leader
throttle          how fast replicas that are moved may catch up
selector          which replica a consumer should read from (KIP-392)
manager           what this broker leads and follows, by what coordination says
"""
