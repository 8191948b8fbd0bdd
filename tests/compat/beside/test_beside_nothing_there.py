"""Administrators' requests about objects that do not exist: both brokers respond that there are none."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.beside import Beside
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import (
    describe_producers,
    describe_user_scram_credentials,
    init_producer_id,
    list_config_resources,
    list_transactions,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

NOW = 1_700_000_000_000
WORDS = "The text is our own."


@pytest.mark.parametrize("users", [None, [], ["alice"], ["alice", "bob"], ["alice", "alice"], [""]])
def test_users_without_credentials(beside: Beside, users: list[str] | None) -> None:
    beside.same(
        describe_user_scram_credentials.API,
        users=None if users is None else [{"name": name} for name in users],
    )


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"state_filters": ["Ongoing", "Empty"]},
        {"state_filters": ["ongoing", "Nonsense", "PrepareEpochFence", "Dead"]},
        {"producer_id_filters": [1, 2]},
    ],
)
def test_transactions(beside: Beside, filters: dict[str, Any]) -> None:
    beside.same(list_transactions.API, **filters)
    beside.same(list_transactions.API, [1, 2], duration_filter=1000, **filters)
    beside.same(list_transactions.API, [2], transactional_id_pattern="a.*", **filters)


def test_resources_that_have_configuration(beside: Beside) -> None:
    beside.create("listed", "listed-too")
    beside.same(list_config_resources.API, [0])
    for types in ([4], [8], [16], [32], [16, 32], [4, 8], [3], [2, 99], [-1]):
        beside.same(list_config_resources.API, [1], resource_types=types)
    for answer in beside.ask(list_config_resources.API, [1], resource_types=[2])[0]:
        found = {(each["resource_name"], each["resource_type"]) for each in answer["config_resources"]}
        assert {("listed", 2), ("listed-too", 2)} <= found  # and the topics of other tests
    for answer in beside.ask(list_config_resources.API, [1])[0]:
        assert {each["resource_type"] for each in answer["config_resources"]} >= {2, 4, 8}


def test_producers_of_a_partition(beside: Beside) -> None:
    beside.create("produced", partitions=2)
    asked = {
        "topics": [
            {"name": "produced", "partition_indexes": [0, 1, 2]},
            {"name": "none", "partition_indexes": [0]},
        ]
    }
    beside.same(describe_producers.API, **asked)
    given = beside.until(
        lambda answer: not answer["error_code"], init_producer_id.API, 4, transactional_id=None
    )
    for peer, answer in zip(beside.peers, given, strict=True):
        for sequence in (0, 2):
            records = build_batch(
                [Record(b"k", b"v", NOW), Record(b"k", b"w", NOW + 1)],
                producer_id=answer["producer_id"],
                producer_epoch=0,
                base_sequence=sequence,
            )
            assert peer.wire.produce("produced", records, acks=-1).error_code == 0
    answers = beside.same(describe_producers.API, **asked)
    state = answers.ours["topics"][0]["partitions"][0]["active_producers"][0]
    assert (state["last_sequence"], state["last_timestamp"]) == (3, NOW + 1)
