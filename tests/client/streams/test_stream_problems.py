"""Message streams without topics or brokers, and with options that are wrong."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any

import pytest

import millstream
from millstream.connection import ATTEMPTS_S
from millstream.consuming.stream import CLOSE_TIMEOUT_S
from millstream.errors import BadInput, UnknownTopic, Unreachable
from millstream.topics import create_topic, delete_topics
from millstream_harness.background_loop import background_loop
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique
from millstream_harness.streams import connect, fill

pytestmark = pytest.mark.soak

StartBroker = Callable[..., InProcessBroker]


def test_topics_that_do_not_exist(cluster: millstream.Cluster, topic: str) -> None:
    with connect(cluster) as connector:
        with pytest.raises(UnknownTopic, match='there is no topic "no-such"'):
            connector.create_message_streams({topic: 1, "no-such": 1})
        for topics, said in (
            ({}, "topics: empty"),
            ([topic], f"topics: \\['{topic}'\\] is not allowed: write"),
            (topic, f"topics: '{topic}' is not allowed: write"),
            ({topic: 0}, f"topics: 0 streams of {topic} are not allowed: write a number from 1"),
            ({topic: True}, "topics: True streams"),
            ({topic: 1001}, "topics: more than 1,000 streams"),
        ):
            with pytest.raises(BadInput, match=said):
                connector.create_message_streams(topics)


def test_a_topic_that_is_deleted_while_it_is_read(cluster: millstream.Cluster) -> None:
    name = unique("deleted")
    create_topic(cluster, name, partitions=1)
    fill(cluster, name, (3,))
    with connect(cluster, config={"topic.metadata.refresh.interval.ms": 200}) as connector:
        (stream,) = connector.create_message_streams({name: 1})[name]
        messages = iter(stream)
        assert len(list(islice(messages, 3))) == 3
        assert delete_topics(cluster, [name]) == {name: ""}
        with pytest.raises(UnknownTopic, match=f'there is no topic "{name}" any more'):
            next(messages)


def test_no_broker_is_said_within_seconds() -> None:
    assert sum(ATTEMPTS_S) < 10, "it waits no longer for an answer"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="no broker at"):
            millstream.connect(f"127.0.0.1:{held.getsockname()[1]}", group="g")


def add_to(seen: set[millstream.Position], stream: millstream.MessageStream, count: int) -> None:
    """Read until so many positions are seen, however long a broker takes to answer."""
    while len(seen) < count:
        with suppress(Unreachable):
            seen.add(next(iter(stream)).position)


def test_brokers_that_go_away(start_broker: StartBroker) -> None:
    """The stream raises after its time limit, and closing does not wait for a missing coordinator."""
    broker = start_broker()
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "orders", partitions=1)
    fill(cluster, "orders", (3,))
    connector = connect(cluster, unreachable_timeout_s=1)
    (stream,) = connector.create_message_streams({"orders": 1})["orders"]
    add_to(set(), stream, 3)
    messages = iter(stream)
    broker.kill()
    with pytest.raises(
        Unreachable, match=r"no broker at .* has answered for 1 s: start one, then iterate again"
    ):
        next(messages)
    assert CLOSE_TIMEOUT_S == 10
    connector.close()  # a close that waited for the coordinator would never end


@pytest.mark.parametrize("stop_s", [0.5, 1.0, 2.5])
def test_a_broker_that_is_paused(start_broker: StartBroker, stop_s: float) -> None:
    """Shorter than the session, as long, or longer: the stream is a member again, and nothing is skipped."""
    broker = start_broker({"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "orders", partitions=3)
    fill(cluster, "orders", (10, 10, 10))
    with connect(cluster, session_timeout_s=1, unreachable_timeout_s=1) as connector:
        (stream,) = connector.create_message_streams({"orders": 1})["orders"]
        seen: set[millstream.Position] = set()
        add_to(seen, stream, 10)
        with background_loop().held():
            time.sleep(stop_s)
        fill(cluster, "orders", (10, 10, 10))
        add_to(seen, stream, 60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": ""}, "group: '' is not allowed"),
        ({"group": "a/b"}, "group: 'a/b' is not allowed"),
        ({"coordination": "etcd"}, "coordination: 'etcd' is not allowed: write group, zookeeper"),
        ({"coordination": "zookeeper"}, "zookeeper: '' is not allowed with coordination='zookeeper'"),
        ({"zookeeper": "h:1"}, "zookeeper: 'h:1' is not allowed with coordination='group'"),
        (
            {"strategy": "fair"},
            "strategy: 'fair' is not allowed: write cooperative-sticky, range, roundrobin",
        ),
        ({"start": 7}, 'start: 7 is not allowed: write "earliest", "latest" or a datetime'),
        ({"start": datetime(2026, 1, 1)}, "start: 2026-01-01 00:00:00 has no time zone"),
        ({"session_timeout_s": 0}, "session_timeout_s: 0 is not allowed: write a number from 0.1 to 1,800"),
        (
            {"processing_timeout_s": 5},
            "processing_timeout_s: 5 is not allowed: write at least session_timeout_s (45)",
        ),
        (
            {"config": {"transactional.id": "t"}},
            "config: transactional.id is not allowed: a consumer has none: give it to the producer as transa",
        ),
        ({"config": {"group.id": "g"}}, "config: group.id is not allowed there: use the option group"),
        (
            {"commits": 1},
            "connect: got an unexpected keyword argument 'commits': the options are coordination, strategy",
        ),
        ({"value_deserializer": "json"}, "deserializer: 'json' is not allowed"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        millstream.connect("127.0.0.1:1", **{"group": "g", **options})
    assert str(refused.value).startswith(said)


def test_a_setting_that_librdkafka_does_not_know(cluster: millstream.Cluster, topic: str) -> None:
    with pytest.raises(BadInput, match=r'config: No such configuration property: "no\.such"'):
        connect(cluster, config={"no.such": 1}).create_message_streams({topic: 1})
