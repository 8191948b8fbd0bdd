"""Kafka's own command-line tools: an administrator's day, by the tools' output."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from millstream_broker.replication.partition import Partition
from millstream_harness.background_loop import background_loop
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import formatter, is_before, reader, run_kafka_tool
from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import unique
from millstream_harness.transactions import write

pytestmark = pytest.mark.soak

Tool = Callable[..., str]
StartBroker = Callable[..., InProcessBroker]
LONG_AGO_MS = 1_700_000_000_000


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    """``tool("topics", "--list")``: the tool's output with our broker's address."""

    def call(name: str, *args: str, stdin: str | None = None) -> str:
        return run_kafka_tool(name, "--bootstrap-server", bootstrap, *args, stdin=stdin).stdout

    return call


@pytest.fixture
def topic(tool: Tool) -> str:
    """A topic of one partition that holds ten keyed records."""
    name = unique("tools")
    tool("topics", "--create", "--topic", name, "--partitions", "1", "--config", "segment.bytes=1048576")
    tool(
        "console-producer",
        "--topic",
        name,
        *reader("parse.key=true", "key.separator=|"),
        stdin="".join(f"key-{number}|value-{number}\n" for number in range(10)),
    )
    return name


def test_topics(tool: Tool) -> None:
    name = unique("tools-topics")
    assert f"Created topic {name}." in tool("topics", "--create", "--topic", name, "--partitions", "3")
    described = tool("topics", "--describe", "--topic", name)
    assert re.search(
        rf"Topic: {name}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 1", described
    )
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    tool("topics", "--alter", "--topic", name, "--partitions", "4")
    assert "PartitionCount: 4" in tool("topics", "--describe", "--topic", name)
    assert not tool("topics", "--describe", "--under-replicated-partitions", "--topic", name).strip()
    tool("topics", "--delete", "--topic", name)
    assert name not in tool("topics", "--list").split()


def test_configs(tool: Tool, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(
        "configs", "--alter", *entity, "--add-config", "retention.ms=1234567,cleanup.policy=[compact,delete]"
    )
    described = tool("configs", "--describe", *entity)
    assert "retention.ms=1234567" in described
    assert "cleanup.policy=compact,delete" in described
    assert "segment.bytes=1048576" in described
    tool("configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=1234567" not in tool("configs", "--describe", *entity)
    everything = tool("configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert re.search(r"^\s*log\.segment\.bytes=1073741824", everything, re.MULTILINE)


def test_consumer_groups(tool: Tool, topic: str) -> None:
    group = unique("tools-group")
    read = tool(
        "console-consumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10"
    )
    assert read.split() == [f"value-{number}" for number in range(10)]
    assert group in tool("consumer-groups", "--list").split()

    def described() -> list[str]:
        """Current offset, end offset and lag of the group's one partition."""
        lines = tool("consumer-groups", "--describe", "--group", group).splitlines()
        (row,) = [line.split() for line in lines if line.startswith(group)]
        return row[3:6]

    assert described() == ["10", "10", "0"]
    reset = ("consumer-groups", "--reset-offsets", "--group", group, "--topic", topic, "--execute")
    tool(*reset, "--to-offset", "4")
    assert described() == ["4", "10", "6"]
    tool(*reset, "--to-earliest")
    assert described() == ["0", "10", "10"]
    tool("consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    tool("consumer-groups", "--delete", "--group", group)
    assert group not in tool("consumer-groups", "--list").split()


@pytest.mark.skipif(is_before(4), reason="Kafka 3.9 does not have GroupsCommand")
def test_groups_by_type(tool: Tool, bootstrap: str) -> None:
    """ListGroups v5 (KIP-848): every group here is a classic one."""
    name = unique("tools-groups")
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, b"value")
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([name])
    while (message := consumer.poll(1)) is None or message.error():
        pass
    consumer.commit(asynchronous=False)
    consumer.close()

    def listed(*options: str) -> list[list[str]]:
        lines = tool("groups", "--list", *options).splitlines()
        return [line.split() for line in lines if line.startswith(name)]

    assert listed("--group-type", "classic") == [[name, "Classic", "consumer"]]
    assert listed("--group-type", "consumer") == []


