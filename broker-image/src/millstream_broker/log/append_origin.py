"""Where the batches of an append come from; Kafka's enum of the same name, and one origin more."""

from __future__ import annotations

import enum


class AppendOrigin(enum.Enum):
    """Decides what a leader or a follower checks and changes before it writes the batches.

    | origin | offsets and leader epoch | read-only replica of a mirror | records that must be read | sequence numbers |
    |---|---|---|---|---|
    | CLIENT | assigned by this leader | refused | in the thread of the append queue | checked |
    | COORDINATOR | assigned by this leader | refused | on the loop, because this broker built them | checked |
    | REPLICATION | the leader's | accepted | not read | those of the leader's log, believed |
    | MIRROR | the source's | required | not read | those of the source's log, believed |
    """

    CLIENT = "client"
    """A producer's request."""
    COORDINATOR = "coordinator"
    """A coordinator on this broker writes to its internal topic."""
    REPLICATION = "replication"
    """A follower copies its leader's log."""
    MIRROR = "mirror"
    """A mirror worker copies the topic of another cluster (MirrorAppend)."""


CLIENT, COORDINATOR, MIRROR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.MIRROR
"""For the hot path: Python 3.11 takes 200 ns to find a member of an enum by its class."""
