"""The kinds of faults that strike a load."""

from __future__ import annotations

from ..draws import Lasting


class Kind(Lasting):
    KILL_DRIVER = ("kill driver", 0.0, 0.0)
    STALL_DRIVER = ("stall driver", 0.5, 4.0)
    KILL_EXECUTOR = ("kill executor", 0.0, 0.0)
    STALL_EXECUTOR = ("stall executor", 0.5, 4.0)
    KILL_BROKER = ("kill broker", 0.0, 4.0)
    STALL_BROKER = ("stall broker", 0.5, 4.0)
    SECOND_DRIVER = ("second driver", 0.0, 0.0)
    """An operator restored from an old copy, or one cut off from a node, may start a second driver."""
    LEFT_BEHIND = ("left-behind driver", 0.0, 0.0)
    """A driver stalls, the next run of an edited load commits, and the driver goes on."""
    RESTORED_STATUS = ("restored status", 0.0, 0.0)
    """After the run, a run begins by the status before it."""
    RESTORED_TABLE = ("restored table", 0.0, 0.0)
    """After the run, its table is as it was before, and the next run begins."""
    RESTORED_DATA = ("restored data", 0.0, 0.0)
    """After the run, the data folder is as it was before, and other records come to the offsets of the run's."""
    S3_AWAY = ("S3 away", 0.5, 4.0)
    STALL_S3 = ("stall S3", 0.5, 4.0)
    KILL_OPERATOR = ("kill operator", 0.0, 0.0)
    STALL_OPERATOR = ("stall operator", 0.5, 4.0)


BY_DRIVER = (
    Kind.KILL_DRIVER,
    Kind.STALL_DRIVER,
    Kind.KILL_EXECUTOR,
    Kind.STALL_EXECUTOR,
    Kind.KILL_BROKER,
    Kind.STALL_BROKER,
    Kind.SECOND_DRIVER,
    Kind.LEFT_BEHIND,
    Kind.RESTORED_STATUS,
)
IN_FOLDER = (*BY_DRIVER, Kind.RESTORED_TABLE)
IN_S3 = (*BY_DRIVER, Kind.S3_AWAY, Kind.STALL_S3)
BY_OPERATOR = (
    Kind.KILL_OPERATOR,
    Kind.STALL_OPERATOR,
    Kind.KILL_DRIVER,
    Kind.STALL_DRIVER,
    Kind.KILL_BROKER,
    Kind.STALL_BROKER,
    Kind.LEFT_BEHIND,
    Kind.RESTORED_STATUS,
    Kind.RESTORED_TABLE,
    Kind.RESTORED_DATA,
)
RESTORED = (Kind.RESTORED_STATUS, Kind.RESTORED_TABLE, Kind.RESTORED_DATA)
"""These strike after the run."""
