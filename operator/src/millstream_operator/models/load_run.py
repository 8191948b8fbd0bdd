"""The state of a BatchLoad's run, as that which runs it shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .conditions import Reason
from .load import BatchLoadStatus


class RunState(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """The state of a run's runner.

    ``warning`` is about the table of a run that succeeded. ``message`` says what it waits for, ``reason`` why it failed
    or, while it runs, that it is held up, if known;
    ``log`` has the last lines of a failed driver's log.
    """

    state: RunState
    rows: int | None = None
    corrupt_records: int | None = None
    bytes: int | None = None
    warning: str = ""
    error: str = ""
    message: str = ""
    end_time: str | None = None
    reason: Reason | None = None
    log: tuple[str, ...] = ()


def in_flight(status: BatchLoadStatus) -> bool:
    """Whether the last run of a load has not ended."""
    run = status.last_run
    return run is not None and bool(run.name) and not RunState(run.state or RunState.PENDING).ended
