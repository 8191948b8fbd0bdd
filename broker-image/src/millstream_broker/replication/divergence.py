"""Where two logs diverge, by their leader epochs (KIP-101, KIP-279; requested in a Fetch as in KIP-595).

A follower's Fetch names the epoch of its last record. If the leader's log does not have that epoch, or the epoch ends
there before the follower's end, the logs diverge, and the leader responds with its largest epoch up to that one, and
the end of that epoch. The follower truncates by :func:`truncation_offset` and fetches again, until the logs agree:
each round removes at least one epoch or is the last one. Committed records are in both logs under the same epochs, so
they are never truncated.
"""

from __future__ import annotations

from typing import Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode

UNDEFINED = -1


class EpochEnds(Protocol):
    """The ends of a log's leader epochs (`log.epochs`)."""

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
    """The leader's response to a follower at `fetch_offset`: epoch and end offset of the divergence; None without one.

    Raises ApiError OFFSET_OUT_OF_RANGE for an epoch that the leader cannot know: then nothing of the follower's log
    can be compared. Not in a mirror's replica (`is_mirrored`): its epochs are the source's, so a leader may lack
    the follower's, and with it all its records. The follower drops them, as after any other divergence.
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
    """Where a follower truncates its log, if it diverges after `leader_epoch`, which ends at `leader_end`."""
    if leader_epoch == UNDEFINED:
        return min(leader_end, log_end)
    epoch, end = epochs.end_offset(leader_epoch, log_end)
    if end == UNDEFINED:  # an epoch from before the known ones, or there are none
        return min(leader_end, log_end)
    if epoch != leader_epoch:  # not here: everything after the epoch before it diverges
        return min(end, log_end)
    return min(end, leader_end, log_end)
