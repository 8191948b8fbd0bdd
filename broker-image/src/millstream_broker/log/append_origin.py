"""Where the batches of an append come from; Kafka's enum of the same name, and some origins more."""

from __future__ import annotations

import enum


class AppendOrigin(enum.Enum):
    """Decides what a leader or a follower checks and changes before it writes the batches.

    | origin | offsets and leader epoch | read-only replica of a mirror | records that must be read | sequence numbers |
    |---|---|---|---|---|
    | CLIENT | assigned by this leader | refused | in the thread of the append queue | checked |
    | TRANSACTION | assigned by this leader | refused | in the thread of the append queue | checked |
    | COORDINATOR | assigned by this leader | refused | on the loop, because this broker built them | none |
    | COORDINATOR_END | assigned by this leader | refused | as those of COORDINATOR | none |
    | MARKER, MARKER_OF_NEXT_EPOCH | assigned by this leader | refused | as those of COORDINATOR | none |
    | REPLICATION | the leader's | accepted | not read | those of the leader's log, believed |
    | MIRROR | the source's | required | not read | those of the source's log, believed |
    """

    CLIENT = "client"
    """A producer's request; no transactional batches."""
    TRANSACTION = "transaction"
    """A request of a producer with a transactional id, in a transaction that its coordinator has confirmed."""
    COORDINATOR = "coordinator"
    """A coordinator on this broker writes to its internal topic."""
    COORDINATOR_END = "coordinator's end"
    """The same, for the end of what has begun, which no limit of sizes refuses: it would never end."""
    MARKER = "marker"
    """A transaction coordinator ends a transaction: with the producer's epoch, or a higher one if it fences it."""
    MARKER_OF_NEXT_EPOCH = "marker of next epoch"
    """The same with transaction.version 2, where each end of a transaction raises the producer's epoch (KIP-890)."""
    REPLICATION = "replication"
    """A follower copies its leader's log."""
    MIRROR = "mirror"
    """A mirror worker copies the topic of another cluster (MirrorAppend)."""


CLIENT, COORDINATOR, MIRROR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.MIRROR
"""For the hot path: Python 3.11 takes 200 ns to find a member of an enum by its class."""
MARKERS = frozenset([AppendOrigin.MARKER, AppendOrigin.MARKER_OF_NEXT_EPOCH])
ENDS = MARKERS | {AppendOrigin.COORDINATOR_END}
"""Of any size: what has begun must end."""
BY_THIS_BROKER = ENDS | {COORDINATOR}
"""Origins of batches that this broker has built."""
