"""The status of a scheduled load whose schedule does not run, as its process was killed or did not start; pure."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from ..models import BatchLoad, BatchLoadStatus
from ..models.conditions import ConditionType, Reason, set_condition
from ..models.problem import Problem
from ..reconcile.load.conditions import tell

WORDS = "no process runs the schedule: run `millstream local up` again"


def late_status(load: BatchLoad, now: datetime) -> BatchLoadStatus:
    """Not Ready, and Late: no run will begin."""
    status = tell(load, load.status, now, Problem(Reason.RUN_LATE, WORDS))
    conditions = set_condition(
        status.conditions or (),
        ConditionType.LATE,
        True,
        Reason.RUN_LATE,
        WORDS,
        generation=load.metadata.generation,
        now=now,
    )
    return replace(status, conditions=conditions)
