"""The mirror worker `millstream-mirror`: copies topics of any number of source clusters into a target, exactly once.

How copies are exactly once without transactions, even if workers are killed, paused and replaced:

Each partition of a source topic is a *lane* with its own producer id in the target. Batches go out in the order
of the source, their sequence numbers counting the records sent: a sequence number always stands for the same record.
The *progress* of a lane says which source offset belongs to which sequence number:

    (source offset, producer id, epoch, sequence, target offset, …)

and is committed to the target, as a consumer group's offset with the rest in its metadata, some time after what it
says has been acknowledged. A worker that takes a lane over reads its progress and continues from there, with the same
producer id and the same numbers. What was already sent then is refused by the target, because its sequence numbers
are not the next ones: as a repetition if it is among the last five batches, else as out of order. In the latter case
the worker reads the headers of the batches in the target, behind the target offset of its progress, finds the last
sequence number that arrived, and continues after it. So it does not matter how much was sent since the last commit,
nor whether another worker, paused and resumed, still sends the same: the target accepts each number once.

Progress with a new producer id or epoch, or one that skips source offsets (retention overtook us), is committed
before anything is sent with it. Commits are those of a group member, so a worker that lost its lanes cannot
commit: one group for each source, ``millstream-mirror.NAME.SOURCE``, whose members share the source's partitions.

Not covered are a source topic with cleanup.policy=compact that is compacted between a crash and the restart, so
that numbers no longer match offsets, and a target that lost acknowledged records. Both are noticed, logged
and counted; the lane then continues from its progress under a new epoch, which may repeat records, but loses none.

With mode Identity (copies.py) none of this is needed: batches keep their offsets, and the target takes them at the end
of its log only (`protocol.mirror_append`). The target's log is the progress.

    main.py     command line; config.py what it reads    flow.py      moves records, with many requests on the way
    worker.py   all sources side by side; HTTP           lane.py      numbers sent and acknowledged (no I/O)
    source.py   one source: topics, lanes, progress      lanes.py     opens lanes, finds where they stand after failures
    member.py   group membership                         rewrite.py   batches fetched → batches to produce (no I/O)
    topics.py   topics in the target                     progress.py  what is committed; stats.py what is shown
    loops.py    circles of mirrors                       rivals.py    other mirrors of the same topics
    others.py   the progress of other mirrors            leaving.py   topics that are not selected any more
    groups.py   positions of consumer groups, translated by offsets.py (no I/O) and lookup.py
    peers.py    notices when another worker's process has ended
    replicas.py topics of mode Identity; standing.py finds where their lanes stand, and compares the logs
    copies.py   lanes that are forwarded as they are; promoted.py knows which topics are not mirrored any more
    fetching.py fetch sessions (no I/O)
    rejoin.py   makes existing topics replicas: common_offset.py (no I/O) and cutting.py for each partition,
                set_aside.py for records that only the target has
    reading.py  reads logs; committed.py reads and commits offsets of groups
    throttle.py limits in bytes a second; window.py bytes on the way over slow links (no I/O)
    fields.py   fields of config.py and credentials.py
"""
