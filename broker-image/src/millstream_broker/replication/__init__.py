"""Replication of partitions: a leader that knows how far its followers are, and followers that fetch from it.

isr         the leader's view of its followers, and the high watermark: a state machine without input or output
divergence  where two logs part, by their leader epochs: likewise
membership  writes the ISRs that `isr` proposes
follower    one partition that is followed
fetcher     fetches all that is followed from one leader
throttle    how fast replicas that are moved may catch up
manager     what this broker leads and follows, by what coordination says
"""
