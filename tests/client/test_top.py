"""`millstream top`: rates and lag of an interval."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from millstream.connection import Cluster
from millstream.groups import IN_FLIGHT, commit_offsets, delete_groups, describe_group
from millstream.rates import Look, group_rates, look, topic_rates
from millstream.topics import create_topic
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def test_rates_between_two_looks(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    group = unique("top")
    cluster = Cluster(shared_broker.bootstrap)
    run("produce", topic, stdin=b"a\n" * 10)
    before = look(cluster)
    run("produce", topic, stdin=b"a\n" * 30)
    run("consume", topic, "--group", group, "--max", "15")
    after = look(cluster)
    (rate,) = [one for one in topic_rates(before, after) if one.topic == topic]
    assert rate.records == 40
    assert rate.records_per_s is not None
    assert round(rate.records_per_s * (after.at - before.at)) == 30
    (progress,) = [one for one in group_rates(before, after) if one.group == group]
    assert progress.lag == describe_group(cluster, group).lag


def test_the_lag_of_many_groups_is_what_each_of_them_says(run: Run, shared_broker: InProcessBroker) -> None:
    cluster = Cluster(shared_broker.bootstrap)
    topics = [unique("top") for _ in range(3)]
    for number, topic in enumerate(topics):
        create_topic(cluster, topic, partitions=2)
        run("produce", topic, "--partition", "1", stdin=b"a\n" * 10 * number)
    groups = [unique("top") for _ in range(IN_FLIGHT + 5)]
    for number, group in enumerate(groups):
        commit_offsets(cluster, group, {(topics[2], 0): 0, (topics[2], 1): number % 25, (topics[0], 1): 0})
    found = look(cluster)
    assert {group: (found.committed[group], found.lag[group]) for group in groups} == {
        group: (number % 25, max(20 - number % 25, 0)) for number, group in enumerate(groups)
    }
    for group in groups[::50]:
        assert describe_group(cluster, group).lag == found.lag[group]
    assert [found.ends[topic] for topic in topics] == [0, 10, 20]
    for group, why in delete_groups(cluster, groups).items():
        assert not why, group


def test_what_was_reset_or_made_anew_has_no_rate() -> None:
    before = Look(0.0, {"t": 10, "gone": 1}, {"g": 5}, {"g": 5})
    after = Look(2.0, {"t": 4, "new": 8}, {"g": 3, "h": 6}, {"g": 1, "h": 2})
    assert [(one.topic, one.records_per_s) for one in topic_rates(before, after)] == [
        ("new", 4.0),
        ("t", None),
    ]
    assert [(one.group, one.committed_per_s, one.lag) for one in group_rates(before, after)] == [
        ("h", 3.0, 2), ("g", None, 1),
    ]  # fmt: skip


def test_the_command_prints_tables_or_lines(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"a\n" * 7)
    lines = run("top", "--interval", "0.2", "--count", "2", "-o", "json").stdout.splitlines()
    assert len(lines) == 2
    assert {"topic": topic, "recordsPerS": 0.0, "records": 7} in json.loads(lines[1])["topics"]
    said = run("top", "--interval", "0.2", "--count", "1").stdout.decode()
    assert "RECORDS/S" in said
    assert "COMMITTED/S" in said
    said = run("top", "--interval", "0.2", "--count", "3").stdout.decode()
    assert said.count("RECORDS/S") == 3, "without a terminal, each interval has its table"
