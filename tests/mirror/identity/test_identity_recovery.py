"""Where an identity task may continue: what a source does not return is not taken for deleted."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from millstream_kafka.batch import HEADER_SIZE, Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import PartitionData
from millstream_kafka.protocol.mirror_append import MirrorPartitionResponse
from millstream_mirror.identity import recovery
from millstream_mirror.identity.flow import ReplicaTask
from millstream_mirror.identity.log_queries import MustWait
from millstream_mirror.identity.recovery import IdentityRecovery
from millstream_mirror.kafka.progress import Progress

TASK = ReplicaTask("t", 0, "t", Progress(0, -1, 0, 0, 0, "topic", "cluster", 0, first=0))


def batch(value: bytes) -> bytes:
    return bytes(build_batch([Record(None, value)]))


OURS = batch(b"ours")


def check(monkeypatch: pytest.MonkeyPatch, answer: PartitionData, start: int) -> None:
    async def read(*args: Any, **more: Any) -> PartitionData:
        return answer

    monkeypatch.setattr(recovery, "read", read)
    checker = cast(IdentityRecovery, object.__new__(IdentityRecovery))
    checker._at_source = cast(Any, None)
    there = MirrorPartitionResponse(0, last_header=OURS[:HEADER_SIZE])
    asyncio.run(checker._check_last_batch(TASK, there, 1, start))


def test_equal_last_batch_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, PartitionData(0, records=memoryview(bytearray(OURS))), 0)


def test_different_last_batch_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MustWait, match="has another batch at offset"):
        check(monkeypatch, PartitionData(0, records=memoryview(bytearray(batch(b"theirs")))), 0)


def test_deleted_last_batch_is_no_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, PartitionData(0, int(ErrorCode.OFFSET_OUT_OF_RANGE)), 9)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_unreplicated_source_batch_is_retried(monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    """Its followers may not have it yet; another batch may stand there once it is returned."""
    with pytest.raises(ApiError, match="is not replicated in the source yet") as caught:
        check(monkeypatch, PartitionData(0, int(code)), 0)
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


def test_unreplicated_target_records_are_retried() -> None:
    """A leader that was just elected does not know yet what its followers have."""
    there = MirrorPartitionResponse(0, log_end_offset=5)
    recovery._check_replicated(TASK, there, 5)
    with pytest.raises(ApiError, match="t-0: offset 3 is not replicated in the target yet"):
        recovery._check_replicated(TASK, there, 3)
    with pytest.raises(ApiError, match="no leader"):
        recovery._check_replicated(TASK, there, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader"))
