"""Contradictory settings are refused; if they are stored already, the broker continues and reports them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from millstream_broker.config.config import BrokerConfig
from millstream_broker.coordination import TopicRecord, tree
from millstream_broker.metadata.effective_configs import EffectiveConfigs
from millstream_harness.broker import BrokerProcess
from millstream_harness.coordination_file import put
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol import (
    alter_configs,
    create_topics,
    describe_configs,
    incremental_alter_configs,
)
from millstream_kafka.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

pytestmark = pytest.mark.process

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
MIN, MAX = "min.compaction.lag.ms", "max.compaction.lag.ms"
BROKER_MIN, BROKER_MAX = f"log.cleaner.{MIN}", f"log.cleaner.{MAX}"
NEVER = str(2**63 - 1)

Store = Callable[[str, Mapping[str, object] | bytes], None]


@dataclass(frozen=True)
class Subject:
    """A broker, and a way to write an entity's configuration (`topics/T`, `brokers/1`) behind its back."""

    broker: InProcessBroker
    store: Store
    notices: bool
    """Whether the broker notices while it runs."""


@pytest.fixture(params=["file", "ZooKeeper"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, shared_zookeeper: ZooKeeperProcess
) -> Iterator[Subject]:
    broker = InProcessBroker(tmp_path)
    if request.param == "file":
        with broker:
            yield Subject(broker, lambda entity, config: _store_in_file(broker, entity, config), False)
        return
    connect = shared_zookeeper.own_tree()
    broker.config |= {"zookeeper.connect": connect, "offsets.topic.replication.factor": "1"}
    client = KazooClient(connect)
    with broker:
        client.start()
        try:
            yield Subject(broker, lambda entity, config: _store_in_zookeeper(client, entity, config), True)
        finally:
            client.stop()
            client.close()


def _store_in_file(broker: InProcessBroker, entity: str, config: Mapping[str, object] | bytes) -> None:
    """Works only while the broker is down."""
    put(broker.data, tree.config_path(entity), _stored(config))


def _stored(config: Mapping[str, object] | bytes) -> bytes:
    return config if isinstance(config, bytes) else json.dumps({"version": 1, "config": config}).encode()


def _store_in_zookeeper(client: KazooClient, entity: str, config: Mapping[str, object] | bytes) -> None:
    data, path = _stored(config), tree.config_path(entity)
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data)
    client.create(tree.CONFIG_CHANGE, tree.config_change_json(entity), sequence=True)


def create(wire: Wire, name: str, **config: str) -> tuple[int, str | None]:
    configs = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()]
    request = CreateTopicsRequest([CreatableTopic(name, 1, 1, configs=configs)], 15_000)
    (answer,) = wire.call(create_topics.API, 7, request).topics
    return answer.error_code, answer.error_message


