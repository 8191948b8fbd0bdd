"""The kinds of faults that strike a mirror."""

from __future__ import annotations

from ..draws import Lasting


class Kind(Lasting):
    KILL_WORKER = ("kill worker", 0.0, 4.0)
    KILL_WORKERS = ("kill all workers", 0.0, 4.0)
    STALL_WORKER = ("stall worker", 0.5, 12.0)
    """Often longer than its session, so that it wakes after another has taken over."""
    KILL_SOURCE = ("kill source leader", 0.0, 5.0)
    KILL_TARGET = ("kill target leader", 0.0, 5.0)
    STALL_SOURCE = ("stall source leader", 0.5, 5.0)
    STALL_TARGET = ("stall target leader", 0.5, 5.0)
    KILL_SOURCES = ("kill source brokers", 0.0, 4.0)
    KILL_TARGETS = ("kill target brokers", 0.0, 4.0)
    CUT = ("cut link", 0.5, 15.0)
    CUT_SOURCE = ("cut link to source", 0.5, 15.0)
    CUT_TARGET = ("cut link to target", 0.5, 15.0)
    CUT_LONG = ("cut link for a minute", 60.0, 60.0)
    SLOW = ("slow link", 2.0, 10.0)
    FLAP = ("flapping link", 3.0, 10.0)
    PARTITIONS = ("add partition", 0.0, 0.0)
    CONFIGURE = ("change configuration", 0.0, 0.0)
    ANEW = ("recreate topic", 0.0, 2.0)
    DELETE = ("delete records", 0.0, 0.0)
    """Records that are mirrored."""
    COMPACT = ("compact records before they are mirrored", 0.0, 3.0)
    RETAIN = ("retention before records are mirrored", 0.0, 0.0)
    PROMOTE = ("promote a topic", 0.0, 3.0)
    MOVE = ("move a group", 0.0, 4.0)
    GAP = ("delete records before they are mirrored", 0.0, 0.0)
