"""Administration of a cluster, over the asynchronous client.

records     requests and results as plain records, without I/O
cluster     brokers, topics, configurations, reassignments, log directories
groups      consumer groups and their committed offsets
offsets     offsets of partitions by time or by leader epoch
access      SCRAM credentials, access rules and quotas as plain records, without I/O
security    SCRAM credentials, access rules and quotas
client      `AdminClient`, all of them in one
"""
