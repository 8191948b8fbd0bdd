"""The storage engine: Kafka's record batches, segments, indexes, checkpoints and recovery, in Kafka's disk format.

    validator            which batches may be appended (`millstream_kafka.batch` reads them)
    errors               of the disk
    files, index         open files shared by all logs; sparse indexes
    segment              one segment: a .log file with its .index and .timeindex
    producer_state, epochs   the history that idempotence and truncation by epoch need
    transactions, transaction_index, verifications
                         open transactions and the last stable offset; aborted ones; which may begin
    retention            when a segment ends, and when it is deleted
    snapshot             a log as it was at one moment, for readers in other threads
    state, log           a partition's log: append, read, roll, retention
    recovery             repairs a log's folder before it is opened
    summaries            opens logs after a clean stop without reading their folders
    compaction           cleanup.policy=compact
    checkpoints, manager the log directories of a broker

Nothing here uses asyncio. ``log`` and ``manager`` document which thread may call what.
"""