def test_offsets_and_deleted_records(tool: Tool, topic: str, tmp_path: Path) -> None:
    assert f"{topic}:0:10" in tool("get-offsets", "--topic", topic).splitlines()
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}))
    assert "low_watermark: 3" in tool("delete-records", "--offset-json-file", str(plan))
    assert f"{topic}:0:3" in tool("get-offsets", "--topic", topic, "--time", "earliest").splitlines()
    read = tool(
        *("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "7"),
        *formatter("print.key=true", "print.offset=true"),
    )
    found = [line for line in read.splitlines() if line.startswith("Offset:")]
    assert found == [f"Offset:{number}\tkey-{number}\tvalue-{number}" for number in range(3, 10)]


def test_log_dirs_and_dump_log(tool: Tool, topic: str, compat_broker: InProcessBroker | KafkaProcess) -> None:
    said = tool("log-dirs", "--describe", "--topic-list", topic)
    (broker,) = json.loads(said.splitlines()[-1])["brokers"]
    (part,) = [part for folder in broker["logDirs"] for part in folder["partitions"]]
    assert (part["partition"], part["offsetLag"], part["isFuture"]) == (f"{topic}-0", 0, False)
    segment = compat_broker.data / f"{topic}-0" / "00000000000000000000.log"
    assert part["size"] == segment.stat().st_size
    dumped = run_kafka_tool(
        "dump-log", "--deep-iteration", "--print-data-log", "--verify-index-only", "--files", str(segment)
    ).stdout
    assert "isvalid: true" in dumped
    assert "isvalid: false" not in dumped
    assert "key: key-9 payload: value-9" in dumped


def test_verifiable_producer_and_consumer(tool: Tool) -> None:
    name, group, count = unique("tools-verifiable"), unique("verifiable"), "1000"
    tool("topics", "--create", "--topic", name, "--partitions", "2")
    produced = _events(tool("verifiable-producer", "--topic", name, "--max-messages", count, "--acks", "-1"))
    assert produced["tool_data"][0]["acked"] == int(count)
    consumed = _events(
        tool(
            *("verifiable-consumer", "--topic", name, "--group-id", group, "--max-messages", count),
            *("--reset-policy", "earliest"),
        )
    )
    assert sum(event["count"] for event in consumed["records_consumed"]) == int(count)
    assert all(event["success"] for event in consumed["offsets_committed"])


def _events(output: str) -> dict[str, list[dict[str, Any]]]:
    """The JSON lines that the verifiable tools print, by name."""
    events: dict[str, list[dict[str, Any]]] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            events.setdefault(event["name"], []).append(event)
    return events


def test_console_consumer_of_a_pattern(tool: Tool, topic: str) -> None:
    started = time.time()
    read = tool(
        *(
            "console-consumer",
            "--include",
            f"{topic}|none-{topic}",
            "--from-beginning",
            "--max-messages",
            "10",
        ),
        *formatter("print.timestamp=true", "print.partition=true"),
    )
    found = re.search(r"^CreateTime:(\d+)\tPartition:0\tvalue-0$", read, re.MULTILINE)
    assert found
    assert abs(int(found[1]) / 1000 - started) < 600


def test_api_versions_and_cluster_id(tool: Tool) -> None:
    said = tool("broker-api-versions")
    assert re.search(r"\(id: 1 rack: null( isFenced: false)?\) -> \(", said)  # since Kafka 4
    assert re.search(r"Produce\(0\): 0 to \d+", said)
    assert re.search(r"Cluster ID: \S+", run_kafka_tool("cluster", "cluster-id", *_bootstrap(said)).stdout)


def _bootstrap(said: str) -> tuple[str, str]:
    """The address that a broker reports for itself, in whichever line: a warning may come before it."""
    found = re.search(r"^(\S+) \(id: ", said, re.MULTILINE)
    assert found
    return "--bootstrap-server", found[1]


def test_end_to_end_latency(bootstrap: str, topic: str) -> None:
    said = run_kafka_tool("e2e-latency", bootstrap, topic, "200", "1", "100").stdout
    assert "Avg latency" in said
    assert "Percentiles: 50th" in said


def test_transactions(start_broker: StartBroker) -> None:
    broker = start_broker()

    def tool(*args: str) -> list[list[str]]:
        """The fields of each row, without the head."""
        said = run_kafka_tool("transactions", "--bootstrap-server", broker.bootstrap, *args).stdout
        return [line.split() for line in said.splitlines()[1:]]

    name, place = "tools-transactions", ("--topic", "tools-transactions", "--partition", "1")
    run_kafka_tool(
        "topics", "--bootstrap-server", broker.bootstrap, "--create", "--topic", name, "--partitions", "2"
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tools"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"v", partition=0)
    producer.flush()
    ((listed_id, coordinator, producer_id, state),) = tool("list")
    assert (listed_id, coordinator, state) == ("tools", "1", "Ongoing")
    (described,) = tool("describe", "--transactional-id", "tools")
    assert described[:6] == ["1", "tools", producer_id, "0", "Ongoing", "60000"]
    assert described[-1] == f"{name}-0"
    if not is_before(4, 1):
        assert tool("list", "--transactional-id-pattern", "to.*") == [
            [listed_id, coordinator, producer_id, state]
        ]
        assert tool("list", "--transactional-id-pattern", "to") == []

    partition = broker.on_loop.broker.replicas.partition(name, 1)
    background_loop().run(opened(partition, 4242))
    (producing,) = tool("describe-producers", *place)
    assert producing == ["4242", "0", "-1", "0", str(LONG_AGO_MS), "0"]
    assert [row[:6] for row in tool("find-hanging", "--broker-id", "1")] == [
        [name, "1", "4242", "0", "-1", "0"]
    ]
    tool("abort", *place, "--start-offset", "0")
    assert tool("find-hanging", "--broker-id", "1") == []
    ((*_, start),) = tool("describe-producers", *place)
    assert start == "None"

    if not is_before(4, 2):
        tool("forceTerminateTransaction", "--transactionalId", "tools")
        ((*_, state),) = tool("list")
        assert state == "Empty"  # it has begun as the producer's successor
        with pytest.raises(KafkaException) as fenced:
            producer.commit_transaction()
        assert fenced.value.args[0].code() == KafkaError._FENCED


async def opened(partition: Partition, producer_id: int) -> None:
    write(partition, producer_id, timestamp=LONG_AGO_MS)
