"""Spark, Kafka Streams, Connect, MirrorMaker 2 and Kafka's tools log in over TLS, with the authorizer on.

Each has a user of its own way to log in, with the rights that its documentation lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream_harness.java import ROOT, fetched, java_command, run_kafka_tool, running
from millstream_harness.logins import (
    LoginBroker,
    Step,
    java_properties,
    login_broker,
    mirror_properties,
    prefixed,
    spark_options,
)
from millstream_harness.mirrormaker2 import MirrorMaker2Process
from millstream_harness.scenario import eventually
from millstream_harness.spark import as_configured, spark_session
from millstream_kafka.acl import AclOperation

GATEWAY = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.filterwarnings(GATEWAY)]

FOLDER = Path(__file__).parent / "frameworks"
JARS = ROOT / ".jars" / "frameworks"
ARRIVAL_S = 300.0
LINES = ["to be", "or not", "to be"]
OVER_TLS = ("scram-512", "certificate")
OWN = ("mm2-", "heartbeats", "source", "target")
"""Beginnings of the names of MirrorMaker 2's own topics and groups. It has a worker, with a group and topics of its
own, for the other direction as well, even if that is not enabled."""
OPERATIONS = (
    *(AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE),
    *(AclOperation.ALTER, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
)
Rights = Mapping[tuple[str, ...], tuple[AclOperation, ...]]
RIGHTS_AT_SOURCE: Rights = {OWN: OPERATIONS, (): (AclOperation.DESCRIBE_CONFIGS,)}
RIGHTS_AT_TARGET: Rights = {OWN: OPERATIONS, (): OPERATIONS}
"""Operations on what begins with these names, or with that of the mirrored topic."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginBroker]:
    with login_broker(tmp_path_factory.mktemp("frameworks")) as broker:
        yield broker


def write(broker: LoginBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.broker.bootstrap})
    for line in LINES:
        producer.produce(topic, line)
    assert producer.flush(30) == 0


def arrives(broker: LoginBroker, topic: str, expected: list[tuple[str | None, str]]) -> None:
    """Wait until the topic has exactly these keys and values."""
    config = {"bootstrap.servers": broker.broker.bootstrap, "group.id": "none", "log_level": 0}
    consumer = Consumer(config)
    found: list[tuple[str | None, str]] = []

    def more() -> list[tuple[str | None, str]]:
        for message in consumer.consume(100, timeout=0.5):
            key = message.key()
            found.append((None if key is None else key.decode(), (message.value() or b"").decode()))
        return found

    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        eventually(more, lambda now: len(now) >= len(expected), f"records of {topic}", ARRIVAL_S)
    finally:
        consumer.close()
    assert sorted(found, key=str) == sorted(expected, key=str)


def save(path: Path, properties: Mapping[str, str]) -> str:
    lines = (f"{key}={value}\n" for key, value in properties.items())
    path.write_text("".join(lines).replace("\\", "\\\\"))
    return str(path)


def named(broker: LoginBroker, login: str, name: str, scenario: str = "round-trip") -> Step:
    return broker.step(name, login, scenario)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as shared, as_configured(shared) as session:
        session.conf.set("spark.sql.shuffle.partitions", "1")
        yield session


def source(step: Step) -> dict[str, str]:
    return {
        **spark_options(step),
        "kafka.default.api.timeout.ms": "40000",
        "startingOffsets": "earliest",
    }


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())


