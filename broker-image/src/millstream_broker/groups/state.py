"""The coordinator's state, as groups use it."""

from __future__ import annotations

from millstream_kafka.protocol.errors import ErrorCode

from ..coordinator.state import CoordinatorState

TimerKey = tuple[str, str, str]
"""(kind, group id, member id or "")."""

State = CoordinatorState[TimerKey]


def unavailable(state: State, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
    """The error why this coordinator cannot serve the group now, or NONE."""
    if not group_id and not may_be_empty:
        return ErrorCode.INVALID_GROUP_ID
    return state.unavailable(group_id)
