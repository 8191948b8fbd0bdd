"""The errors that clients get if records could not be stored in __consumer_offsets."""

from __future__ import annotations

from millstream_kafka.protocol.errors import ErrorCode


def group_error(error: ErrorCode) -> ErrorCode:
    """The error of a member whose group's record could not be stored: one that clients retry."""
    if error == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return _error(error, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)


def offset_error(error: ErrorCode) -> ErrorCode:
    """The error of a commit whose records could not be stored."""
    return _error(error, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def _error(error: ErrorCode, *, too_large: ErrorCode) -> ErrorCode:
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return too_large
        case _:
            return error
