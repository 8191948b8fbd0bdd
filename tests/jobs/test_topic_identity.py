"""Jobs tell by its id that a topic was deleted and created again, and leave the table unchanged."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.load_conditions import ready_after
from millstream_harness.spark_loads import PY4J, Loads
from millstream_jobs import completeness, positions
from millstream_jobs import load as job
from millstream_jobs.brokers import Brokers
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.rewind import Pinned, Rewind, pin, rewind
from millstream_jobs.run import BadRun, Output, read_run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of deltalake
]
VALUE = Value("Text")


@pytest.fixture
def loads(spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path) -> Loads:
    """A topic with three records, one of which is loaded."""
    found = Loads(spark, shared_broker.bootstrap, tmp_path)
    found.publish([(None, b"old")] * 3)
    found.load((0, 0, 1), name="run-0000", value=VALUE)
    return found


def id_of(loads: Loads) -> str:
    number = positions.topic_ids(Brokers(loads.bootstrap), [loads.topic])[loads.topic]
    assert number is not None
    return number


def delete(loads: Loads) -> None:
    admin = AdminClient({"bootstrap.servers": loads.bootstrap})
    admin.delete_topics([loads.topic])[loads.topic].result(30)


def replace(loads: Loads) -> None:
    """Replace the topic with another of its name that has records at the same offsets."""
    delete(loads)
    loads.publish([(None, b"new")] * 5)


def values(loads: Loads) -> list[str]:
    return [row["value"] for row in loads.rows()]


def test_a_topic_that_was_replaced_after_its_offsets_were_resolved(loads: Loads) -> None:
    ids = {loads.topic: id_of(loads)}
    replace(loads)
    with pytest.raises(TopicReplaced, match=f"topics: {loads.topic} was deleted and created again") as caught:
        loads.load((0, 1, 3), value=VALUE, topic_ids=ids)
    status, reason, message = ready_after(caught.value)
    assert (status, reason) == ("False", "TopicReplaced")
    assert "resolve offsets of the new topic" in message
    assert values(loads) == ["old"]
    assert (
        loads.load((0, 0, 1), name="new-0001", value=VALUE, topic_ids={loads.topic: id_of(loads)}).rows == 1
    )


@pytest.mark.parametrize("known", [True, False], ids=["topicIds", "by hand"])
def test_a_topic_that_is_replaced_while_it_is_read(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It is replaced after the last read and before the commit."""
    check = completeness.check

    def check_and_replace(*given: Any) -> tuple[int, int]:
        found = check(*given)
        replace(loads)
        return found

    monkeypatch.setattr(completeness, "check", check_and_replace)
    ids = {loads.topic: id_of(loads)} if known else {}
    with pytest.raises(TopicReplaced):
        loads.load((0, 1, 3), value=VALUE, topic_ids=ids)
    assert values(loads) == ["old"]
    assert not list((loads.path / "_staging").rglob("*.parquet"))


def test_records_that_were_read_before_their_topic_was_deleted_are_published(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = completeness.check

    def check_and_delete(*given: Any) -> tuple[int, int]:
        found = check(*given)
        delete(loads)
        return found

    monkeypatch.setattr(completeness, "check", check_and_delete)
    assert loads.load((0, 1, 3), value=VALUE).rows == 2
    assert values(loads) == ["old"] * 3


def test_a_rewind_keeps_the_topic_that_its_first_attempt_found(loads: Loads) -> None:
    since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    wanted = Rewind("july", loads.bootstrap, (loads.topic,), since, Output(str(loads.path)), value=VALUE)
    assert pin(wanted).topic_ids == {loads.topic: id_of(loads)}
    replace(loads)
    with pytest.raises(TopicReplaced, match="was deleted and created again"):
        rewind(loads.spark, wanted)
    assert values(loads) == ["old"]
    path = loads.path / "_rewinds" / "july.json"
    older = {name: content for name, content in json.loads(path.read_text()).items() if name != "topicIds"}
    assert older.keys() < {"topicIds", *older} == set(Pinned.__struct_encode_fields__)
    path.write_text(json.dumps(older))
    assert pin(wanted).topic_ids == {}, "of an older release"


def test_ids_are_as_kafka_writes_them(loads: Loads, tmp_path: Path) -> None:
    assert positions.as_kafka_writes("ab+/" * 5) == "ab-_" * 5
    assert positions.topic_ids(Brokers(loads.bootstrap), [loads.topic, "no-such-topic"]) == {
        loads.topic: id_of(loads)
    }
    path = tmp_path / "run.json"
    run = {
        "name": "r",
        "bootstrap": loads.bootstrap,
        "offsets": [{"topic": loads.topic, "partition": 0, "from": 0, "until": 1}],
        "output": {"path": str(loads.path)},
        "value": {"format": "Text"},
    }
    for ids, said in (
        ({loads.topic: "x"}, "is not allowed: an id as Kafka writes it: 22 letters"),
        ({"other": id_of(loads)}, "topicIds.other is not allowed: no range in offsets is of this topic"),
    ):
        path.write_text(json.dumps({**run, "topicIds": ids}))
        with pytest.raises(BadRun, match=said):
            read_run(path)
    path.write_text(json.dumps({**run, "topicIds": {loads.topic: id_of(loads)}}))
    assert job.load(loads.spark, read_run(path)).rows == 1
