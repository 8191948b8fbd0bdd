"""`millstream` changes topics, configuration and offsets of groups, and shows them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from millstream.resets import Target, choose, parse_datetime
from millstream_harness.command import on_a_terminal
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def told(ended: subprocess.CompletedProcess[bytes]) -> Any:
    return json.loads(ended.stdout)


def partitions(run: Run, topic: str) -> int:
    return len(told(run("topic", "describe", topic, "-o", "json"))["partitions"])


def config(run: Run, topic: str) -> dict[str, str]:
    found: dict[str, str] = told(run("topic", "describe", topic, "-o", "json"))["config"]
    return found


def test_a_topic_from_creation_to_deletion(run: Run) -> None:
    name = unique("made")
    arguments = (
        "topic",
        "create",
        name,
        "-p",
        "4",
        "-r",
        "1",
        "-c",
        "retention.ms=1000",
        "-c",
        "segment.ms=2000",
    )
    assert run(*arguments, "--dry-run").stdout.decode() == (
        f"topic {name}: could be created; nothing was changed\n"
    )
    assert name not in run("topic", "list").stdout.decode()
    assert run(*arguments).stdout.decode() == f"topic {name}: created\n"
    assert partitions(run, name) == 4
    assert config(run, name) == {"retention.ms": "1000", "segment.ms": "2000"}

    alter = ("topic", "alter", name, "-p", "6", "-c", "retention.ms=5000", "-d", "segment.ms")
    assert run(*alter, "--dry-run").stdout.decode() == (
        f"topic {name}: could be altered; nothing was changed: 6 partitions, retention.ms=5000, segment.ms reset\n"
    )
    assert partitions(run, name) == 4
    assert "without a terminal" in run(*alter, status=2).stderr.decode()
    assert config(run, name) == {"retention.ms": "1000", "segment.ms": "2000"}
    assert told(run(*alter, "--yes", "-o", "json")) == {
        "topic": name,
        "partitions": 6,
        "config": {"retention.ms": "5000"},
        "reset": ["segment.ms"],
        "dryRun": False,
    }
    assert partitions(run, name) == 6
    assert config(run, name) == {"retention.ms": "5000"}

    run("produce", name, stdin=b"a\nb\n")
    said = run("topic", "delete", name, "--dry-run").stdout.decode()
    assert said.splitlines()[1].split() == [name, "6", "2"]
    assert said.endswith("nothing was changed (--dry-run)\n")
    assert partitions(run, name) == 6
    assert run("topic", "delete", name, "--yes").stdout.decode() == f"topic {name}: deleted\n"
    assert name not in run("topic", "list").stdout.decode()


def test_counts_that_are_left_out_are_the_brokers_defaults(run: Run) -> None:
    name = unique("defaults")
    assert told(run("topic", "create", name, "-o", "json")) == {
        "topic": name,
        "partitions": None,
        "replicationFactor": None,
        "config": {},
        "dryRun": False,
    }
    assert partitions(run, name) == 1


def test_an_alteration_is_whole_or_not_at_all(run: Run, topic: str) -> None:
    ended = run("topic", "alter", topic, "--yes", "-p", "9", "-c", "no.such=1", status=1)
    assert "no.such" in ended.stderr.decode()
    assert partitions(run, topic) == 3
    run("topic", "alter", topic, "--yes", "-p", "9", "-c", "retention.ms=soon", status=1)
    run("topic", "alter", topic, "--yes", "-p", "100001", "-c", "retention.ms=7", status=2)
    assert config(run, topic) == {"retention.ms": "3600000"}


def test_several_topics_are_deleted_only_if_all_are_there(run: Run, topic: str) -> None:
    run("topic", "delete", topic, "no-such", "--yes", status=1)
    assert partitions(run, topic) == 3


def test_a_question_on_a_terminal(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    delete = ("topic", "delete", topic)
    status, shown = on_a_terminal(*delete, answer=b"n\n", bootstrap=shared_broker.bootstrap)
    assert status == 1
    assert f"Delete topic {topic}, with all records? [y/N]" in shown
    assert shown.endswith("millstream: nothing was changed\r\n")
    assert partitions(run, topic) == 3
    status, shown = on_a_terminal(*delete, answer=b"y\n", bootstrap=shared_broker.bootstrap)
    assert status == 0
    assert shown.endswith(f"topic {topic}: deleted\r\n")
    assert topic not in run("topic", "list").stdout.decode()


def test_configuration_of_topics_and_brokers(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    where = f"topic/{topic}"
    assert told(run("config", "get", where, "-o", "json")) == [
        {"key": "retention.ms", "value": "3600000", "source": "DYNAMIC_TOPIC_CONFIG", "own": True}
    ]
    assert run(
        "config", "set", where, "max.message.bytes=2000", "retention.ms=1", "--yes"
    ).stdout.decode() == (f"topic {topic}: changed: max.message.bytes=2000, retention.ms=1\n")
    assert config(run, topic) == {"max.message.bytes": "2000", "retention.ms": "1"}
    assert "nothing was changed" in run("config", "reset", where, "retention.ms", "--dry-run").stdout.decode()
    assert config(run, topic)["retention.ms"] == "1"
    run("config", "reset", where, "retention.ms")  # without a question: the default keeps more
    assert config(run, topic) == {"max.message.bytes": "2000"}
    everything = {one["key"]: one for one in told(run("config", "get", where, "--all", "-o", "json"))}
    assert everything["retention.ms"]["own"] is False
    (one,) = told(run("config", "get", where, "retention.ms", "-o", "json"))
    assert one["source"] != "DYNAMIC_TOPIC_CONFIG"

    broker = f"broker/{told(run('cluster', 'info', '-o', 'json'))['controller']}"
    assert (
        "without a terminal"
        in run("config", "set", broker, "log.cleaner.threads=2", status=2).stderr.decode()
    )
    run("config", "set", broker, "log.cleaner.threads=2", "--yes")
    assert told(run("config", "get", broker, "-o", "json")) == [
        {"key": "log.cleaner.threads", "value": "2", "source": "DYNAMIC_BROKER_CONFIG", "own": True}
    ]
    run("config", "reset", broker, "log.cleaner.threads", "--yes")
    assert told(run("config", "get", broker, "-o", "json")) == []
    assert "broker.id" in run("config", "set", broker, "broker.id=9", "--yes", status=1).stderr.decode()


def test_a_change_says_whose_the_topic_is(run: Run, topic: str) -> None:
    where = f"topic/{topic}"
    first = run("config", "set", where, "millstream.topic.owner=shop/orders")
    assert first.stderr == b""
    owner = f"topic {topic}: the Topic resource shop/orders has it"
    assert owner in run("config", "set", where, "max.message.bytes=3000").stderr.decode()
    assert owner in run("topic", "alter", topic, "-c", "max.message.bytes=2000").stderr.decode()
    assert owner in run("topic", "alter", topic, "-p", "9", "--yes").stderr.decode()
    run("config", "set", where, "retention.ms=-1")
    why = run("config", "reset", where, "retention.ms", status=2).stderr.decode()
    assert "older than 604800000 ms are deleted" in why
    assert owner in run("topic", "delete", topic, "--yes").stderr.decode()


def test_a_cluster_at_a_glance(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    info = told(run("cluster", "info", "-o", "json"))
    (broker,) = info["brokers"]
    assert f"{broker['host']}:{broker['port']}" == shared_broker.bootstrap
    assert broker["controller"]
    assert broker["leaders"] == broker["replicas"] == info["partitions"] >= 3
    assert (info["underReplicated"], info["withoutLeader"], info["unhealthyPartitions"]) == (0, 0, [])
    table = run("cluster", "info").stdout.decode()
    assert table.startswith(f"cluster {info['clusterId']}, 1 broker, controller {info['controller']}\n")
    assert "0 under-replicated, 0 without a leader" in table
    assert "partitions that lack" not in table


@pytest.fixture
def group(run: Run, topic: str) -> str:
    """A group that has read all ten records of the topic's partition 0, and has no members."""
    name = unique("resets")
    run("produce", topic, "--partition", "0", stdin=b"".join(b"%d\n" % number for number in range(10)))
    run("consume", topic, "--group", name)
    return name