@pytest.mark.parametrize("login", OVER_TLS)
def test_spark_reads_a_topic_at_once_and_as_a_stream(
    secured: LoginBroker, spark: SparkSession, login: str, tmp_path: Path
) -> None:
    step = named(secured, login, "spark")
    secured.create([step.topic])
    write(secured, step.topic)
    assert values(spark.read.format("kafka").options(**source(step)).load()) == sorted(LINES)

    def stream() -> list[str]:
        query = (
            spark.readStream.format("kafka")
            .options(**source(step))
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(200), "still running"
        return values(spark.read.parquet(str(tmp_path / "table")))

    assert stream() == sorted(LINES)
    write(secured, step.topic)
    assert stream() == sorted(LINES * 2)


@pytest.mark.parametrize(
    ("login", "scenario", "reason"),
    [
        ("scram-512", "wrong-credential", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("certificate", "wrong-credential", "SslAuthenticationException"),
        ("scram-512", "untrusted-ca", "SSL handshake failed"),
        ("scram-512", "forbidden-topic", "TopicAuthorizationException"),
    ],
)
def test_spark_reports_what_is_wrong(
    secured: LoginBroker, spark: SparkSession, login: str, scenario: str, reason: str
) -> None:
    step = named(secured, login, f"spark-{scenario}", scenario)
    if scenario != "forbidden-topic":
        secured.create([step.topic])
    with pytest.raises((Py4JJavaError, PySparkException), match=reason):
        values(spark.read.format("kafka").options(**source(step)).load())


def test_streams_counts_words(secured: LoginBroker, tmp_path: Path) -> None:
    step = named(secured, "scram-256", "streams")
    output = f"{step.topic}-counts"
    needed = (AclOperation.CREATE, AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS)
    secured.allow("scram-256", [step.group], *needed)
    secured.create([step.topic, output])
    write(secured, step.topic)
    properties = {
        **java_properties(step),
        "bootstrap.servers": step.bootstrap,
        "application.id": step.group,
        "state.dir": str(tmp_path / "state"),
        "commit.interval.ms": "100",
        "statestore.cache.max.bytes": "0",
    }
    arguments = (save(tmp_path / "streams.properties", properties), step.topic, output)
    command = java_command(str(FOLDER / "WordCount.java"), *arguments, classpath=f"{fetched(JARS)}/*")
    with running(command, tmp_path / "streams.log"):
        arrives(
            secured, output, [("to", "1"), ("be", "1"), ("or", "1"), ("not", "1"), ("to", "2"), ("be", "2")]
        )


def test_connect_writes_the_lines_of_a_file(secured: LoginBroker, tmp_path: Path) -> None:
    step = named(secured, "plain", "connect")
    secured.create([step.topic])
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{line}\n" for line in LINES))
    login = java_properties(step)
    worker = {
        **login,
        **prefixed("producer.", login),
        **prefixed("admin.", login),
        "bootstrap.servers": step.bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "listeners": "http://127.0.0.1:0",
        "plugin.discovery": "only_scan",
    }
    connector = {
        "name": "lines",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(lines),
        "topic": step.topic,
    }
    files = (save(tmp_path / "worker.properties", worker), save(tmp_path / "lines.properties", connector))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with running(java_command(main, *files, classpath=f"{fetched(JARS)}/*"), tmp_path / "connect.log"):
        arrives(secured, step.topic, [(None, line) for line in LINES])


@pytest.mark.parametrize("login", OVER_TLS)
def test_mirrormaker_2_logs_in_on_both_sides(secured: LoginBroker, login: str, tmp_path: Path) -> None:
    with ExitStack() as opened:
        (tmp_path / "target").mkdir()
        target = opened.enter_context(login_broker(tmp_path / "target"))
        here, there = (named(each, login, "mirror") for each in (secured, target))
        for broker, rights in ((secured, RIGHTS_AT_SOURCE), (target, RIGHTS_AT_TARGET)):
            for names, operations in rights.items():
                broker.allow(login, names or [here.topic], *operations)
        secured.create([here.topic])
        write(secured, here.topic)
        config = mirror_properties(here, there)
        mirror = MirrorMaker2Process(tmp_path / "mirror", here.bootstrap, there.bootstrap, config)
        opened.enter_context(mirror)
        admin = AdminClient({"bootstrap.servers": target.broker.bootstrap, "log_level": 0})
        eventually(
            lambda: here.topic in admin.list_topics(timeout=10).topics, bool, "the mirrored topic", ARRIVAL_S
        )
        arrives(target, here.topic, [(None, line) for line in LINES])


@pytest.mark.parametrize("login", ["plain", "scram-256"])
def test_kafkas_tools_write_read_and_report_a_wrong_password(
    secured: LoginBroker, login: str, tmp_path: Path
) -> None:
    right, wrong = (named(secured, login, "tools", each) for each in ("round-trip", "wrong-credential"))
    secured.create([right.topic])
    at = ("--bootstrap-server", right.bootstrap, "--topic", right.topic)
    config = ("--command-config", save(tmp_path / "right.properties", java_properties(right)))
    run_kafka_tool("console-producer", *at, *config, stdin="one\ntwo\n")
    reading = ("--from-beginning", "--max-messages", "2", "--group", right.group)
    assert run_kafka_tool("console-consumer", *at, *config, *reading).stdout.split() == ["one", "two"]
    config = ("--command-config", save(tmp_path / "wrong.properties", java_properties(wrong)))
    refused = run_kafka_tool("topics", "--list", *at[:2], *config, check=False)
    assert refused.returncode != 0
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
