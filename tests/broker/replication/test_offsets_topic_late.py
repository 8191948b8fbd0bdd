"""Batches of __consumer_offsets that are appended and not committed in time: followed until their fate is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.coordinator.internal_topic import BrokerInternalTopic
from millstream_broker.coordinator.writer import Late
from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC
from millstream_harness.replica import THEM, US, Replicating, led_by, replicating, state, topic
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode

BATCH = build_batch([Record(b"k", b"v", 1)])


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Replicating]:
    async with replicating(tmp_path) as found:
        yield found


async def late(offsets: BrokerInternalTopic) -> Late:
    with pytest.raises(Late) as caught:
        await offsets.append(0, BATCH)
    return caught.value


async def test_a_late_batch_is_committed_when_the_high_watermark_passes_it(broker: Replicating) -> None:
    await broker.told(state(topic(OFFSETS_TOPIC, led_by(US))))
    offsets = BrokerInternalTopic(OFFSETS_TOPIC, broker.replicas, None, timeout_ms=0)  # type: ignore[arg-type]
    first, second = await late(offsets), await late(offsets)
    assert first.code is ErrorCode.REQUEST_TIMED_OUT
    partition = broker.replicas.partition(OFFSETS_TOPIC, 0)
    partition.fetched(THEM, 1, 0)
    assert await first.committed
    assert not second.committed.done()  # type: ignore[attr-defined]
    partition.fetched(THEM, 2, 0)
    assert await second.committed
    assert not partition.waiters


async def test_a_late_batch_is_given_up_with_the_leadership(broker: Replicating) -> None:
    before = topic(OFFSETS_TOPIC, led_by(US))
    await broker.told(state(before))
    offsets = BrokerInternalTopic(OFFSETS_TOPIC, broker.replicas, None, timeout_ms=0)  # type: ignore[arg-type]
    first = await late(offsets)
    await broker.told(state(replace(before, partitions=(led_by(THEM, epoch=1),))))
    assert not await first.committed


async def test_a_batch_that_is_refused_is_not_late(broker: Replicating) -> None:
    await broker.told(state(topic(OFFSETS_TOPIC, led_by(US, isr=(US,)), min_insync_replicas="2")))
    offsets = BrokerInternalTopic(OFFSETS_TOPIC, broker.replicas, None, timeout_ms=0)  # type: ignore[arg-type]
    with pytest.raises(ApiError) as refused:
        await offsets.append(0, BATCH)
    assert not isinstance(refused.value, Late)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
