"""`millstream.Admin` with a real broker: topics, groups, configuration, and refused input."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import millstream
from millstream.connection import failed
from millstream.errors import BadInput, Failed, UnknownGroup, UnknownTopic, Unreachable
from millstream.groups import commit_offsets
from millstream.resets import Move
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

BEGIN_MS = 1_700_000_000_000
"""Time of a topic's first record; each later one is a second younger."""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("DescribeGroups: no coordinator\nsecond line", "DescribeGroups: no coordinator"),
        ("ConsumerGroupDescribe: ", "ConsumerGroupDescribe: COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_an_error_is_one_line_with_a_reason(said: str, words: str) -> None:
    error = KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, said)
    assert str(failed(KafkaException(error))) == words


@pytest.fixture
def admin(shared_broker: InProcessBroker) -> millstream.Admin:
    return millstream.Admin(shared_broker.bootstrap)


@pytest.fixture
def topic(admin: millstream.Admin) -> str:
    """Three partitions, the first two of which have ten records."""
    name = unique("admin")
    admin.create_topic(name, partitions=3)
    with millstream.Producer(admin.cluster) as producer:
        for number in range(20):
            producer.send(name, b"a", partition=number % 2, timestamp=BEGIN_MS + number // 2 * 1000)
    return name


@pytest.fixture
def group(admin: millstream.Admin, topic: str) -> str:
    """A group with commits in the first two partitions."""
    name = unique("admin")
    commit_offsets(admin.cluster, name, {(topic, 0): 3, (topic, 1): 12})
    return name


def test_a_topic_from_creation_to_deletion(admin: millstream.Admin) -> None:
    name = unique("admin")
    given: dict[str, Any] = {"partitions": 2, "replication_factor": 1, "config": {"retention.ms": "3600000"}}
    admin.create_topic(name, **given, validate_only=True)
    assert name not in [one.name for one in admin.list_topics()]
    admin.create_topic(name, **given)
    (listed,) = [one for one in admin.list_topics() if one.name == name]
    assert (listed.partitions, listed.replication_factor) == (2, 1)
    described = admin.describe_topic(name)
    assert (described.name, described.config) == (name, {"retention.ms": "3600000"})
    assert [(one.partition, one.earliest, one.latest) for one in described.partitions] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    assert all(one.replicas == one.isr == (one.leader,) for one in described.partitions)

    change: dict[str, Any] = {"partitions": 4, "set_configs": {"segment.ms": "1000"}}
    admin.alter_topic(name, **change, delete_configs=["retention.ms"], validate_only=True)
    assert admin.describe_topic(name) == described
    admin.alter_topic(name, **change, delete_configs=["retention.ms"])
    altered = admin.describe_topic(name)
    assert (altered.topic_id, len(altered.partitions)) == (described.topic_id, 4)
    assert altered.config == {"segment.ms": "1000"}

    admin.delete_topic(name)
    with pytest.raises(UnknownTopic, match=f'there is no topic "{name}"'):
        admin.delete_topic(name)
    admin.create_topic(name)
    assert admin.describe_topic(name).topic_id != described.topic_id
    admin.delete_topic(name)


def test_offsets_of_a_topic(admin: millstream.Admin, topic: str) -> None:
    assert admin.offsets(topic) == {0: (0, 10), 1: (0, 10), 2: (0, 0)}


def test_internal_topics_are_listed_when_they_are_wanted(admin: millstream.Admin, group: str) -> None:
    assert "__consumer_offsets" not in [one.name for one in admin.list_topics()]
    assert "__consumer_offsets" in [one.name for one in admin.list_topics(internal=True)]


def test_topics_that_are_refused(admin: millstream.Admin, topic: str) -> None:
    before = admin.describe_topic(topic)
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: admin.create_topic(topic), Failed, f"topic {topic} cannot be created: .*exist"),
        (lambda: admin.create_topic("a/b"), Failed, "topic a/b cannot be created: "),
        (lambda: admin.create_topic(""), BadInput, "topic: '' is not allowed"),
        (lambda: admin.create_topic(unique("r"), replication_factor=9), Failed, "cannot be created: .*9"),
        (lambda: admin.create_topic(unique("r"), config={"no.such": "1"}), Failed, "no.such"),
        (lambda: admin.create_topic(unique("r"), partitions=0), BadInput, "partitions: 0 is not allowed"),
        (lambda: admin.create_topic(unique("r"), partitions="4"), BadInput, "partitions: '4' is not"),  # type: ignore[arg-type]
        (
            lambda: admin.create_topic(unique("r"), replication_factor=True),
            BadInput,
            "replication_factor: True",
        ),
        (lambda: admin.create_topic(unique("r"), config={"retention.ms": 5}), BadInput, "retention.ms: 5 is"),  # type: ignore[dict-item]
        (
            lambda: admin.alter_topic(topic, partitions=3),
            BadInput,
            f"{topic} has 3, and partitions can only be",
        ),
        (lambda: admin.alter_topic(topic, partitions="9"), BadInput, "partitions: '9' is not allowed"),  # type: ignore[arg-type]
        (
            lambda: admin.alter_topic(topic, partitions=5, set_configs={"retention.ms": "soon"}),
            Failed,
            f"the configuration of topic {topic} cannot be changed: .*retention.ms",
        ),
        (
            lambda: admin.alter_topic(topic, set_configs={"segment.ms": "1"}, delete_configs=["segment.ms"]),
            BadInput,
            "segment.ms is both set and reset: choose one",
        ),
    ]
    for call, kind, said in refused:
        with pytest.raises(kind, match=said):
            call()
    assert admin.describe_topic(topic) == before
    gone = unique("gone")
    unknown: list[Callable[[str], object]] = [
        admin.describe_topic, admin.alter_topic, admin.delete_topic, admin.offsets, admin.topic_config
    ]  # fmt: skip
    for of in unknown:
        with pytest.raises(UnknownTopic, match=f'there is no topic "{gone}"'):
            of(gone)


