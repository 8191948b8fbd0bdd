"""Where two logs diverge, by their leader epochs (KIP-101, KIP-279; asked in a Fetch as in KIP-595).

A follower's Fetch names the epoch of the last record it has. Where the leader's log does not have that epoch, or has
it ending before the follower's end, the logs diverge, and the leader responds with its largest epoch up to that one,
and the end of that epoch. The follower truncates by :func:`truncation_offset` and asks again, until the logs agree:
each round removes at least one epoch or is the last one. Committed records are in both logs under the same epochs, so
they are never truncated.
"""

from __future__ import annotations

from typing import Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode

UNDEFINED = -1


class EpochEnds(Protocol):
    """Where the leader epochs of a log end (`log.epochs`)."""

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]: ...

    @property
    def latest(self) -> int: ...


def diverging_epoch(
    epochs: EpochEnds,
    log_end: int,
    fetch_offset: int,
    last_fetched_epoch: int,
    *,
    is_mirrored: bool = False,
) -> tuple[int, int] | None:
    """The leader's answer to a follower at `fetch_offset`: epoch and end offset where they part; None if nowhere.

    Raises ApiError OFFSET_OUT_OF_RANGE for an epoch that the leader cannot know: then nothing of the follower's log
    can be compared. Not in a mirror's replica (`is_mirrored`): its epochs are those of the source, so a leader may lack
    the follower's, and then all records of it. The follower drops them, as after any other divergence.
    """
    if last_fetched_epoch == UNDEFINED:
        return None
    epoch, end = epochs.end_offset(last_fetched_epoch, log_end)
    if UNDEFINED in (epoch, end):
        if is_mirrored and last_fetched_epoch > epochs.latest:
            return epochs.latest, log_end
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"leader epoch {last_fetched_epoch} of the last record is not known here",
        )
    return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None


def truncation_offset(epochs: EpochEnds, log_end: int, leader_epoch: int, leader_end: int) -> int:
    """Where a follower cuts its log, told that it parts after `leader_epoch`, which ends at `leader_end`."""
    if leader_epoch == UNDEFINED:
        return min(leader_end, log_end)
    epoch, end = epochs.end_offset(leader_epoch, log_end)
    if end == UNDEFINED:  # nothing is known about so early an epoch, or there are no epochs at all
        return min(leader_end, log_end)
    if (
        epoch != leader_epoch
    ):  # the leader's epoch is not here: what is behind the one before it is not the leader's
        return min(end, log_end)
    return min(end, leader_end, log_end)
