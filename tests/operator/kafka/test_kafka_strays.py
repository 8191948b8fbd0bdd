"""The operator's requests for logs that no topic has, against a real broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import NewTopic

pytestmark = pytest.mark.process


def test_restored_log_of_deleted_topic_is_listed_by_id_and_not_counted(
    start_broker: Callable[..., InProcessBroker], tmp_path: Path
) -> None:
    broker, copy = start_broker(), tmp_path / "copy"
    with closing(KafkaAdmin(broker.bootstrap)) as admin:
        created = admin.create_topics([NewTopic("orders", 1, 1, {}), NewTopic("other", 2, 1, {})])
        assert created == {"orders": None, "other": None}
        topic_id = admin.topics(["orders"])["orders"].topic_id
    broker.stop()
    shutil.copytree(broker.data / "orders-0", copy)
    broker.start()
    with closing(KafkaAdmin(broker.bootstrap)) as admin:
        assert admin.strays() == []
        assert admin.delete_topics({"orders": None}) == {"orders": None}
    broker.stop()
    shutil.copytree(copy, broker.data / "orders-0")
    broker.start()
    with closing(KafkaAdmin(broker.bootstrap)) as admin:
        (number,) = admin.brokers().racks
        (stray,) = admin.strays()
        assert (stray.broker, stray.topic_id, stray.partition, stray.topic) == (
            number,
            topic_id,
            0,
            "orders",
        )
        assert stray.size > 0
        assert admin.held([number]) == {number: 2}, "the stray is not a replica"


def test_id_of_a_former_topic_deletes_no_topic_of_its_name(
    start_broker: Callable[..., InProcessBroker],
) -> None:
    broker = start_broker()
    with closing(KafkaAdmin(broker.bootstrap)) as admin:
        admin.create_topics([NewTopic("orders", 1, 1, {})])
        former = admin.topics(["orders"])["orders"].topic_id
        assert admin.delete_topics({"orders": former}) == {"orders": None}
        admin.create_topics([NewTopic("orders", 1, 1, {}), NewTopic("other", 1, 1, {})])
        refused = admin.delete_topics({"orders": former, "other": None})
        assert refused["orders"] is not None
        assert (refused["orders"].error, refused["other"]) == ("UNKNOWN_TOPIC_ID", None)
        present = admin.topics(["orders", "other"])
        assert [*present] == ["orders"]
        assert present["orders"].topic_id != former
        none = "AAAAAAAAAAAAAAAAAAAAAA"
        assert admin.delete_topics({"orders": none}) == {"orders": None}, "brokers without ids"
