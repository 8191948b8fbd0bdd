"""Configuration: keys, values, their sources, and errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.config.config import (
    BrokerConfig,
    ConfigSource,
    TopicConfig,
    parse_listeners,
    parse_properties,
)
from millstream_broker.config.config_keys import BROKER_KEYS
from millstream_broker.config.config_types import ConfigError
from millstream_broker.config.topic_keys import TOPIC_KEYS
from millstream_broker.main import read_config
from millstream_broker.metadata.topic_logs import log_config

pytestmark = pytest.mark.process

COMMAND = str(Path(sys.executable).parent / "millstream-broker")


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# a comment\n! another\n a=1\nb : two words \nc 3\nd=x,\\\n   y\n\ne=\n"
    assert parse_properties(text) == {"a": "1", "b": "two words", "c": "3", "d": "x,y", "e": ""}


@given(
    st.dictionaries(
        st.from_regex(r"[a-z.]{1,20}", fullmatch=True), st.from_regex(r"[\w/:.]{0,20}", fullmatch=True)
    )
)
def test_properties_round_trip(values: dict[str, str]) -> None:
    assert parse_properties("\n".join(f"{key} = {value}" for key, value in values.items())) == values


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num.partition": "1"}, "num.partition: no such configuration key; did you mean num.partitions?"),
        ({"zzz": "1"}, "zzz: no such configuration key"),
        ({"num.partitions": "many"}, "many for configuration num.partitions: Not a number of type INT"),
        ({"num.partitions": "0"}, "0 for configuration num.partitions: Value must be at least 1"),
        ({"num.partitions": "99999999999"}, "for configuration num.partitions: Not a number of type INT"),
        ({"auto.create.topics.enable": "yes"}, "Expected value to be either true or false"),
        ({"log.cleaner.min.cleanable.ratio": "2"}, "Value must be no more than 1"),
        (
            {"log.cleanup.policy": "delete,shred"},
            "shred for configuration log.cleanup.policy: String must be one of: compact, delete",
        ),
        ({"num.partitions": "1_0"}, "1_0 for configuration num.partitions: Not a number of type INT"),
        ({"num.partitions": "\uff11"}, "for configuration num.partitions: Not a number of type INT"),
        ({"log.cleaner.min.cleanable.ratio": "nan"}, "Not a number of type DOUBLE"),
        ({"log.cleaner.min.cleanable.ratio": "0_1.5"}, "Not a number of type DOUBLE"),
        ({"log.cleanup.policy": "compact,"}, "Configuration 'log.cleanup.policy' values must not be empty."),
        ({"log.cleanup.policy": ","}, "Configuration 'log.cleanup.policy' values must not be empty."),
        ({"compression.type": "rar"}, "rar for configuration compression.type: String must be one of"),
        ({"compression.gzip.level": "0"}, "Value must be between 1 and 9 or equal to -1"),
    ],
)
def test_wrong_values_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        BrokerConfig(given)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("listeners", "said"),
    [
        ("nonsense", "expected NAME://HOST:PORT"),
        ("PLAINTEXT://host:99999", "expected NAME://HOST:PORT"),
        ("FOO://host:1", "FOO is not in listener.security.protocol.map"),
        ("PLAINTEXT://h:1,PLAINTEXT://h:2", "each listener needs its own name"),
        ("PLAINTEXT://h:1,INTERNAL://h:1", "each listener needs its own port"),
    ],
)
def test_wrong_listeners_are_named(listeners: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_listeners(BrokerConfig({"listeners": listeners}), "listeners")


def test_listeners_may_be_ipv6_and_without_host() -> None:
    config = BrokerConfig({"listeners": "PLAINTEXT://[::1]:9092,EXTERNAL://:9093"})
    assert [(one.host, one.port) for one in parse_listeners(config, "listeners")] == [
        ("::1", 9092),
        ("", 9093),
    ]


def test_every_default_is_allowed_and_documented() -> None:
    for key in [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]:
        assert key.doc
        assert key.default is None or key.rule is None or key.rule.problem(key.default) is None, key.name
        for synonym in key.synonyms:
            assert synonym.name in BROKER_KEYS


def test_topic_defaults_are_those_of_kafka() -> None:
    topic = TopicConfig(BrokerConfig(), {})
    assert topic["retention.ms"] == 604_800_000
    assert topic["segment.ms"] == 604_800_000
    assert topic["segment.bytes"] == 1_073_741_824
    assert topic["max.message.bytes"] == 1_048_588
    assert topic["cleanup.policy"] == ["delete"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("delete,delete", ["delete"]),
        ("compact, delete ,compact", ["compact", "delete"]),
        ("", []),
    ],
)
def test_each_cleanup_policy_counts_once(text: str, value: list[str]) -> None:
    config = BrokerConfig()
    topic = TopicConfig(config, {"cleanup.policy": text})
    assert topic["cleanup.policy"] == value
    logs = log_config(topic, config)
    assert (logs.deletes, logs.compacts, logs.keeps_all) == ("delete" in value, "compact" in value, not value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_wins(given: dict[str, str], expected: int) -> None:
    assert TopicConfig(BrokerConfig(given), {})["retention.ms"] == expected


def test_values_say_where_they_come_from() -> None:
    broker = BrokerConfig({"log.retention.minutes": "5"})
    broker = broker.with_dynamic({"log.retention.ms": "7"}, {})
    topic = TopicConfig(broker, {"retention.ms": "9"})
    entry = next(entry for entry in topic.describe() if entry.key.name == "retention.ms")
    assert (entry.value, entry.source) == ("9", ConfigSource.TOPIC)
    assert entry.synonyms == (
        ("retention.ms", "9", ConfigSource.TOPIC),
        ("log.retention.ms", "7", ConfigSource.DYNAMIC_CLUSTER),
        ("log.retention.minutes", "5", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )


def test_only_dynamic_keys_change_while_running() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs cannot be changed while the broker runs"):
        BrokerConfig().with_dynamic({}, {"log.dirs": "/elsewhere"})


def test_lags_of_compaction_must_fit_together() -> None:
    with pytest.raises(
        ConfigError,
        match=r"min\.compaction\.lag\.ms \(10\) > max\.compaction\.lag\.ms \(5\)",
    ):
        TopicConfig(BrokerConfig(), {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--override", "num.partition=1"],
            "num.partition: no such configuration key; did you mean num.partitions?",
        ),
        (["--override", "num.partitions"], "--override num.partitions: expected KEY=VALUE"),
        (["no-such-file.properties"], "no-such-file.properties: cannot be read: No such file or directory"),
        (
            ["--override", "zookeeper.connect=zk:port"],
            "zookeeper.connect=zk:port: port is not a port: expected HOST:PORT",
        ),
        (["--override", "listeners=SECURE://:1"], "the name SECURE is not in listener.security.protocol.map"),
        (["--override", "advertised.listeners=EXTERNAL://h:1"], "EXTERNAL is not among `listeners`"),
        (["--override", "http.listener=9404"], "http.listener=9404: expected HOST:PORT"),
        (
            ["--override", "log.dirs=${env:NO_SUCH_NAME}"],
            "log.dirs=${env:NO_SUCH_NAME}: there is no environment variable NO_SUCH_NAME",
        ),
        (
            ["--override", "broker.rack=${file:no-such-file:a}"],
            "broker.rack=${file:no-such-file:a}: no-such-file: cannot be read: No such file or directory",
        ),
        (["--override", "broker.rack=${file:a}"], "broker.rack=${file:a}: expected ${file:PATH:KEY}"),
        (
            ["--override", "broker.rack=${vault:a}"],
            "vault is not known: expected ${env:NAME} or ${file:PATH:KEY}",
        ),
    ],
)
def test_a_wrong_configuration_starts_nothing(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_of_several_files_the_last_wins_and_values_may_stand_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-297 and KIP-421. The value of a reference is used unchanged."""
    racks = tmp_path / "racks.properties"
    racks.write_text("node-1=${env:NOT_LOOKED_INTO}\n")
    shared, own = tmp_path / "server.properties", tmp_path / "broker-2.properties"
    shared.write_text("num.partitions=3\nlog.dirs=/shared\n")
    monkeypatch.setenv("HOST", "h-1")
    own.write_text(f"log.dirs=/${{env:HOST}}/own\nbroker.rack=${{file:{racks}:node-1}}\n")
    config = read_config([shared, own], ["num.partitions=5"])
    assert config["num.partitions"] == 5
    assert config["log.dirs"] == ["/h-1/own"]
    assert config["broker.rack"] == "${env:NOT_LOOKED_INTO}"
    own.write_text(f"broker.rack=${{file:{racks}:node-2}}\n")
    with pytest.raises(ConfigError, match=r"racks\.properties has no key node-2"):
        read_config([shared, own], [])
    jaas = 'PlainLoginModule required user_alice="secret of alice" user_bob="${env:NO_SUCH_NAME}";'
    own.write_text(f"listener.name.plaintext.plain.sasl.jaas.config={jaas}\n")
    with pytest.raises(ConfigError) as error:
        read_config([shared, own], [])
    assert "there is no environment variable NO_SUCH_NAME" in str(error.value)
    assert "secret" not in str(error.value)


def test_the_default_file_of_the_image_is_valid() -> None:
    path = Path(__file__).parents[3] / "broker-image" / "server.properties"
    text = path.read_text()
    given = parse_properties(text)
    commented = parse_properties(
        "\n".join(line[1:] for line in text.splitlines() if re.match(r"#[a-z.]+=", line))
    )
    BrokerConfig({**commented, **given, "zookeeper.connect": ""})