def changed(
    kind: int, name: str, *changes: tuple[str, int, str | None]
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    return incremental_alter_configs.IncrementalAlterConfigsRequest([resource])


def alter(wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str]:
    (answer,) = wire.call(incremental_alter_configs.API, 1, changed(kind, name, *changes)).responses
    return answer.error_code, answer.error_message or ""


def replace(wire: Wire, kind: int, name: str, **config: str) -> tuple[int, str]:
    configs = [alter_configs.AlterableConfig(key.replace("_", "."), value) for key, value in config.items()]
    resource = alter_configs.AlterConfigsResource(kind, name, configs)
    (answer,) = wire.call(alter_configs.API, 2, alter_configs.AlterConfigsRequest([resource])).responses
    return answer.error_code, answer.error_message or ""


def values(wire: Wire, kind: int, name: str) -> dict[str, str | None]:
    asked = describe_configs.DescribeConfigsResource(kind, name)
    answer = wire.call(describe_configs.API, 4, describe_configs.DescribeConfigsRequest([asked]))
    assert answer.results[0].error_code == 0, answer.results[0].error_message
    return {config.name: config.value for config in answer.results[0].configs}


def works(wire: Wire, *topics: str) -> None:
    """Check that these topics accept records, and that more can be created."""
    for name in topics:
        assert wire.produce(name, [record("x")]).error_code == 0
    assert create(wire, f"after-{len(topics)}-{wire.socket.getsockname()[1]}") == (0, None)


def test_what_contradicts_a_topic_is_refused(subject: Subject) -> None:
    broker = subject.broker
    with Wire(broker.bootstrap) as wire:
        assert create(wire, "lags", min_compaction_lag_ms="100000") == (0, None)
        for who in ("", "1"):
            for code, said in (
                alter(wire, BROKER, who, (BROKER_MAX, SET, "50000")),
                replace(wire, BROKER, who, log_cleaner_max_compaction_lag_ms="50000"),
            ):
                assert ErrorCode.of(code) is ErrorCode.INVALID_CONFIG
                assert f"topic lags: conflict topic config setting {MIN} (100000) > {MAX} (50000)" in said
        # The other way round: a default that no topic contradicts yet.
        assert alter(wire, BROKER, "", (BROKER_MAX, SET, "200000")) == (0, "")
        for code, said in (
            alter(wire, TOPIC, "lags", (MIN, SET, "300000")),
            replace(wire, TOPIC, "lags", min_compaction_lag_ms="300000"),
            create(wire, "other", min_compaction_lag_ms="300000"),
        ):
            assert ErrorCode.of(code) is ErrorCode.INVALID_CONFIG
            assert f"{MIN} (300000) > {MAX} (200000)" in str(said)
        works(wire, "lags")
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert values(wire, TOPIC, "lags")[MIN] == "100000"
        works(wire, "lags")


def test_a_deleted_key_may_contradict_too(subject: Subject) -> None:
    broker = subject.broker
    broker.config[BROKER_MAX] = "50000"
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert alter(wire, BROKER, "", (BROKER_MAX, SET, "200000")) == (0, "")
        assert create(wire, "lags", min_compaction_lag_ms="100000") == (0, None)
        for code, said in (alter(wire, BROKER, "", (BROKER_MAX, DELETE, None)), replace(wire, BROKER, "")):
            assert ErrorCode.of(code) is ErrorCode.INVALID_CONFIG
            assert "topic lags: " in said
        assert alter(wire, TOPIC, "lags", (MAX, SET, "150000")) == (0, "")
        assert alter(wire, BROKER, "", (BROKER_MAX, DELETE, None)) == (0, "")
        code, said = alter(wire, TOPIC, "lags", (MAX, DELETE, None))
        assert ErrorCode.of(code) is ErrorCode.INVALID_CONFIG
        assert f"{MIN} (100000) > {MAX} (50000)" in said


def test_settings_of_brokers_are_checked_together(subject: Subject) -> None:
    with Wire(subject.broker.bootstrap) as wire:
        code, said = alter(wire, BROKER, "", (BROKER_MIN, SET, "10"), (BROKER_MAX, SET, "5"))
        assert ErrorCode.of(code) is ErrorCode.INVALID_CONFIG
        assert f"{BROKER_MIN}=10: expected no more than {BROKER_MAX}=5" in said
        assert alter(wire, BROKER, "1", (BROKER_MIN, SET, "100")) == (0, "")
        code, said = alter(wire, BROKER, "", (BROKER_MAX, SET, "50"))
        assert ErrorCode.of(code) is ErrorCode.INVALID_CONFIG
        assert alter(wire, BROKER, "1", (BROKER_MIN, SET, "100"), (BROKER_MAX, SET, "200")) == (0, "")
        assert alter(wire, BROKER, "", (BROKER_MAX, SET, "50")) == (0, "")
    subject.broker.restart()


def test_of_changes_at_the_same_time_none_is_lost_and_none_contradicts(subject: Subject) -> None:
    with Wire(subject.broker.bootstrap) as one, Wire(subject.broker.bootstrap) as two:
        for number in range(10):
            name = f"t{number}"
            assert create(one, name) == (0, None)
            for wire, key in ((one, "retention.ms"), (two, "segment.bytes")):
                wire.send(incremental_alter_configs.API, 1, changed(TOPIC, name, (key, SET, "1000")))
            assert [wire.receive().responses[0].error_code for wire in (one, two)] == [0, 0]
            found = values(one, TOPIC, name)
            assert (found["retention.ms"], found["segment.bytes"]) == ("1000", "1000")
            one.send(incremental_alter_configs.API, 1, changed(TOPIC, name, (MIN, SET, "100")))
            two.send(incremental_alter_configs.API, 1, changed(BROKER, "", (BROKER_MAX, SET, "50")))
            codes = [wire.receive().responses[0].error_code for wire in (one, two)]
            assert sorted(codes) == [0, ErrorCode.INVALID_CONFIG]
            assert alter(one, TOPIC, name, (MIN, DELETE, None)) == (0, "")
            assert alter(one, BROKER, "", (BROKER_MAX, DELETE, None)) == (0, "")
            config = CreatableTopicConfig(MIN, "100")
            created = CreatableTopic(f"u{number}", 1, 1, configs=[config])
            one.send(create_topics.API, 7, CreateTopicsRequest([created], 15_000))
            two.send(incremental_alter_configs.API, 1, changed(BROKER, "", (BROKER_MAX, SET, "50")))
            codes = [one.receive().topics[0].error_code, two.receive().responses[0].error_code]
            assert sorted(codes) == [0, ErrorCode.INVALID_CONFIG]
            alter(one, TOPIC, f"u{number}", (MIN, DELETE, None))
            assert alter(one, BROKER, "", (BROKER_MAX, DELETE, None)) == (0, "")


def test_a_file_that_changes_between_starts_stops_no_broker(subject: Subject) -> None:
    broker = subject.broker
    with Wire(broker.bootstrap) as wire:
        assert create(wire, "lags", min_compaction_lag_ms="100000", retention_ms="7000") == (0, None)
        assert alter(wire, BROKER, "", (BROKER_MIN, SET, "70000"), ("log.retention.ms", SET, "5")) == (0, "")
    broker.config[BROKER_MAX] = "50000"
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        found = eventually(
            lambda: values(wire, TOPIC, "lags"), lambda all: all["retention.ms"] == "7000", "lags is followed"
        )
        assert (found[MIN], found[MAX]) == ("0", "50000")
        assert values(wire, BROKER, "1")["log.retention.ms"] == "5"
        works(wire, "lags")
        # Unaffected settings can still be changed, and the contradiction resolved.
        assert alter(wire, BROKER, "", ("log.retention.ms", SET, "6")) == (0, "")
        assert alter(wire, TOPIC, "lags", (MIN, SET, "40000")) == (0, "")
        assert values(wire, TOPIC, "lags")[MIN] == "40000"
    said = broker.said()
    conflict = f"conflict topic config setting {MIN} (100000) > {MAX} (50000)"
    stored = f"topic lags: the stored settings {MIN}=100000 cannot be used: {conflict}; in use: {MIN}=0, {MAX}=50000"
    assert said.count(stored) == 1
    assert f"{BROKER_MIN}=70000: expected no more than {BROKER_MAX}=50000" in said


GARBAGE: list[tuple[str, Mapping[str, object], str]] = [
    ("topics/odd", {"no.such.key": "1", "segment.bytes": "2000"}, "Unknown topic config name: no.such.key"),
    ("topics/odd", {"retention.ms": "soon", "segment.bytes": "2000"}, "Invalid value soon for configuration"),
    ("topics/odd", {MIN: "9", MAX: "5", "segment.bytes": "2000"}, f"{MIN} (9) > {MAX} (5)"),
    ("topics/odd", {"min.insync.replicas": "x", "segment.bytes": "2000"}, "Invalid value x"),
    ("brokers/<default>", {"no.such.key": "1", "log.segment.bytes": "2000"}, "no.such.key: no such"),
    ("brokers/<default>", {"log.retention.ms": "x", "log.segment.bytes": "2000"}, "Invalid value x"),
    ("brokers/1", {"broker.id": "7", "log.segment.bytes": "2000"}, "broker.id cannot be changed"),
    (
        "brokers/1",
        {BROKER_MIN: "9", BROKER_MAX: "5", "log.segment.bytes": "2000"},
        f"{BROKER_MIN}=9: expected",
    ),
    ("brokers/<default>", {"min.insync.replicas": "x", "log.segment.bytes": "2000"}, "Invalid value x"),
]


@pytest.mark.parametrize(("entity", "config", "said"), GARBAGE)
def test_a_broker_starts_with_whatever_is_stored(
    subject: Subject, entity: str, config: Mapping[str, object], said: str
) -> None:
    """It uses the valid part."""
    with Wire(subject.broker.bootstrap) as wire:
        assert create(wire, "odd") == (0, None)
    subject.broker.stop()
    subject.store(entity, config)
    subject.broker.start()
    with Wire(subject.broker.bootstrap) as wire:
        found = eventually(
            lambda: values(wire, TOPIC, "odd"), lambda all: all["segment.bytes"] == "2000", "odd is followed"
        )
        assert (found["retention.ms"], found[MIN], found[MAX]) == ("604800000", "0", NEVER)
        values(wire, BROKER, "")
        works(wire, "odd")
    assert said in subject.broker.said()


@pytest.mark.parametrize("config", [b"no JSON \xff", b"[" * 100_000, b'{"config": 7}'])
@pytest.mark.parametrize("entity", ["topics/odd", "brokers/<default>"])
def test_broken_json_in_zookeeper_stops_nobody(
    tmp_path: Path, shared_zookeeper: ZooKeeperProcess, entity: str, config: bytes
) -> None:
    """Neither a running broker, nor a starting one, nor later notifications."""
    connect = shared_zookeeper.own_tree()
    client = KazooClient(connect)
    with InProcessBroker(tmp_path, {"zookeeper.connect": connect}) as broker:
        client.start()
        with Wire(broker.bootstrap) as wire:
            assert create(wire, "odd", retention_ms="7000") == (0, None)
            assert create(wire, "next") == (0, None)
            assert alter(wire, BROKER, "", ("log.segment.bytes", SET, "2000")) == (0, "")
            _store_in_zookeeper(client, entity, config)
            _store_in_zookeeper(client, "topics/next", {"retention.ms": "8000"})
            eventually(
                lambda: values(wire, TOPIC, "next")["retention.ms"],
                lambda value: value == "8000",
                "notes are read",
            )
            assert values(wire, TOPIC, "odd")["retention.ms"] == "7000"
            assert values(wire, TOPIC, "odd")["segment.bytes"] == "2000"
            works(wire, "odd", "next")
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            works(wire, "odd", "next")
            assert alter(wire, TOPIC, "odd", ("retention.ms", SET, "9000")) == (0, "")
            assert values(wire, TOPIC, "odd")["retention.ms"] == "9000"
        client.stop()
        client.close()


def test_what_somebody_writes_behind_a_brokers_back_leaves_the_last_valid_values(
    tmp_path: Path, shared_zookeeper: ZooKeeperProcess
) -> None:
    connect = shared_zookeeper.own_tree()
    client = KazooClient(connect)
    with InProcessBroker(tmp_path, {"zookeeper.connect": connect}) as broker, Wire(broker.bootstrap) as wire:
        client.start()
        assert create(wire, "t", min_compaction_lag_ms="100", retention_ms="7000") == (0, None)
        segment_bytes = iter(range(2000, 3000))

        def followed(entity: str, **config: str) -> dict[str, str | None]:
            size = str(next(segment_bytes))
            key = "segment.bytes" if entity.startswith("topics") else "log.segment.bytes"
            _store_in_zookeeper(
                client, entity, {**{k.replace("_", "."): v for k, v in config.items()}, key: size}
            )
            return eventually(
                lambda: values(wire, TOPIC, "t"),
                lambda all: all["segment.bytes"] == size,
                f"{entity} is followed",
            )

        found = followed("brokers/<default>", log_cleaner_max_compaction_lag_ms="50")
        assert (found[MIN], found[MAX]) == ("100", NEVER)
        found = followed("brokers/<default>", log_cleaner_max_compaction_lag_ms="200", log_retention_ms="x")
        assert (found[MIN], found[MAX]) == ("100", "200")
        found = followed("topics/t", min_compaction_lag_ms="300", retention_ms="never")
        assert (found[MIN], found[MAX], found["retention.ms"]) == ("100", "200", "7000")
        works(wire, "t")
        client.stop()
        client.close()


def test_a_file_that_contradicts_itself_starts_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {BROKER_MIN: "10", BROKER_MAX: "5"})
    ended = subprocess.run(broker.command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == f"millstream-broker: {BROKER_MIN}=10: expected no more than {BROKER_MAX}=5\n"


async def test_brokers_with_settings_of_their_own_are_checked_too() -> None:
    """A topic must suit every broker, and the cluster's settings each broker's own."""
    configs = EffectiveConfigs(BrokerConfig(), 1)
    configs.follow({None: {}, 2: {BROKER_MAX: "50"}})
    with pytest.raises(ApiError, match=r"> max\.compaction\.lag\.ms \(50\) \(broker 2\)"):
        configs.check_topic("t", {MIN: "100"})
    with pytest.raises(ApiError, match=r"expected no more than .*=50 \(broker 2\)"):
        configs.check_broker(None, {BROKER_MIN: "60"}, [])
    topic = TopicRecord("t", ZERO_UUID, (), {MIN: "40"})
    with pytest.raises(ApiError, match=r"topic t: .* \(broker 2\)"):
        configs.check_broker(2, {BROKER_MAX: "30"}, [topic])
    configs.check_broker(2, {}, [topic])


async def test_what_is_known_of_a_topic_goes_with_it() -> None:
    """A later topic of that name has no last valid values."""
    configs = EffectiveConfigs(BrokerConfig(), 1)
    first = TopicRecord("t", ZERO_UUID, (), {MIN: "100"})
    assert configs.of(first)[MIN] == 100
    configs.keep({})
    configs.follow({None: {BROKER_MAX: "50"}})
    assert configs.of(TopicRecord("t", ZERO_UUID, (), {MIN: "100"}))[MIN] == 0