def committed(run: Run, group: str) -> dict[int, int]:
    described = told(run("group", "describe", group, "-o", "json"))
    return {one["partition"]: one["committed"] for one in described["partitions"] if one["committed"] > 0}


def test_where_a_group_goes_on(run: Run, topic: str, group: str) -> None:
    reset = ("group", "reset", group)
    assert committed(run, group) == {0: 10}
    said = run(*reset, "--to-earliest", "--dry-run").stdout.decode()
    assert said.splitlines()[1].split() == [topic, "0", "10", "0"]
    assert committed(run, group) == {0: 10}
    assert "without a terminal" in run(*reset, "--to-earliest", status=2).stderr.decode()
    assert committed(run, group) == {0: 10}
    for target, expected in (
        (("--to-offset", "4"), {0: 4}),
        (("--shift-by", "3"), {0: 7}),
        (("--shift-by", "-2"), {0: 5}),
        (("--shift-by", "1000"), {0: 10}),
        (("--to-earliest",), {}),
        (("--to-datetime", "2001-02-03T04:05:06"), {}),
        (("--to-latest",), {0: 10}),
        (("--to-offset", "999"), {0: 10}),
        (("--to-datetime", "2999-01-01T00:00:00+02:00"), {0: 10}),
    ):
        run(*reset, *target, "--yes")
        assert committed(run, group) == expected, target
    run(*reset, "--to-offset", "8", "--yes")
    assert run("consume", topic, "--group", group).stdout == b"8\n9\n"
    done = told(run(*reset, "--to-offset", "1", "--topic", topic, "--yes", "-o", "json"))
    assert done["partitions"][0] == {"topic": topic, "partition": 0, "committed": 10, "offset": 1}


