"""The mirror worker `millstream-mirror`: copies topics of any number of source clusters into a target, exactly once.

How copies are exactly once without transactions, even if workers are killed, paused and replaced:

Each partition of a source topic is a *lane* with its own producer id in the target. Batches go out in the order
of the source, and their sequence numbers count the records sent: a sequence number always stands for the same record.
The *progress* of a lane says which source offset belongs to which sequence number:

    (source offset, producer id, epoch, sequence, target offset, …)

The worker commits progress to the target some time after the records before it were acknowledged: as a consumer
group's offset, with the other fields in its metadata. A worker that takes over a lane reads its progress and continues
from there, with the same producer id and the same numbers. The target refuses batches that were already sent, because
their sequence numbers are not the next ones: as duplicates if they are among the last five batches, else as out of
order. In the latter case the worker reads the headers of the target's batches from the progress's target offset on,
finds the last sequence number that arrived, and continues after it. So any number of records may have been sent since
the last commit, and another worker, paused and resumed, may still send the same records: the target accepts each
number once.

Progress with a new producer id or epoch, or one that skips source offsets (retention overtook the mirror), is committed
before anything is sent with it. Commits are those of a group member, so a worker that lost its lanes cannot
commit: one group for each source, ``millstream-mirror.NAME.SOURCE``, whose members share the source's partitions. If
two MirrorMakers of one name meet in it, the older one owns it (owner.py).

A source topic with cleanup.policy=compact may lose records between a crash and the restart, so that numbers do not tell
what was sent. Before a lane of such a topic sends again, it looks at what it has in the target, and compares records
with the source's, by their contents (aligning.py).

A source may lose records that were mirrored, and give their offsets to others. A lane waits if its source does not have
the last mirrored batch any more (history.py). If a worker died before it committed, the same sequence number may stand
for another record then, so the lane compares the target's last record before it passes its number.

Not covered are a target that lost acknowledged records, and one whose copy is compacted in that time, too, so that it
lacks records that were sent. Both are noticed (target_losses.py); the lane may then repeat records.

Mode Identity (copies.py) needs none of this: batches keep their offsets, and the target accepts them only at the end
of its log (`protocol.mirror_append`). The target's log is the progress.

    main.py     command line; config.py reads its file   flow.py      moves records, with many requests in flight
    worker.py   all sources side by side; HTTP           lane.py      numbers sent and acknowledged (no I/O)
    source.py   one source: topics, lanes, progress      lanes.py     opens lanes, finds their positions after failures
    member.py   group membership                         rewrite.py   batches fetched → batches to produce (no I/O)
    topics.py   topics in the target                     progress.py  what is committed; stats.py what is shown
    loops.py    loops of mirrors                         rivals.py    other mirrors of the same topics
    others.py   the progress of other mirrors            leaving.py   topics that are no longer selected
    owner.py    whose group it is, if two share a name
    opening.py  opens lanes by their leaders             waiting.py   partitions that wait, and why (no I/O)
    groups.py   positions of consumer groups, translated by offsets.py (no I/O) and lookup.py
    peers.py    notices when another worker's process has ended
    numbering.py requests of numbered batches (mode Aggregate), with what their responses mean for the lanes
    replicas.py topics of mode Identity; standing.py finds the positions of their lanes, and compares the logs
    copies.py   lanes that forward batches unchanged; promoted.py knows which topics are not mirrored any more
    fetching.py fetch sessions (no I/O)
    rejoin.py   makes existing topics replicas: common_offset.py (no I/O) and cutting.py for each partition,
                set_aside.py for records that only the target has
    history.py  whether the source still has what was mirrored; together.py asks for many lanes at once
    target_losses.py whether the target still has what idle lanes have sent
    sent.py     what a lane has sent, compared with the source by aligning.py (no I/O)
    producer_ids.py new producer ids from the target
    reading.py  reads logs; committed.py reads and commits offsets of groups
    throttle.py limits in bytes a second; window.py bytes in flight over slow links (no I/O)
    replication.py where new topics of the target get their replicas
    bell.py     wakes the tasks that wait for responses
    turns.py    long work in steps, so that the loop serves others, too
    fields.py   fields of config.py and credentials.py
"""
