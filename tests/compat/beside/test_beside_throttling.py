"""Throttle times beside Apache Kafka: the same traffic of clients that have used nothing before.

The first request of such a client is throttled for a time that depends on its size alone. What follows also depends on
how far the present window has come: by a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream_harness.beside import Beside
from millstream_harness.wire import Wire
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import (
    alter_client_quotas,
    create_partitions,
    create_topics,
    delete_topics,
    describe_client_quotas,
    fetch,
    list_groups,
    produce,
)
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import Struct

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

WINDOW_MS = 1000
BATCH = build_batch([Record(None, bytes(10_000), 1_700_000_000_000)])
QUOTAS = {
    "slow-producer": ("producer_byte_rate", 100.0),
    "slow-consumer": ("consumer_byte_rate", 2500.0),
    "slowest-consumer": ("consumer_byte_rate", 100.0),
    "slow-requests": ("request_percentage", 0.0001),
    "slow-strict": ("controller_mutation_rate", 0.1),
    "slow-lenient": ("controller_mutation_rate", 0.1),
}


def alter(beside: Beside, *, removes: bool) -> None:
    """Set or remove all quotas. Kafka applies them in order, so that all others apply once it describes the last."""
    for client, (key, value) in (*QUOTAS.items(), ("last", ("producer_byte_rate", 1e9))):
        entity = [{"entity_type": "client-id", "entity_name": client}]
        operations = [{"key": key, "value": value, "remove": removes}]
        entries = [{"entity": entity, "ops": operations}]
        beside.same(alter_client_quotas.API, [1], entries=entries)
    count = 0 if removes else len(QUOTAS) + 1
    beside.until(lambda answer: len(answer["entries"]) == count, describe_client_quotas.API, 1)


@pytest.fixture(scope="module")
def limited(beside: Beside) -> Iterator[Beside]:
    beside.create("throttled", partitions=1)
    for peer in beside.peers:
        for _ in range(6):
            assert peer.wire.produce("throttled", BATCH, acks=-1).error_code == 0
    alter(beside, removes=False)
    yield beside
    alter(beside, removes=True)


class Both:
    """A client of each broker, with a new connection for each request: the earlier one is not read for a while."""

    def __init__(self, beside: Beside, client_id: str) -> None:
        self._beside = beside
        self._client_id = client_id
        self._began = time.monotonic()

    def call(self, api: Api[Any, Any], version: int, request: Struct) -> tuple[Any, Any]:
        answers = []
        for peer in self._beside.peers:
            with Wire(peer.bootstrap, self._client_id) as wire:
                answers.append(wire.call(api, version, request))
        return answers[0], answers[1]

    @property
    def elapsed_ms(self) -> int:
        """An upper bound of all differences in time between requests to the two."""
        return int((time.monotonic() - self._began) * 1000) + 1


def a_produce(batch: bytes = BATCH) -> produce.ProduceRequest:
    topic = produce.TopicProduceData("throttled", partition_data=[produce.PartitionProduceData(0, batch)])
    return produce.ProduceRequest(None, 1, 5000, [topic])


def a_fetch(offset: int, max_bytes: int = 1 << 20) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[fetch.FetchTopic("throttled", partitions=[partition])],
    )


def test_producers(limited: Beside) -> None:
    both = Both(limited, "slow-producer")
    ours, kafka = both.call(produce.API, 9, a_produce())
    assert ours.throttle_time_ms == kafka.throttle_time_ms > 90_000
    ours, kafka = both.call(produce.API, 9, a_produce())
    assert kafka.throttle_time_ms > 180_000
    assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= WINDOW_MS


def test_consumers(limited: Beside) -> None:
    both, size = Both(limited, "slow-consumer"), 2 * len(BATCH)
    ours, kafka = both.call(fetch.API, 12, a_fetch(0, size))  # of the 25,000 bytes that may pass
    assert ours.throttle_time_ms == kafka.throttle_time_ms == 0
    assert [len(one.responses[0].partitions[0].records) for one in (ours, kafka)] == [size, size]
    ours, kafka = both.call(fetch.API, 12, a_fetch(2, size))
    assert ours.responses == kafka.responses == []
    assert kafka.throttle_time_ms > 4000
    assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= WINDOW_MS


def test_kafka_never_sends_a_batch_beyond_all_that_may_pass(limited: Beside) -> None:
    both = Both(limited, "slowest-consumer")
    ours, kafka = both.call(fetch.API, 12, a_fetch(0))
    assert ours.throttle_time_ms == kafka.throttle_time_ms > 90_000
    assert kafka.responses == []
    assert len(ours.responses[0].partitions[0].records) == len(BATCH)


def test_requests(limited: Beside) -> None:
    both = Both(limited, "slow-requests")
    ours, kafka = both.call(list_groups.API, 4, list_groups.ListGroupsRequest())
    assert ours.throttle_time_ms == kafka.throttle_time_ms == 1000
    ours, kafka = both.call(fetch.API, 12, a_fetch(0))
    assert ours.throttle_time_ms == kafka.throttle_time_ms == 1000
    assert ours.responses == kafka.responses == []


def creates(name: str, partitions: int) -> create_topics.CreateTopicsRequest:
    return create_topics.CreateTopicsRequest([create_topics.CreatableTopic(name, partitions, 1)], 10_000)


def widens(name: str, count: int) -> create_partitions.CreatePartitionsRequest:
    wider = create_partitions.CreatePartitionsTopic(name, count, None)
    return create_partitions.CreatePartitionsRequest([wider], 10_000)


def deletes(name: str) -> delete_topics.DeleteTopicsRequest:
    return delete_topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)


def results_of(answer: Any) -> list[Any]:
    """The results by topic, which each API names differently."""
    name = {"CreateTopicsResponse": "topics", "CreatePartitionsResponse": "results"}
    return list(getattr(answer, name.get(type(answer).__name__, "responses")))


def test_strict_mutations(limited: Beside) -> None:
    """From the versions on whose clients know the error."""
    both = Both(limited, "slow-strict")
    ours, kafka = both.call(create_topics.API, 6, creates("strict", 3))  # of 1.1 tokens
    assert ours.topics[0].error_code == kafka.topics[0].error_code == 0
    assert ours.throttle_time_ms == kafka.throttle_time_ms == 0
    limited.until_known("strict")
    for api, version, request in (
        (create_topics.API, 6, creates("other", 1)),
        (create_partitions.API, 3, widens("strict", 4)),
        (delete_topics.API, 5, deletes("strict")),
    ):
        ours, kafka = both.call(api, version, request)
        refused = [
            (getattr(one, "topics", None) or getattr(one, "results", None) or one.responses)[0]
            for one in (ours, kafka)
        ]
        assert [one.error_code for one in refused] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 2
        assert 0 < kafka.throttle_time_ms <= 19_000
        assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= both.elapsed_ms


def test_lenient_mutations(limited: Beside) -> None:
    both = Both(limited, "slow-lenient")
    ours, kafka = both.call(create_topics.API, 5, creates("lenient", 3))
    assert 0 < kafka.throttle_time_ms <= 19_000
    assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= both.elapsed_ms
    limited.until_known("lenient")
    for api, version, request in (
        (create_partitions.API, 2, widens("lenient", 4)),
        (create_topics.API, 5, creates("lenient", 3)),
        (delete_topics.API, 4, deletes("lenient")),
    ):
        ours, kafka = both.call(api, version, request)
        assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= both.elapsed_ms