def test_a_group_from_its_first_commit_to_its_deletion(
    admin: millstream.Admin, topic: str, group: str
) -> None:
    assert (group, "Empty") in [(one.group, one.state) for one in admin.list_groups()]
    described = admin.describe_group(group)
    assert (described.state, described.members, described.lag) == ("Empty", (), 7)
    assert [(one.partition, one.committed, one.latest, one.lag) for one in described.partitions] == [
        (0, 3, 10, 7), (1, 12, 10, 0),
    ]  # fmt: skip
    assert admin.committed(group) == {(topic, 0): 3, (topic, 1): 12}
    admin.delete_group(group)
    assert admin.committed(group) == {}
    with pytest.raises(UnknownGroup, match=f'there is no group "{group}"'):
        admin.describe_group(group)
    with pytest.raises(UnknownGroup):
        admin.delete_group(group)


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", (0, 0)),
        ("latest", (10, 10)),
        (5, (5, 5)),
        (10**9, (10, 10)),
        (datetime.fromtimestamp(BEGIN_MS / 1000 + 3.5, UTC), (4, 4)),
        (datetime(2100, 1, 1, tzinfo=UTC), (10, 10)),
    ],
)
def test_where_a_group_continues(
    admin: millstream.Admin, topic: str, group: str, to: Any, offsets: tuple[int, int]
) -> None:
    moves = [Move(topic, 0, 3, offsets[0]), Move(topic, 1, 12, offsets[1])]
    assert admin.reset_group(group, to, dry_run=True) == moves
    assert admin.committed(group) == {(topic, 0): 3, (topic, 1): 12}
    assert admin.reset_group(group, to) == moves
    assert admin.committed(group) == {(topic, 0): offsets[0], (topic, 1): offsets[1]}


