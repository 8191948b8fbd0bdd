"""A real broker by itself whose `log.dirs` come in another order: its topics keep their settings and their records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_broker.coordination.stores.file import FILE_NAME
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import until
from millstream_harness.wire import Wire, record
from millstream_kafka.protocol import describe_configs
from millstream_kafka.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.soak

TOPIC = 2
OLD_MS = 1_000_000_000_000
"""The time of records that retention of a week would delete at once."""


def retention(wire: Wire) -> str | None:
    asked = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "kept", ["retention.ms"])])
    (found,) = wire.call(describe_configs.API, 4, asked).results
    (entry,) = found.configs
    value: str | None = entry.value
    return value


def is_retained(wire: Wire) -> bool:
    """Whether retention has deleted a record of the other topic, produced now."""
    assert wire.produce("gone", [record("x", timestamp=OLD_MS)]).error_code == 0
    return wire.fetch("gone", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_another_order_of_log_directories_deletes_nothing(
    start_broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    dirs = [str(tmp_path / name) for name in ("one", "other")]
    quick = {"log.retention.check.interval.ms": "100", "log.segment.delete.delay.ms": "0"}
    broker = start_broker_process({"log.dirs": ",".join(dirs), **quick})
    with Wire(broker.bootstrap) as wire:
        new = NewTopic("kept", 4, 1, config={"retention.ms": "-1"})
        gone = NewTopic("gone", 1, 1, config={"retention.ms": "1"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for created in admin.create_topics([new, gone]).values():
            created.result(30)
        for partition in range(4):
            old = record("x", timestamp=OLD_MS)
            assert wire.produce("kept", [old], partition=partition).error_code == 0
    for order in (dirs[::-1], dirs):
        assert broker.stop(30) == 0
        broker.config["log.dirs"] = ",".join(order)
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert retention(wire) == "-1"
            until(partial(is_retained, wire), "retention has run")
            assert [wire.end_offset("kept", partition) for partition in range(4)] == [1] * 4
            found = [wire.fetch("kept", 0, partition=partition) for partition in range(4)]
            assert [(one.error_code, bool(one.records)) for one in found] == [(0, True)] * 4
    assert len([*tmp_path.glob(f"*/{FILE_NAME}")]) == 1
