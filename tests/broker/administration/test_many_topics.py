"""Thousands of topics in one request: few writes, one deletion pass, and no long turn of the loop."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.administration import topics
from millstream_broker.config.topic_keys import TOPIC_KEYS
from millstream_broker.controller.driver import REMOVALS_AT_ONCE
from millstream_broker.coordination.stores.file import FileStore
from millstream_broker.log.manager import LogManager
from millstream_broker.replication.roles import Roles
from millstream_broker.runtime import slices
from millstream_harness.coordination_file import nodes_in
from millstream_harness.in_process import connected, running
from millstream_harness.members import until
from millstream_harness.threads_in_turn import ThreadsInTurn
from millstream_kafka.client import Connection
from millstream_kafka.protocol import create_partitions, create_topics, delete_topics, metadata
from millstream_kafka.protocol.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream_kafka.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream_kafka.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.metadata import MetadataRequest, MetadataRequestTopic

TOPICS, PARTITIONS = 150, 3
STEP_S = 0.0012
"""What each look at the clock takes: longer than a slice, shorter than one of the controller's, which it ends, too."""


class Counts:
    """Counts a broker's work; `begun` and `stopped` by turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self.passes = 0
        self.begun: Counter[int] = Counter()
        self.stopped: Counter[int] = Counter()
        self._turn = 0
        self._is_counted = False
        monkeypatch.setattr(FileStore, "_append", self._counted("writes", FileStore._append))
        monkeypatch.setattr(LogManager, "remove_deleted", self._counted("passes", LogManager.remove_deleted))
        monkeypatch.setattr(Roles, "assume", self._by_turn(self.begun, Roles.assume))
        monkeypatch.setattr(Roles, "stop", self._by_turn(self.stopped, Roles.stop))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            setattr(self, name, getattr(self, name) + 1)
            return function(*args)

        return call

    def _by_turn(self, counter: Counter[int], function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if not self._is_counted:
                self._is_counted = True
                asyncio.get_running_loop().call_soon(self._next_turn)
            counter[self._turn] += 1
            return function(*args)

        return call

    def _next_turn(self) -> None:
        self._turn += 1
        self._is_counted = False

    def clear(self) -> None:
        self.writes = self.passes = 0
        self.begun.clear()
        self.stopped.clear()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    clock = itertools.count(0.0, STEP_S)
    monkeypatch.setattr(slices, "perf_counter", lambda: next(clock))  # a slice is one step
    return Counts(monkeypatch)


@pytest.fixture(params=["fast", "slow"])
async def client(tmp_path: Path, counts: Counts, request: pytest.FixtureRequest) -> AsyncIterator[Connection]:
    """A client of a broker in this process, whose disk takes no time, or longer than everything else."""
    ThreadsInTurn(wait=request.param == "slow")
    async with running(tmp_path) as broker, connected(broker) as connection:
        yield connection


def names(count: int = TOPICS) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


async def create(client: Connection) -> None:
    asked = [CreatableTopic(name, PARTITIONS, 1) for name in names()]
    created = (await client.call(create_topics.API, 7, CreateTopicsRequest(asked, 60_000))).topics
    assert [(one.name, one.error_code, one.num_partitions) for one in created] == [
        (name, 0, PARTITIONS) for name in names()
    ]
    assert {len(one.configs) for one in created} == {len(TOPIC_KEYS)}


async def test_topics_of_one_request_are_created_together(client: Connection, counts: Counts) -> None:
    counts.clear()
    await create(client)
    assert counts.writes <= TOPICS // 10
    assert sum(counts.begun.values()) == TOPICS * PARTITIONS
    assert max(counts.begun.values()) == 1, "others have their turn after each slice"


async def test_topics_of_one_request_are_deleted_together(
    client: Connection, counts: Counts, tmp_path: Path
) -> None:
    await create(client)
    counts.clear()
    asked = [DeleteTopicState(name) for name in names()]
    request = DeleteTopicsRequest(asked, [], 60_000)
    deleted = (await client.call(delete_topics.API, 6, request)).responses
    assert [(one.name, one.error_code) for one in deleted] == [(name, 0) for name in names()]
    await until(
        lambda: (
            not [
                *tmp_path.glob("topic-*"),
                *(path for path in nodes_in(tmp_path) if path.startswith("/brokers/topics/")),
            ]
        )
    )
    asks = 1 + TOPICS // topics.BEGUN_AT_ONCE
    removals = 1 + TOPICS // REMOVALS_AT_ONCE  # one more if the first begins before the last request
    assert counts.writes <= asks + removals * 3 * 2, "each removal has three steps, begun in two slices"
    assert counts.passes <= 2 * (1 + TOPICS // topics.AT_ONCE)
    assert sum(counts.stopped.values()) == 2 * TOPICS * PARTITIONS, "as the topic goes, and as its log does"
    assert max(counts.stopped.values()) == 1, "others have their turn after each slice"
    await create(client)


async def test_topics_are_made_by_asking_for_them_together(client: Connection, counts: Counts) -> None:
    counts.clear()
    asked = [MetadataRequestTopic(name=name) for name in [*names(), "no/name", "a.b", "a_b"]]
    answer = await client.call(metadata.API, 12, MetadataRequest(asked, True))
    assert counts.writes <= TOPICS // 10
    wrong = {one.name: one.error_code for one in answer.topics if one.error_code}
    assert wrong == dict.fromkeys(["no/name", "a_b"], ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert {len(one.partitions) for one in answer.topics if not one.error_code} == {1}


async def test_partitions_of_one_request_are_added_together(client: Connection, counts: Counts) -> None:
    await create(client)
    counts.clear()
    asked = [CreatePartitionsTopic(name, PARTITIONS + 1, None) for name in [*names(), "none"]]
    answer = await client.call(create_partitions.API, 3, CreatePartitionsRequest(asked, 60_000, False))
    assert [one.error_code for one in answer.results] == [0] * TOPICS + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert counts.writes <= TOPICS // 10
    described = await client.call(metadata.API, 12, MetadataRequest(None))
    assert {len(one.partitions) for one in described.topics} == {PARTITIONS + 1}


async def test_names_of_one_request_may_not_collide(client: Connection) -> None:
    asked = [
        CreatableTopic("a.b", 1, 1),
        CreatableTopic("a_b", 1, 1),
        CreatableTopic("c", 1, 1, configs=[CreatableTopicConfig("no.such", "1")]),
        CreatableTopic("d", 1, 1, configs=[CreatableTopicConfig("retention.ms", "1")]),
    ]
    answer = await client.call(create_topics.API, 7, CreateTopicsRequest(asked, 60_000))
    assert [(one.name, one.error_code) for one in answer.topics] == [
        ("a.b", 0),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", ErrorCode.INVALID_CONFIG),
        ("d", 0),
    ]
    assert answer.topics[1].error_message == "Topic 'a_b' collides with existing topic: a.b"
