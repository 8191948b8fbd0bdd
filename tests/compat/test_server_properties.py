"""A server.properties written for Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_keys import BROKER_KEYS
from millstream_broker.config.config_types import ConfigError, as_text
from millstream_broker.config.kafka_only_keys import why_without_effect
from millstream_harness.configuration_document import (
    DIFFERENT,
    NEWER,
    OF_THE_AUTHORIZER,
    OLDER,
    OURS,
)
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import KAFKA_VERSION, PEER_VERSION, java_command, run
from millstream_harness.wire import Wire

pytestmark = pytest.mark.process

OF_KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "7",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "num.network.threads": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.check.interval.ms": "300000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "delegation.token.max.lifetime.ms": "1000",
}
READ_BEFORE = ("node.id", "config.providers")
"""Another name for broker.id, and what resolves the file's variables."""
of_the_peer = pytest.mark.skipif(
    KAFKA_VERSION != PEER_VERSION, reason="the keys are those of another release"
)


@of_the_peer
def test_each_of_kafkas_keys_is_known(kafka_jars: Path) -> None:
    done = run(java_command(str(Path(__file__).parent / "java" / "BrokerKeys.java")))
    keys = done.stdout.split()
    assert len(keys) > 300
    strange = [
        key
        for key in keys
        if key not in BROKER_KEYS and key not in READ_BEFORE and not why_without_effect(key)
    ]
    assert strange == []


@of_the_peer
def test_the_reference_names_each_key_that_differs_from_kafkas(kafka_jars: Path) -> None:
    done = run(java_command(str(Path(__file__).parent / "java" / "BrokerDefaults.java")))
    theirs = {
        name: (default, mode)
        for name, default, mode in (line.split("\t") for line in done.stdout.splitlines())
    }
    different, missing = set(), set()
    for key in BROKER_KEYS.values():
        if key.name not in theirs:
            missing.add(key.name)
        elif not key.inert:
            default, mode = theirs[key.name]
            same = (as_text(key.default) or "null") == (default or "null") and key.dynamic == (
                mode == "dynamic"
            )
            different |= set() if same else {key.name}
    of_theirs = {name for name in DIFFERENT if name in theirs}
    assert different - {"advertised.listeners"} == of_theirs, "advertised.listeners is unset in both"
    assert missing == {*OURS, *OLDER, *NEWER, *OF_THE_AUTHORIZER}


def test_no_key_that_means_something_is_set_aside() -> None:
    assert [key for key in BROKER_KEYS if why_without_effect(key) and not BROKER_KEYS[key].inert] == []


def test_a_broker_starts_with_them_and_says_what_has_no_effect(
    start_broker: Callable[..., InProcessBroker],
) -> None:
    broker = start_broker(OF_KRAFT)
    said = broker.said()
    assert "ready: broker.id=7 " in said
    assert "process.roles has no effect: ZooKeeper coordinates, not KRaft" in said
    assert "authorizer.class.name" not in said
    assert (
        "delegation.token.max.lifetime.ms has no effect: there are no delegation tokens, and no Kerberos"
        in said
    )
    assert "num.network.threads has no effect: this broker has nothing for it to tune" in said
    assert "log.retention.check.interval.ms" not in said
    with Wire(broker.bootstrap) as wire:
        wire.create("works")


def test_a_typing_error_is_still_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"log\.retention\.hour: no such .*did you mean log\.retention\.hours"
    ):
        BrokerConfig({"log.retention.hour": "1"})


def test_both_names_of_the_brokers_number_agree() -> None:
    assert BrokerConfig({"node.id": "3"}).integer("broker.id") == 3
    assert BrokerConfig({"node.id": "3", "broker.id": "3"}).integer("broker.id") == 3
    with pytest.raises(ConfigError, match=r"node\.id=3 and broker\.id=4: expected one of them"):
        BrokerConfig({"node.id": "3", "broker.id": "4"})
