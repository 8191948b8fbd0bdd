"""Replication of partitions: a leader that knows how far its followers are, and followers that fetch from it.

isr         the leader's view of its followers, and the high watermark: a state machine without input or output
divergence  where two logs part, by their leader epochs
"""
