"""Valid requests of every API with odd values: each gets a response, and none is an unexpected error.

Names are empty, long, internal, unknown, or belong to another kind of object; numbers are the smallest, the largest
and those near zero; elements are repeated. Equal seeds give equal requests. ``MILLSTREAM_ODD_REQUESTS`` (3,000) and
``MILLSTREAM_FUZZ_SEED`` (1) change count and seed.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.api import load
from millstream_broker.network.handlers import REGISTERED
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.messages import VERSIONS
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, record
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import alter_configs, describe_configs, find_coordinator, offset_commit
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID, FieldType, Struct

pytestmark = pytest.mark.soak

REQUESTS = int(os.environ.get("MILLSTREAM_ODD_REQUESTS", "3000"))
SEED = int(os.environ.get("MILLSTREAM_FUZZ_SEED", "1"))
NAMES = (
    *(
        "t",
        "u",
        "__consumer_offsets",
        "__transaction_state",
        "unknown",
        "",
        "a/b",
        ".",
        "..",
        "\0",
        "é",
        "1",
        "-1",
    ),
    *("x" * 249, "x" * 250, "x" * 30_000, "retention.ms", "cleanup.policy", "compact", "range", "9" * 30),
)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
BYTES = (b"", b"\0" * 4, b"\xff" * 10, b"\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\0")
WAITS = {"max_wait_ms", "timeout_ms", "rebalance_timeout_ms"}
FOR_BROKERS = {"StopReplica", "UpdateMetadata", "ControlledShutdown"}
PARTITIONS = {"num_partitions", "count"}


class Odd:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        load()
        self._versions = [
            (api, version)
            for api, version in VERSIONS
            if api.key in REGISTERED and api.name not in FOR_BROKERS
        ]

    def request(self) -> tuple[Any, int, Struct]:
        api, version = self._chance.choice(self._versions)
        return api, version, self._struct(api.request, version)

    def _struct(self, kind: type[Struct], version: int) -> Struct:
        made = kind()
        for name, field in kind.FIELDS:
            if name in WAITS:
                value: Any = self._chance.choice((0, -1, -(2**31), 20))
            elif name in PARTITIONS:
                value = self._chance.choice((-2, -1, 0, 1, 3))
            elif not field.in_version(version):
                continue
            else:
                value = self._value(field, version)
            setattr(made, name, value)
        return made

    def _value(self, field: FieldType, version: int) -> Any:
        if field.nullable_in(version) and self._chance.random() < 0.15:
            return None
        if not field.is_array:
            return self._one(field, version)
        found = [self._one(field, version) for _ in range(self._chance.choice((0, 1, 1, 2, 3)))]
        return found + found[: self._chance.choice((0, 0, 1))]

    def _one(self, field: FieldType, version: int) -> Any:
        chance = self._chance
        if field.struct is not None:
            return self._struct(field.struct, version)
        if field.kind in BITS:
            end = 1 << (BITS[field.kind] - 1)
            return chance.choice((0, 0, 1, 1, 2, 3, -1, -2, -3, end - 1, -end))
        if field.kind == "string":
            return chance.choice(NAMES)
        if field.kind == "uuid":
            return chance.choice((ZERO_UUID, uuid.UUID(int=7)))
        if field.kind == "records":
            batch = build_batch([record("value", b"key", 1)])
            return chance.choice((batch, batch * 2, batch[:-3], b"", None))
        return chance.choice(BYTES) if field.kind == "bytes" else chance.random() < 0.5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path, {"group.initial.rebalance.delay.ms": "0"}) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("t", "u")
        yield broker


@pytest.mark.timeout(300 + REQUESTS // 25)
def test_odd_requests_surprise_nobody(broker: InProcessBroker) -> None:
    odd = Odd(SEED)
    wire = Wire(broker.bootstrap)
    for _ in range(REQUESTS):
        api, version, request = odd.request()
        try:
            wire.send(api, version, request)
            if getattr(request, "acks", 1):
                wire.receive()
                continue
        except (EOFError, ConnectionError):  # refused, in a version without a field for the error
            pass
        wire.socket.close()
        wire = Wire(broker.bootstrap)
    wire.socket.close()
    with Wire(broker.bootstrap) as wire:
        wire.create("afterwards")
        assert wire.produce("afterwards", [record("x")]).error_code == 0
    assert "Traceback" not in broker.said()
    assert "failed in the broker" not in broker.said()


def test_an_error_message_is_never_too_long_to_be_sent(broker: InProcessBroker) -> None:
    """It names every key without a value; strings of version 1 have at most 32,767 bytes."""
    configs = [alter_configs.AlterableConfig(name, None) for name in ("x" * 30_000, "é" * 15_000)]
    resource = alter_configs.AlterConfigsResource(2, "t", configs)
    with Wire(broker.bootstrap) as wire:
        (answer,) = wire.call(alter_configs.API, 1, alter_configs.AlterConfigsRequest([resource])).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message is not None
    assert answer.error_message.startswith("Null value not supported for : xxx")


def test_offsets_may_be_kept_for_ever(broker: InProcessBroker) -> None:
    """Old clients' `retention_time_ms` is added to the current time, and the sum may exceed 64 bits."""
    group = find_coordinator.FindCoordinatorRequest("g", 0, ["g"])
    kept = [offset_commit.OffsetCommitRequestPartition(0, 1, -1, "")]
    topics = [offset_commit.OffsetCommitRequestTopic("t", partitions=kept)]
    with Wire(broker.bootstrap) as wire:
        eventually(
            lambda: wire.call(find_coordinator.API, 4, group).coordinators[0].error_code,
            lambda code: code == 0,
            "there is a coordinator",
        )
        request = offset_commit.OffsetCommitRequest("g", -1, "", None, 2**63 - 1, topics)
        answer = wire.call(offset_commit.API, 4, request)
        assert answer.topics[0].partitions[0].error_code == 0


def test_a_resource_that_is_named_a_hundred_thousand_times_is_not_described_as_often(
    broker: InProcessBroker,
) -> None:
    with Wire(broker.bootstrap) as wire:
        for count, error in (
            (10, ErrorCode.NONE),
            (11, ErrorCode.INVALID_REQUEST),
            (95_000, ErrorCode.INVALID_REQUEST),
        ):
            asked = [describe_configs.DescribeConfigsResource(2, "t", None)] * count
            asked.append(describe_configs.DescribeConfigsResource(2, "u", ["retention.ms"]))
            request = describe_configs.DescribeConfigsRequest(asked, True, True)
            results = wire.call(describe_configs.API, 4, request).results
            assert [one.error_code for one in results] == [*[error] * count, 0]
            assert [one.name for one in results[-1].configs] == ["retention.ms"]
            assert bool(results[0].configs) == (error is ErrorCode.NONE)
