"""Producers that wait for replicas while the leader stops to be one."""

from __future__ import annotations

import pytest

from millstream_broker.acknowledgements import Acknowledgements
from millstream_broker.protocol.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_what_is_appended_may_be_kept_by_the_next_leader(code: ErrorCode, told: ErrorCode) -> None:
    """librdkafka must send the same batch again, by which the next leader knows it; so it must not hear NOT_LEADER."""
    acknowledgements = Acknowledgements()
    kept, waiting = acknowledgements.add(1, None), acknowledgements.add(2, None)
    acknowledgements.passed(2)
    acknowledgements.fail(code)
    assert await kept is None
    with pytest.raises(ApiError) as error:
        await waiting
    assert error.value.code is told
    assert not acknowledgements


async def test_what_is_cut_off_is_in_no_log() -> None:
    """Then NOT_LEADER is the truth, and the client may send the records anew; the others still wait."""
    acknowledgements = Acknowledgements()
    waiting = [acknowledgements.add(offset, None) for offset in (3, 1, 2)]
    acknowledgements.cut(2)
    for one in (waiting[0], waiting[2]):
        with pytest.raises(ApiError) as error:
            await one
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert acknowledgements
    acknowledgements.passed(2)
    assert await waiting[1] is None
