"""Start and end offsets of a load's partitions, from the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from millstream_harness.in_memory import ToldBrokers
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import EARLIEST, LATEST, AdminError, Partition, TopicIdentity
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.load.offsets import find_ends
from millstream_operator.reconcile.load.ranges import Ends

MOMENT = datetime(2026, 11, 20, tzinfo=UTC)
AT = int(MOMENT.timestamp()) * 1000
TOPICS = {"a": TopicIdentity("id-a", 2), "b": TopicIdentity("id-b", 1)}
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
LOGS = {
    EARLIEST: {A0: 1, A1: 2, B0: 3},
    LATEST: {A0: 10, A1: 20, B0: 30},
    AT: {A0: 0, A1: -1, B0: 7},
    AT + 500: {A0: 4, A1: 5, B0: -1},
}


def a_load(**spec: Any) -> BatchLoad:
    wanted = {
        "clusterRef": {"name": "default"},
        "topics": ["a", "b"],
        "value": {"format": "JSON", "schema": "carrier STRING"},
        "output": {"path": "s3a://bucket/flights"},
        **spec,
    }
    metadata = {"name": "daily"}
    manifest = {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "BatchLoad",
        "metadata": metadata,
        "spec": wanted,
    }
    return decode_as(BatchLoad, manifest)


def brokers(**answers: Any) -> ToldBrokers:
    def offsets(wanted: Mapping[Partition, int], *, read_committed: bool = False) -> dict[Partition, int]:
        assert read_committed or EARLIEST in wanted.values()
        return {partition: LOGS[when][partition] for partition, when in wanted.items()}

    return ToldBrokers(**{"identities": TOPICS, "offsets": offsets, **answers})


def ends(load: BatchLoad, told: ToldBrokers) -> Any:
    return find_ends(cast(KafkaAdmin, told), load)


def test_every_partition_is_asked_for_its_first_and_last_offset() -> None:
    told = brokers()
    assert ends(a_load(), told) == {
        A0: Ends(1, 10, topic_id="id-a"),
        A1: Ends(2, 20, topic_id="id-a"),
        B0: Ends(3, 30, topic_id="id-b"),
    }
    assert len(told.requests("offsets")) == 2


def test_times_are_asked_for_in_milliseconds_and_what_has_nothing_that_late_has_none() -> None:
    spec = {
        "from": {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"},
        "until": {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00.5Z"},
    }
    assert ends(a_load(**spec), brokers()) == {
        A0: Ends(1, 10, from_time=0, until_time=4, topic_id="id-a"),
        A1: Ends(2, 20, from_time=None, until_time=5, topic_id="id-a"),
        B0: Ends(3, 30, from_time=7, until_time=None, topic_id="id-b"),
    }


def test_topics_that_are_not_there_are_named() -> None:
    found = ends(a_load(topics=["a", "x", "y"]), brokers())
    assert isinstance(found, Problem)
    assert (found.reason, found.message) == (
        "TopicNotFound",
        "spec.topics: there is no topic x, y in the cluster: create it, or correct spec.topics",
    )


def test_brokers_that_do_not_answer_are_told() -> None:
    found = ends(a_load(), brokers(identities=AdminError("nobody listens")))
    assert isinstance(found, Problem)
    assert (found.reason, found.message) == ("ClusterNotReady", "nobody listens")


def test_a_rerun_has_times_of_its_own() -> None:
    rerun = {"requestId": "1", "from": {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00.5Z"}}
    load = a_load(rerun=rerun)
    found = find_ends(cast(KafkaAdmin, brokers()), load, load.spec.rerun)
    assert not isinstance(found, Problem)
    assert [one.from_time for one in found.values()] == [4, 5, None]
