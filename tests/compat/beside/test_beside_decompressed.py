"""max.decompressed.message.bytes, a key of Kafka 4.4: what it refuses, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.beside import Beside
from millstream_harness.java import KAFKA_VERSION, is_before
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import describe_configs, incremental_alter_configs, list_offsets, produce

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
    pytest.mark.skipif(
        is_before(4, 4),
        reason=f"Kafka {KAFKA_VERSION} does not have max.decompressed.message.bytes",
    ),
]

KEY = "max.decompressed.message.bytes"
LIMIT = 1000
OVERHEAD = 8
"""What a record's length counts besides its value, if that has about LIMIT bytes."""
T0 = 1_600_000_000_000


START = "Kafka sends the log start offset with an error, too."
WHOLE = "Kafka finds a record before the larger one of the same batch; here the batch is not read."


def batch(size: int, codec: Compression) -> bytes:
    """A small record, then one whose length is ``size``."""
    return build_batch(
        [Record(b"k", b"v", T0), Record(b"k", bytes(size - OVERHEAD), T0 + 1)], compression=codec
    )


def send(beside: Beside, name: str, records: bytes, but: dict[str, str] | None = None) -> Any:
    data = [{"name": name, "partition_data": [{"index": 0, "records": records}]}]
    answers = beside.same(produce.API, [9], but=but, acks=-1, timeout_ms=10_000, topic_data=data)
    return answers.ours["responses"][0]["partition_responses"][0]["error_code"]


def configure(beside: Beside, name: str, value: str | None) -> None:
    """Set the key of a topic, and wait until both brokers have it."""
    change = {"name": KEY, "value": value, "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
    beside.same(incremental_alter_configs.API, [1], resources=[resource])
    beside.until(
        lambda answer: answer["results"][0]["configs"][0]["value"] == value,
        describe_configs.API,
        4,
        resources=[{"resource_type": 2, "resource_name": name, "configuration_keys": [KEY]}],
    )


@pytest.mark.parametrize("codec", list(Compression))
def test_records_of_compressed_batches_are_limited(beside: Beside, codec: Compression) -> None:
    name = f"decompressed-{codec.name.lower()}"
    beside.create(name, **{KEY.replace(".", "_"): str(LIMIT)})
    assert send(beside, name, batch(LIMIT, codec)) == 0
    assert send(beside, name, batch(LIMIT + 1, codec), {"log_start_offset": START}) == (87 if codec else 0)
    assert send(beside, name, batch(LIMIT, codec)) == 0


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_look_ups_of_stored_records_are_limited(beside: Beside, codec: Compression) -> None:
    name = f"stored-{codec.name.lower()}"
    beside.create(name)
    assert send(beside, name, batch(LIMIT + 1, codec)) == 0
    for limit in (LIMIT, LIMIT + 1):
        configure(beside, name, str(limit))
        for timestamp in (T0, T0 + 1, -3, -1, -2, 2**62):
            asked = {"partition_index": 0, "timestamp": timestamp}
            beside.same(
                list_offsets.API,
                [7],
                but={"partitions[0]": WHOLE} if timestamp == T0 else {},
                replica_id=-1,
                topics=[{"name": name, "partitions": [asked]}],
            )


@pytest.mark.parametrize("value", ["0", "1", "-1", "2147483639", "2147483640", "x", "1.5"])
def test_values(beside: Beside, value: str) -> None:
    for kind, name in ((2, "decompressed-values"), (4, "")):
        if kind == 2 and f"id of {name}" not in beside.ours.kept:
            beside.create(name)
        change = {"name": KEY, "value": value, "config_operation": 0}
        resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
        beside.same(incremental_alter_configs.API, [1], resources=[resource], validate_only=True)
