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
)
IN_S3 = (*BY_DRIVER, Kind.S3_AWAY, Kind.STALL_S3)
BY_OPERATOR = (
    Kind.KILL_OPERATOR,
    Kind.STALL_OPERATOR,
    Kind.KILL_DRIVER,
    Kind.STALL_DRIVER,
    Kind.KILL_BROKER,
    Kind.STALL_BROKER,
)
