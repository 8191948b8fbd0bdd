"""The mirror worker `millstream-mirror`: copies topics of any number of source clusters into a target, exactly once.

How copies are exactly once without transactions, even if workers are killed, paused and replaced:

Each partition of a source topic is a *partition task* with its own producer id in the target. Batches go out in the
order of the source, and their sequence numbers count the records sent: a sequence number always stands for the same
record.
The *progress* of a task says which source offset belongs to which sequence number:

    (source offset, producer id, epoch, sequence, target offset, …)

The worker commits progress to the target some time after the records before it were acknowledged: as a consumer
group's offset, with the other fields in its metadata. A worker that takes over a task reads its progress and continues
from there, with the same producer id and the same numbers. The target refuses batches that were already sent, because
their sequence numbers are not the next ones: as duplicates if they are among the last five batches, else as out of
order. In the latter case the worker reads the headers of the target's batches from the progress's target offset on,
finds the last sequence number that arrived, and continues after it. So any number of records may have been sent since
the last commit, and another worker, paused and resumed, may still send the same records: the target accepts each
number once.

Progress with a new producer id or epoch, or one that skips source offsets (retention overtook the mirror), is committed
before anything is sent with it. Commits are those of a group member, so a worker that lost its tasks cannot
commit: one group for each source, ``millstream-mirror.NAME.SOURCE``, whose members share the source's partitions. If
two MirrorMakers of one name meet in it, the older one owns it (membership/ownership.py).

A source topic with cleanup.policy=compact may lose records between a crash and the restart, so that numbers do not tell
what was sent. Before a task of such a topic sends again, it reads what it has in the target, and compares records
with the source's, by their contents (records/aligning.py).

A source may lose records that were mirrored, and give their offsets to others. A task waits if its source does not have
the last mirrored batch any more (aggregate/history.py). If a worker died before it committed, the same sequence number
may stand for another record then, so the task compares the target's last record before it passes its number.

Not covered are a target that lost acknowledged records, and one whose copy is compacted in that time, too, so that it
lacks records that were sent. Both are noticed (aggregate/target_losses.py); the task may then repeat records.

Mode Identity (identity/flow.py) needs none of this: batches keep their offsets, and the target accepts them only at the
end of its log (`protocol.mirror_append`). The target's log is the progress.

The folders, from the top; each uses only those below it:

    main.py worker.py source.py   the command; all sources side by side, and HTTP; one source
    group_sync/    positions of consumer groups, translated to the target
    identity/      mode Identity: the target's topics as replicas, their positions, promotions, resync
    selection/     topics that must not be mirrored: loops, other mirrors' topics, topics no longer selected
    aggregate/     mode Aggregate: numbered batches, positions after failures, what source and target have lost
    partitions/    one partition: assignment, waiting, sending; what is shown of it; what differs by mode
    membership/    which worker has which partition; whose group it is; workers whose process has ended
    records/       batches to produce, maps of offsets, fetch sessions, limits; hardly any I/O
    kafka/         clients; logs, topics and groups of a cluster; what is committed as progress
    config/        mirror.json
    runtime/       long work in slices, and waking tasks that wait
"""
