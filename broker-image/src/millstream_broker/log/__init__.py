"""The storage engine: Kafka's record batches, segments, indexes, checkpoints and recovery, in Kafka's disk format.

    validator            what a batch has to be like to be appended (`millstream_kafka.batch` reads it)
    files, index         open files shared by all logs; sparse indexes
    segment              one segment: a .log file with its .index and .timeindex
    producer_state, epochs   what idempotence and truncation by epoch need to know of the past
    retention            when a segment ends, and when it goes
    snapshot             a log as it was at one moment, for readers in other threads
    state, log           a partition's log: append, read, roll, retention
    recovery             bringing a log's folder into order before it is opened
    compaction           cleanup.policy=compact
    checkpoints, manager the log directories of a broker

Nothing here knows asyncio. Who may call what from which thread stands at the top of ``log`` and ``manager``.
"""
