"""Where two logs part, by their leader epochs (KIP-101, KIP-279; asked in a Fetch as KIP-595 has it).

A follower's Fetch names the epoch of the last record it has. Where the leader's log does not have that epoch, or has
it ending before the follower's end, the logs part, and the leader answers with the largest epoch it has at most that
one and with where that ends. The follower truncates by :func:`truncation_offset` and asks again, until there is
nothing to say: each round takes at least one epoch away or is the last one. What was committed is in both logs under
the same epochs, so it is never cut.
"""

from __future__ import annotations

from typing import Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode

UNDEFINED = -1


class LeaderEpochs(Protocol):
    """What a log knows of its leader epochs (log/epochs.py)."""

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]: ...


def diverging_epoch(
    epochs: LeaderEpochs, log_end: int, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """The leader's answer to a follower at `fetch_offset`: epoch and end offset where they part; None if nowhere.

    Raises ApiError OFFSET_OUT_OF_RANGE for an epoch that the leader cannot know: then nothing of the follower's log
    can be compared.
    """
    if last_fetched_epoch == UNDEFINED:
        return None
    epoch, end = epochs.end_offset(last_fetched_epoch, log_end)
    if UNDEFINED in (epoch, end):
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"leader epoch {last_fetched_epoch} of the last record is not known here",
        )
    return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None


def truncation_offset(epochs: LeaderEpochs, log_end: int, leader_epoch: int, leader_end: int) -> int:
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