def test_a_reset_makes_a_group_where_a_topic_is_named(run: Run, topic: str) -> None:
    name = unique("new-group")
    run("group", "reset", name, "--to-latest", "--topic", topic, "--yes")
    assert name in run("group", "list").stdout.decode()
    run("group", "delete", name, "--yes")
    assert name not in run("group", "list").stdout.decode()


def test_a_group_is_deleted(run: Run, group: str) -> None:
    assert "could be deleted" in run("group", "delete", group, "--dry-run").stdout.decode()
    assert "without a terminal" in run("group", "delete", group, status=2).stderr.decode()
    assert committed(run, group) == {0: 10}
    assert told(run("group", "delete", group, "--yes", "-o", "json")) == {"groups": [group], "dryRun": False}
    assert 'there is no group "' in run("group", "describe", group, status=1).stderr.decode()


AT = ("t", 0)


@pytest.mark.parametrize(
    ("target", "committed_at", "by_time", "expected"),
    [
        (Target("earliest"), 5, -1, 3),
        (Target("latest"), 5, -1, 9),
        (Target("offset", 6), 5, -1, 6),
        (Target("offset", 1), 5, -1, 3),
        (Target("offset", 99), 5, -1, 9),
        (Target("shift", -1), 5, -1, 4),
        (Target("shift", -100), 5, -1, 3),
        (Target("shift", 100), 5, -1, 9),
        (Target("datetime", 1), 5, 7, 7),
        (Target("datetime", 1), 5, -1, 9),
    ],
)
def test_offsets_stay_within_what_a_partition_holds(
    target: Target, committed_at: int, by_time: int, expected: int
) -> None:
    assert choose([AT], target, {AT: committed_at}, {AT: (3, 9)}, {AT: by_time}) == {AT: expected}


def test_times_are_utc_unless_they_name_a_zone() -> None:
    for text, expected in (
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-02", 86_400_000),
    ):
        assert parse_datetime("--to-datetime", text) == expected