def test_a_reset_of_named_topics_only(admin: millstream.Admin, topic: str, group: str) -> None:
    other = unique("admin")
    admin.create_topic(other, partitions=1)
    assert admin.reset_group(group, "latest", topics=[other]) == [Move(other, 0, -1, 0)]
    assert admin.committed(group) == {(topic, 0): 3, (topic, 1): 12, (other, 0): 0}


def test_groups_that_are_refused(admin: millstream.Admin, topic: str, group: str) -> None:
    for to in (-1, "soon", True, 1.5, None):
        with pytest.raises(BadInput, match=f"to: {to!r} is not allowed: write an offset"):
            admin.reset_group(group, to)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="to: 2026-01-01 00:00:00 has no time zone"):
        admin.reset_group(group, datetime(2026, 1, 1))
    with pytest.raises(UnknownTopic):
        admin.reset_group(group, "latest", topics=["no-such"])
    with pytest.raises(UnknownGroup):
        admin.reset_group(unique("gone"), "latest")
    with millstream.connect(admin.cluster, group=group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        list(islice(stream, 1))
        (member,) = admin.describe_group(group).members
        assert member.partitions == tuple(f"{topic}-{number}" for number in range(3))
        with pytest.raises(Failed, match=f"group {group} is Stable, with 1 member: stop its consumers first"):
            admin.reset_group(group, "latest")
        with pytest.raises(Failed, match=f"group {group} was not deleted"):
            admin.delete_group(group)
    assert admin.committed(group)[topic, 1] == 12


def test_configuration(admin: millstream.Admin, topic: str) -> None:
    settings = {one.key: one for one in admin.topic_config(topic)}
    assert (settings["retention.ms"].own, settings["retention.ms"].value) == (False, "604800000")
    (broker,) = admin.describe_cluster().brokers

    def own() -> dict[str, str | None]:
        return {one.key: one.value for one in admin.broker_config(broker.broker) if one.own}

    before = own()
    admin.alter_broker_config(broker.broker, {"log.retention.bytes": "123456"}, validate_only=True)
    assert own() == before
    admin.alter_broker_config(broker.broker, {"log.retention.bytes": "123456"})
    try:
        assert own() == before | {"log.retention.bytes": "123456"}
    finally:
        admin.alter_broker_config(broker.broker, {}, ["log.retention.bytes"])
    assert own() == before
    for configs, kind, said in (
        ({"no.such": "1"}, Failed, "the configuration of broker .* cannot be changed: .*no.such"),
        ({"log.retention.bytes": "many"}, Failed, "log.retention.bytes"),
        ({"log.retention.bytes": 5}, BadInput, "log.retention.bytes: 5 is not allowed: write text"),
    ):
        with pytest.raises(kind, match=said):
            admin.alter_broker_config(broker.broker, configs)  # type: ignore[arg-type]
    assert own() == before
    for wrong in (broker.broker + 1, "one", True):
        with pytest.raises(BadInput, match=f"there is no broker {wrong}: the brokers that are up: "):
            admin.broker_config(wrong)  # type: ignore[arg-type]


def test_the_cluster_at_a_glance(admin: millstream.Admin, topic: str) -> None:
    info = admin.describe_cluster()
    (broker,) = info.brokers
    assert f"{broker.host}:{broker.port}" == admin.cluster.bootstrap
    assert (info.controller, broker.controller) == (broker.broker, True)
    assert info.partitions >= 3
    assert (info.under_replicated, info.without_leader) == (0, 0)


def test_clusters_that_cannot_be_administered(shared_broker: InProcessBroker) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="no broker at"):
            millstream.Admin(f"127.0.0.1:{held.getsockname()[1]}").list_topics()
    with pytest.raises(BadInput, match='bootstrap: "here" is not allowed: write HOST:PORT'):
        millstream.Admin("here")
    with pytest.raises(BadInput, match=r'config: No such configuration property: "no\.such"'):
        millstream.Admin(shared_broker.bootstrap, config={"no.such": 1}).list_topics()
