"""Streams that coordinate over a real ZooKeeper: its registries, expired sessions, and a ZooKeeper that is down."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

import millstream
from millstream.consuming.zookeeper import registry
from millstream.errors import BadInput, Unreachable
from millstream.topics import create_topic, delete_topics
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.scenario import unique
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak


@pytest.fixture
def tree(brokers: ClusterProcesses) -> Iterator[KazooClient]:
    """Another client of the brokers' tree."""
    client = KazooClient(brokers.connect)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def topic(brokers: ClusterProcesses) -> str:
    name = unique("zookeeper")
    create_topic(millstream.Cluster(brokers.bootstrap), name, partitions=4)
    return name


def connect(brokers: ClusterProcesses, group: str, **options: Any) -> millstream.Connector:
    """A connector whose session does not end because the machine is busy."""
    options = {"coordination": "zookeeper", "zookeeper": brokers.connect, "session_timeout_s": 60, **options}
    return millstream.connect(group=group, **options)


def fill(brokers: ClusterProcesses, topic: str, count: int, partitions: int = 4) -> None:
    with millstream.Producer(brokers.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def test_the_registries_are_those_of_classic_kafka(
    brokers: ClusterProcesses, tree: KazooClient, topic: str
) -> None:
    group = unique("group")
    fill(brokers, topic, 40)
    with connect(brokers, group, commit_interval_s=0.05) as connector:
        streams = connector.create_message_streams({topic: 2})[topic]
        until(lambda: [stream.partitions for stream in streams] == [(0, 1), (2, 3)], "both have their range")
        (consumer,) = tree.get_children(f"/consumers/{group}/ids")
        node = json.loads(tree.get(f"/consumers/{group}/ids/{consumer}")[0])
        assert (node["version"], node["subscription"], node["pattern"]) == (1, {topic: 2}, "static")
        owners = {
            number: tree.get(f"/consumers/{group}/owners/{topic}/{number}")[0].decode() for number in range(4)
        }
        assert owners == {0: f"{consumer}-0", 1: f"{consumer}-0", 2: f"{consumer}-1", 3: f"{consumer}-1"}
        assert len(list(islice(streams[0], 20))) == 20
        streams[0].commit()
        assert tree.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"10"
        assert len(list(islice(streams[1], 20))) == 20
    assert tree.get_children(f"/consumers/{group}/ids") == []
    assert tree.get_children(f"/consumers/{group}/owners/{topic}") == []
    values = {number: int(tree.get(f"/consumers/{group}/offsets/{topic}/{number}")[0]) for number in range(4)}
    assert (values[0], values[1]) == (10, 10)
    assert {values[2], values[3]} == {9, 10}  # the last message was in hand
    with connect(brokers, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        message = next(iter(stream))
        assert (values[message.partition], message.offset) == (9, 9)


def test_offsets_of_a_topic_that_was_made_anew_are_not_taken_over(
    brokers: ClusterProcesses, topic: str
) -> None:
    group = unique("group")
    fill(brokers, topic, 40)
    with connect(brokers, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        list(islice(stream, 40))
        stream.commit()
    cluster = millstream.Cluster(brokers.bootstrap)
    assert delete_topics(cluster, [topic]) == {topic: ""}
    until(lambda: not brokers.partitions(topic), "it is gone")
    create_topic(cluster, topic, partitions=4)
    fill(brokers, topic, 60)
    with connect(brokers, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert {message.offset for message in islice(stream, 60)} == set(range(15))


@pytest.mark.parametrize("slow_call", ["get_async", "get_children_async"])
def test_a_slow_consumer_deletes_no_offsets_of_a_topic_that_was_made_anew(
    brokers: ClusterProcesses, topic: str, slow_call: str
) -> None:
    """It reads the old topic's node, or the old offsets; then another consumer resets the offsets and commits."""
    from millstream.consuming.zookeeper.registry import Registry

    group, cluster = unique("group"), millstream.Cluster(brokers.bootstrap)
    slow, quick = Registry(brokers.connect, group, 60), Registry(brokers.connect, group, 60)
    call, paused = getattr(slow.client, slow_call), False
    slow_path = (
        f"/brokers/topics/{topic}" if slow_call == "get_async" else f"/consumers/{group}/offsets/{topic}"
    )

    def make_anew() -> None:
        assert delete_topics(cluster, [topic]) == {topic: ""}
        until(lambda: not brokers.partitions(topic), "it is gone")
        create_topic(cluster, topic, partitions=4)
        until(lambda: brokers.partitions(topic), "it is there again")

    def renew() -> None:
        quick.read([topic], lambda _: None)
        assert quick.claim((topic, 0), "quick-0")
        quick.commit({(topic, 0): 7})

    def pause(path: str, **more: Any) -> Any:
        nonlocal paused
        answer = call(path, **more)
        answer.wait(60)
        if path == slow_path and not paused:
            paused = True
            if slow_call == "get_async":
                make_anew()
            renew()
        return answer

    try:
        quick.read([topic], lambda _: None)
        assert quick.claim((topic, 0), "quick-0")
        quick.commit({(topic, 0): 5})
        quick.release((topic, 0))
        if slow_call == "get_children_async":
            make_anew()
        setattr(slow.client, slow_call, pause)
        slow.read([topic], lambda _: None)
        assert paused
        assert quick.offset((topic, 0)) == 7
    finally:
        slow.close()
        quick.close()


def test_partitions_that_are_added_are_read(brokers: ClusterProcesses, topic: str) -> None:
    from millstream.topics import alter_topic

    with connect(brokers, unique("group")) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        until(lambda: stream.partitions == (0, 1, 2, 3), "it has all")
        alter_topic(millstream.Cluster(brokers.bootstrap), topic, partitions=6)
        until(lambda: stream.partitions == (0, 1, 2, 3, 4, 5), "it has the new ones")


def test_an_owner_that_was_overtaken_commits_nothing(
    brokers: ClusterProcesses, tree: KazooClient, topic: str
) -> None:
    """Another owner's node replaces its node; the version of the offset shows it."""
    from millstream.consuming.zookeeper.registry import Registry
    from millstream.errors import NotOwned

    group = unique("group")
    one, two = Registry(brokers.connect, group, 60), Registry(brokers.connect, group, 60)
    try:
        assert one.claim((topic, 0), "one-0")
        assert one.claim((topic, 0), "one-0")  # the response was lost, and it retries
        assert not two.claim((topic, 0), "two-0")
        one.commit({(topic, 0): 5})
        one.commit({(topic, 0): 6})
        tree.delete(f"/consumers/{group}/owners/{topic}/0")
        with pytest.raises(NotOwned):
            one.commit({(topic, 0): 7})
        assert two.claim((topic, 0), "two-0")
        assert two.offset((topic, 0)) == 6
        with pytest.raises(NotOwned):
            one.commit({(topic, 0): 7})
        one.release((topic, 0))
        two.commit({(topic, 0): 8})
        assert one.offset((topic, 0)) == 8
    finally:
        one.close()
        two.close()


def test_a_session_that_ends_is_followed_by_another(
    brokers: ClusterProcesses, tree: KazooClient, topic: str
) -> None:
    """The session expires; the consumer gives up all partitions, registers again, and continues at its commits."""
    group = unique("group")
    fill(brokers, topic, 40)
    with connect(brokers, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        messages = iter(stream)
        list(islice(messages, 20))
        stream.commit()
        own = connector._consumer.registry
        before = own.session
        client = KazooClient(brokers.connect, client_id=own.client.client_id)
        client.start()
        client.stop()  # this ends the session of both
        client.close()
        until(lambda: own.session not in (None, before), "there is another session")
        rest = list(islice(messages, 20))
        assert len({(message.partition, message.offset) for message in rest}) == 20
        owner = tree.exists(f"/consumers/{group}/owners/{topic}/0")
        assert owner.ephemeralOwner == own.session


def test_giving_up_is_tried_again(
    brokers: ClusterProcesses, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is over, and librdkafka refuses to release the first stream's partitions."""
    from millstream.consuming.zookeeper import consumer

    fill(brokers, topic, 40)
    with connect(brokers, unique("group")) as connector:
        streams = connector.create_message_streams({topic: 2})[topic]
        until(lambda: [stream.partitions for stream in streams] == [(0, 1), (2, 3)], "both have theirs")
        assign, refusals = consumer._assign, 0

        def refused_once(stream: millstream.MessageStream) -> None:
            nonlocal refusals
            refusals += 1
            if refusals == 1:
                raise KafkaException(KafkaError(KafkaError._STATE))
            assign(stream)

        monkeypatch.setattr(consumer, "_assign", refused_once)
        connector._consumer._session_changed("LOST")
        for stream in streams:
            assert len({message.position for message in islice(stream, 20)}) == 20
        assert refusals > 1


def test_a_connection_that_fails_between_a_claim_and_the_first_message(
    brokers: ClusterProcesses, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session survives, and the claim with it: the stream begins as soon as ZooKeeper responds."""
    fill(brokers, topic, 40)
    with connect(brokers, unique("group")) as connector:
        own = connector._consumer.registry
        offset, failed = own.offset, set()

        def fails_once(at: tuple[str, int]) -> int | None:
            if at not in failed:
                failed.add(at)
                raise ConnectionLoss
            found: int | None = offset(at)
            return found

        monkeypatch.setattr(own, "offset", fails_once)
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        until(lambda: stream.partitions == (0, 1, 2, 3), "it has all")
        assert len({message.position for message in islice(stream, 40)}) == 40
        assert len(failed) == 4


def test_positions_that_the_caller_cannot_tell_yet(brokers: ClusterProcesses, topic: str) -> None:
    """The stream raises what the caller's function raises, and continues once it works."""
    known: dict[tuple[str, int], int] = {}
    fill(brokers, topic, 4)
    with connect(
        brokers, unique("group"), positions=lambda partitions: {at: known[at] for at in partitions}
    ) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with pytest.raises(KeyError, match=topic):
            next(iter(stream))
        known.update({(topic, number): 0 for number in range(4)})
        seen: set[millstream.Position] = set()
        while len(seen) < 4:
            with suppress(KeyError):  # from an earlier try
                seen.add(next(iter(stream)).position)


def test_no_zookeeper_is_said_within_seconds(
    brokers: ClusterProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.CONNECT_TIMEOUT_S == 10
    with monkeypatch.context() as patch:
        patch.setattr(registry, "CONNECT_TIMEOUT_S", 0.5)
        with pytest.raises(Unreachable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 within 0\.5 s"):
            millstream.connect(group="g", coordination="zookeeper", zookeeper="127.0.0.1:1")
    with pytest.raises(BadInput, match="there is no /no-such: name the brokers' chroot"):
        millstream.connect(
            group="g", coordination="zookeeper", zookeeper=brokers.connect.partition("/")[0] + "/no-such"
        )


@pytest.mark.parametrize(("session_s", "stop_s"), [(2, 0), (2, 4), (5, 0)])
def test_a_zookeeper_that_goes_away(
    tmp_path: Path, brokers: ClusterProcesses, topic: str, session_s: int, stop_s: int
) -> None:
    """A stream waits, and reports it after its time limit; when ZooKeeper is back, it returns the rest.

    The session may survive, or end, or end just when its client comes back.
    """
    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        client = KazooClient(server.connect)
        client.start()
        source = KazooClient(brokers.connect)
        source.start()
        client.create(f"/brokers/topics/{topic}", source.get(f"/brokers/topics/{topic}")[0], makepath=True)
        for one in (client, source):
            one.stop()
            one.close()
        fill(brokers, topic, 40)
        options = {"zookeeper": server.connect, "unreachable_timeout_s": 1, "session_timeout_s": session_s}
        with millstream.connect(
            brokers.bootstrap, group="g", coordination="zookeeper", **options
        ) as connector:  # type: ignore[arg-type]
            (stream,) = connector.create_message_streams({topic: 1})[topic]
            seen: set[Any] = set()
            while len(seen) < 10:
                with suppress(Unreachable):
                    seen.add(next(iter(stream)).position)
            messages = iter(stream)
            server.pause()
            ends = time.monotonic() + stop_s

            def until_it_raises() -> None:
                while True:
                    seen.add(next(messages).position)
                    time.sleep(0.2)

            with pytest.raises(Unreachable, match=r"no ZooKeeper at .* has answered for 1 s"):
                until_it_raises()
            time.sleep(max(ends - time.monotonic(), 0))
            server.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            while len(seen) < 40:
                with suppress(Unreachable):
                    seen.add(next(iter(stream)).position)
