"""Clusters of real broker processes over a real ZooKeeper, with real clients: what holds when something breaks."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_broker.forwarding import FORWARDED
from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import SESSION_MS, ClusterProcesses, until
from millstream_harness.disk import dying_disk
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess
from millstream_kafka.client import Connection
from millstream_kafka.protocol import (
    controlled_shutdown,
    delete_records,
    elect_leaders,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_for_leader_epoch,
    stop_replica,
    update_metadata,
)
from millstream_kafka.protocol.controlled_shutdown import ControlledShutdownRequest
from millstream_kafka.protocol.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.list_partition_reassignments import ListPartitionReassignmentsRequest
from millstream_kafka.protocol.stop_replica import StopReplicaRequest
from millstream_kafka.protocol.update_metadata import UpdateMetadataRequest

QUICK = {
    "socket.timeout.ms": 5000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


def create(
    cluster: ClusterProcesses, name: str, partitions: int = 3, replicas: int = 3, **config: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUICK})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name].result(30)


class Writer:
    """Produces numbers with acks=all, and knows which were acknowledged."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failures: list[KafkaError] = []
        self.times: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 60_000,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "retry.backoff.ms": 50,
                **QUICK,
            }
        )

    def write(self, count: int, timeout: float = 60.0) -> None:
        """So many more, and wait until all are acknowledged."""
        for _ in range(count):
            self.send()
        assert self._producer.flush(timeout) == 0
        assert not self.failures
        assert len(self.acknowledged) == self.sent

    def send(self, partition: int = -1) -> None:
        number, self.sent = self.sent, self.sent + 1

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self.failures.append(error)
            else:
                self.acknowledged.add(number)
                self.times.append(time.monotonic())

        self._producer.produce(self.topic, str(number).encode(), partition=partition, on_delivery=delivered)

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


def read_all(cluster: ClusterProcesses, topic: str) -> list[int]:
    """Every number in the topic, partition by partition, in its order."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUICK}
    )
    try:
        numbers = []
        for one in cluster.partitions(topic):
            where = TopicPartition(topic, one.partition_index, 0)
            _, end = consumer.get_watermark_offsets(where, timeout=10)
            consumer.assign([where])
            deadline, position = time.monotonic() + 30, 0
            while position < end:
                assert time.monotonic() < deadline, f"{where} is read up to {position} of {end}"
                for message in consumer.consume(1000, 0.5):
                    assert message.error() is None
                    numbers.append(int(message.value()))
                    position = message.offset() + 1
            consumer.unassign()
        return numbers
    finally:
        consumer.close()


def holds(cluster: ClusterProcesses, writer: Writer) -> None:
    """Nothing that was acknowledged is lost, and nothing is there twice."""
    numbers = read_all(cluster, writer.topic)
    assert len(numbers) == len(set(numbers))
    assert writer.acknowledged <= set(numbers)


def test_a_leader_is_killed_and_comes_back(cluster: ClusterProcesses) -> None:
    create(cluster, "t")
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(2000)
    leader = cluster.leader("t")
    leader.kill()
    killed = time.monotonic()
    writer.write(2000)
    assert min(at for at in writer.times if at > killed) - killed < SESSION_MS / 1000 + 5
    assert cluster.leader("t") is not leader
    cluster.await_in_sync("t", 2)
    leader.start()
    writer.write(2000)
    cluster.await_in_sync("t", 3)
    holds(cluster, writer)


def test_the_controller_is_killed(cluster: ClusterProcesses) -> None:
    create(cluster, "t")
    writer = Writer(cluster, "t")
    writer.write(500)
    controller = cluster.controller()
    cluster.brokers[controller].kill()
    until(lambda: cluster.controller() != controller, "another broker is the controller")
    writer.write(500)
    create(cluster, "after", replicas=2)
    cluster.brokers[controller].start()
    cluster.await_in_sync("t")
    holds(cluster, writer)


def test_a_broker_that_no_controller_has_told_yet_calls_no_topic_unknown(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """It listens before it knows the cluster: whoever asks it meanwhile waits."""
    config = {"zookeeper.session.timeout.ms": "8000"}
    with ClusterProcesses(tmp_path, 2, config, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "known", 1, 2)
        controller = cluster.controller()
        restarted = next(one for number, one in cluster.brokers.items() if number != controller)
        restarted.stop()
        cluster.brokers[controller].pause()
        restarted.launch(restarted.command)
        bootstrap = restarted.config["listeners"].split("://")[1]
        until(lambda: connects(bootstrap), "the broker listens")
        with Wire(bootstrap) as wire:
            asked = [metadata.MetadataRequestTopic(name="known")]
            answer = wire.call(metadata.API, 12, metadata.MetadataRequest(asked, False))
        assert [ErrorCode.of(topic.error_code) for topic in answer.topics] == [ErrorCode.NONE]
        assert len(answer.topics[0].partitions) == 1


def connects(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_all_brokers_are_killed_at_once(cluster: ClusterProcesses) -> None:
    create(cluster, "t")
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(3000)
    for one in cluster.brokers.values():
        one.kill()
    cluster.start()
    writer.write(1000)
    cluster.await_in_sync("t")
    holds(cluster, writer)


def test_a_broker_that_lost_its_disk_leads_nothing_before_it_has_everything(
    cluster: ClusterProcesses,
) -> None:
    create(cluster, "t", 3)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(2000)
    for number, one in list(cluster.brokers.items())[:2]:
        one.kill()
        shutil.rmtree(one.data)
        one.start()
        assert f"broker.id={number} listeners" in one.said()
        writer.write(500)
        cluster.await_in_sync("t")
    holds(cluster, writer)


def test_a_copy_begins_with_the_batch_in_which_the_log_starts(cluster: ClusterProcesses) -> None:
    """DeleteRecords may end within a batch: a replica that starts with nothing gets all of that batch."""
    create(cluster, "t", 1)
    cluster.await_in_sync("t")
    leader = cluster.leader("t")
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("t", [record("a"), record("b"), record("c")], acks=-1).error_code == 0
        topics = [delete_records.DeleteRecordsTopic("t", [delete_records.DeleteRecordsPartition(0, 1)])]
        answer = wire.call(delete_records.API, 2, delete_records.DeleteRecordsRequest(topics, 10_000))
        assert answer.topics[0].partitions[0].low_watermark == 1
    follower = next(one for one in cluster.brokers.values() if one is not leader)
    follower.kill()
    shutil.rmtree(follower.data)
    follower.start()
    cluster.await_in_sync("t")
    number = next(number for number, one in cluster.brokers.items() if one is follower)
    leads(cluster, "t", number)
    with Wire(follower.bootstrap) as wire:
        fetched = wire.fetch("t", 1)
        assert (fetched.error_code, fetched.log_start_offset, fetched.high_watermark) == (0, 1, 3)
        assert wire.fetch("t", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def leads(cluster: ClusterProcesses, topic: str, broker: int) -> None:
    """Stop the others one after the other until this broker leads."""
    for number, one in cluster.brokers.items():
        if number != broker and cluster.partitions(topic)[0].leader_id != broker:
            one.stop()
            until(lambda: cluster.partitions(topic)[0].leader_id > 0, "somebody leads")
    assert cluster.partitions(topic)[0].leader_id == broker


def test_a_disk_dies_and_others_lead_what_was_on_it(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    flush = {"log.flush.interval.messages": "1", "log.flush.offset.checkpoint.interval.ms": "200"}
    cluster = ClusterProcesses(tmp_path, config=flush, zookeeper=shared_zookeeper)
    one = cluster.brokers[1]
    with dying_disk(tmp_path / "dying", 32) as disk:
        one.config["log.dirs"] = f"{one.data},{disk.path}"
        with cluster:
            create(cluster, "t", 6)
            cluster.await_in_sync("t")
            writer = Writer(cluster, "t")
            writer.write(500)
            lost = {int(path.name.removeprefix("t-")) for path in disk.path.glob("t-*")}
            assert 0 < len(lost) < 6
            one.pause()
            disk.die()
            one.resume()
            writer.write(1000)

            def is_settled() -> bool:
                return all(
                    partition.leader_id > 0
                    and (1 not in partition.isr_nodes) == (partition.partition_index in lost)
                    for partition in cluster.partitions("t")
                )

            until(is_settled, "others lead what was on the disk, and broker 1 is in sync with the rest")
            writer.write(500)
            holds(cluster, writer)


def test_a_controlled_shutdown_hands_over_first(cluster: ClusterProcesses) -> None:
    create(cluster, "t", 1)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(100)
    leader = cluster.leader("t")
    begun = time.monotonic()
    leader.launch_stop()
    while time.monotonic() - begun < 2:
        writer.send(0)
        writer.poll(0.005)
    writer.flush()
    assert leader.wait(10) == 0
    assert not writer.failures
    gaps = [later - earlier for earlier, later in zip(writer.times, writer.times[1:], strict=False)]
    assert max(gaps) < 1.0
    (partition,) = cluster.partitions("t")
    assert len(partition.isr_nodes) == 2
    assert cluster.brokers[partition.leader_id] is not leader
    holds(cluster, writer)


def test_a_rolling_restart_under_load(cluster: ClusterProcesses) -> None:
    create(cluster, "t", 6)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    for one in cluster.brokers.values():
        writer.write(300)
        one.stop(20)
        writer.write(300)
        one.start()
        cluster.await_in_sync("t")
    holds(cluster, writer)


def test_all_brokers_stop_at_once(cluster: ClusterProcesses) -> None:
    """The last ones have nobody to hand over to, and do not wait."""
    create(cluster, "t", 6)
    cluster.await_in_sync("t")
    begun = time.monotonic()
    for one in cluster.brokers.values():
        one.launch_stop()
    assert [one.wait(30) for one in cluster.brokers.values()] == [0, 0, 0]
    assert time.monotonic() - begun < 12


def test_a_zombie_leader_acknowledges_nothing(cluster: ClusterProcesses) -> None:
    """Stopped past its session, then resumed: it finds out, follows, and what it was given alone is gone."""
    create(cluster, "t", 1)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(500)
    zombie = cluster.leader("t")
    number = next(number for number, one in cluster.brokers.items() if one is zombie)
    zombie.pause()
    until(lambda: _leader_seen_by_others(cluster, number) not in (-1, number), "another leads")
    writer.write(500)
    zombie.resume()
    writer.write(500)
    cluster.await_in_sync("t", 3)
    holds(cluster, writer)


def _leader_seen_by_others(cluster: ClusterProcesses, number: int) -> int:
    others = [one for other, one in cluster.brokers.items() if other != number]
    admin = AdminClient({"bootstrap.servers": ",".join(one.bootstrap for one in others), **QUICK})
    leader: int = admin.list_topics("t", timeout=5).topics["t"].partitions[0].leader
    return leader


def test_a_group_survives_its_coordinator(cluster: ClusterProcesses) -> None:
    create(cluster, "t", 2)
    writer = Writer(cluster, "t")
    writer.write(1000)
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
        **QUICK,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    read: list[int] = []

    def read_some(count: int) -> None:
        deadline = time.monotonic() + 60
        while len(read) < count:
            assert time.monotonic() < deadline, f"{len(read)} of {count} are read"
            messages = consumer.consume(count - len(read), 0.2)
            read.extend(int(message.value()) for message in messages if message.error() is None)

    try:
        read_some(400)
        consumer.commit(asynchronous=False)
        assert _committed(consumer) == 400
        cluster.await_in_sync("__consumer_offsets")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUICK})
        coordinator = admin.describe_consumer_groups(["g"])["g"].result(20).coordinator.id
        cluster.brokers[coordinator].kill()
        read_some(900)
        _commit(consumer)
        writer.write(100)
        read_some(1100)
        _commit(consumer)
        cluster.brokers[coordinator].start()
        cluster.await_in_sync("__consumer_offsets")
        assert _committed(consumer) == 1100
    finally:
        consumer.close()
    assert sorted(read) == list(range(1100))


def _committed(consumer: Consumer) -> int:
    """In all partitions together; none is committed where the offset is below 0."""
    return sum(max(one.offset, 0) for one in consumer.committed(consumer.assignment(), 20))


def _commit(consumer: Consumer) -> None:
    """As an application does it: again, while there is no coordinator."""
    deadline = time.monotonic() + 30
    while True:
        try:
            consumer.commit(asynchronous=False)
            return
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_zookeeper_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Brokers go on serving what they lead; what needs ZooKeeper is refused or waits; and all goes on behind it."""
    with ClusterProcesses(tmp_path, config={"offsets.topic.replication.factor": "3"}) as cluster:
        create(cluster, "t")
        cluster.await_in_sync("t")
        writer = Writer(cluster, "t")
        writer.write(500)
        cluster.zookeeper.kill()
        begun = time.monotonic()
        while time.monotonic() - begun < 2 * SESSION_MS / 1000:
            writer.write(100)
        cluster.zookeeper.start()
        create(cluster, "after")
        writer.write(500)
        cluster.await_in_sync("t")
        cluster.await_in_sync("after")
        holds(cluster, writer)
        cluster.zookeeper.kill()
        for one in cluster.brokers.values():
            assert one.stop(30) == 0


def test_one_zookeeper_of_three_dies(tmp_path: Path) -> None:
    with (
        ZooKeeperEnsemble(tmp_path / "ensemble") as ensemble,
        ClusterProcesses(
            tmp_path, zookeeper=ensemble, config={"zookeeper.session.timeout.ms": "6000"}
        ) as cluster,
    ):
        create(cluster, "t")
        writer = Writer(cluster, "t")
        writer.write(500)
        ensemble.leader().kill()
        writer.write(500)
        create(cluster, "after")
        cluster.await_in_sync("after")
        holds(cluster, writer)


def test_brokers_join_and_leave_at_run_time(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    config = {"default.replication.factor": "2", "min.insync.replicas": "1"}
    with ClusterProcesses(tmp_path, 2, config, zookeeper=shared_zookeeper) as cluster:
        with pytest.raises(KafkaException, match="only 2 broker"):
            create(cluster, "t")
        third = cluster.broker(3)
        cluster.brokers[3] = third
        third.start()
        until(lambda: len(cluster.metadata().brokers) == 3, "three brokers are known")
        create(cluster, "t")
        cluster.await_in_sync("t")
        third.stop(20)
        until(lambda: len(cluster.metadata().brokers) == 2, "two brokers are known")
        cluster.await_in_sync("t", 2)


# What must not start, and what must wait


def test_the_second_broker_with_an_id_does_not_start(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with ClusterProcesses(tmp_path, 1, zookeeper=shared_zookeeper) as cluster:
        other = BrokerProcess(tmp_path / "other", {"broker.id": "1", **cluster.config})
        try:
            with pytest.raises(
                RuntimeError, match=r"status 1:(.|\n)*broker.id=1 is taken: the broker at PLAINTEXT://127"
            ):
                other.start()
        finally:
            other.kill()
        create(cluster, "t", 1, 1)


def test_a_broker_with_another_clusters_data_does_not_start(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with ClusterProcesses(tmp_path / "one", 1, zookeeper=shared_zookeeper) as one:
        one.brokers[1].stop(20)
        with ClusterProcesses(tmp_path / "two", 2, zookeeper=shared_zookeeper) as two:
            astray = BrokerProcess(one.brokers[1].folder, {**one.brokers[1].config, **two.config})
            with pytest.raises(
                RuntimeError, match=r"status 1:(.|\n)*belongs to cluster \S+, this is cluster"
            ):
                astray.start()
            astray.kill()


def test_a_broker_waits_for_zookeeper_and_says_so(tmp_path: Path) -> None:
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper")
    http = fixed_port()
    broker = BrokerProcess(
        tmp_path / "broker",
        {"zookeeper.connect": f"{zookeeper.connect}/kafka", "http.listener": f"127.0.0.1:{http}"},
    )
    try:
        broker.launch(broker.command)
        until(lambda: f"waiting for ZooKeeper at {zookeeper.connect}/kafka" in broker.said(), "it says so")
        assert _status(http, "/healthz") == 200
        assert _status(http, "/readyz") == 503
        assert broker.stop(10) == 0
        broker.launch(broker.command)
        until(lambda: _status(http, "/readyz") == 503, "it is starting")
        zookeeper.start()
        broker.await_ready(broker.is_ready)
        assert _status(http, "/readyz") == 200
    finally:
        broker.kill()
        zookeeper.kill()


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


# What an administrator does


@pytest.fixture(scope="module")
def standing(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    """Three brokers that nobody breaks, each in a rack."""
    cluster = ClusterProcesses(tmp_path_factory.mktemp("standing"), zookeeper=shared_zookeeper)
    for number, one in cluster.brokers.items():
        one.config["broker.rack"] = f"rack-{number % 2}"
    with cluster:
        yield cluster


def test_a_topic_is_deleted_everywhere(standing: ClusterProcesses) -> None:
    create(standing, "doomed", 2)
    Writer(standing, "doomed").write(100)
    logs = [one.data / f"doomed-{index}" for one in standing.brokers.values() for index in range(2)]
    until(lambda: all(path.exists() for path in logs), "every replica has a log")
    admin = AdminClient({"bootstrap.servers": standing.bootstrap, **QUICK})
    admin.delete_topics(["doomed"])["doomed"].result(30)
    until(lambda: not any(path.exists() for path in logs), "no log is left")
    create(standing, "doomed", 1)
    writer = Writer(standing, "doomed")
    writer.write(10)
    assert sorted(read_all(standing, "doomed")) == list(range(10))


def test_replicas_are_spread_over_brokers_and_racks(standing: ClusterProcesses) -> None:
    create(standing, "spread", 12, 2)
    standing.await_in_sync("spread", 2)
    partitions = standing.partitions("spread")
    for one in partitions:
        assert {number % 2 for number in one.replica_nodes} == {0, 1}
    leaders = [one.replica_nodes[0] for one in partitions]
    assert {leaders.count(number) for number in (1, 2, 3)} == {4}


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (lambda: NewTopic("bad", 1, 4), "only 3 broker"),
        (lambda: NewTopic("bad", 1, replica_assignment=[[1, 2, 9]]), "no such broker is registered"),
    ],
)
def test_what_cannot_be_created_is_said(
    standing: ClusterProcesses, new: Callable[[], Any], problem: str
) -> None:
    admin = AdminClient({"bootstrap.servers": standing.bootstrap, **QUICK})
    with pytest.raises(KafkaException, match=problem):
        admin.create_topics([new()])["bad"].result(30)


async def test_what_only_the_controller_knows_every_broker_answers(standing: ClusterProcesses) -> None:
    await asyncio.to_thread(create, standing, "asked", 1)
    await asyncio.to_thread(standing.await_in_sync, "asked")
    controller = await asyncio.to_thread(standing.controller)
    election = ElectLeadersRequest(0, [TopicPartitions("asked", [0])])
    for number, broker in standing.brokers.items():
        host, port = broker.bootstrap.split(":")
        connection = await Connection.open(host, int(port))
        listed = await connection.call(
            list_partition_reassignments.API, None, ListPartitionReassignmentsRequest()
        )
        assert (listed.error_code, listed.topics) == (0, [])
        elected = await connection.call(elect_leaders.API, None, election)
        (result,) = elected.replica_election_results
        assert result.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED
        await connection.close()
        sent_on = await Connection.open(host, int(port), f"{FORWARDED}9")
        elected = await sent_on.call(elect_leaders.API, None, election)
        assert (elected.error_code == ErrorCode.NOT_CONTROLLER) == (number != controller)
        await sent_on.close()


def test_clients_learn_of_no_log_but_the_leaders(standing: ClusterProcesses) -> None:
    """As a debugging replica, only brokers may ask for the end of any replica's log."""
    create(standing, "ends-of-replicas", 1)
    leader = standing.leader("ends-of-replicas")
    follower = next(one for one in standing.brokers.values() if one is not leader)
    asked = list_offsets.ListOffsetsPartition(0, -1, list_offsets.LATEST)
    request = list_offsets.ListOffsetsRequest(
        list_offsets.DEBUGGING_REPLICA_ID, 0, [list_offsets.ListOffsetsTopic("ends-of-replicas", [asked])]
    )
    standing.await_in_sync("ends-of-replicas")
    with Wire(follower.bootstrap) as wire:
        (answer,) = wire.call(list_offsets.API, 4, request).topics
        assert answer.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_broker_that_coordinates_itself_is_told_nothing(shared_broker: BrokerProcess) -> None:
    host, port = shared_broker.bootstrap.split(":")
    connection = await Connection.open(host, int(port))
    for api, request in (
        (update_metadata.API, UpdateMetadataRequest(1, 1, 1)),
        (stop_replica.API, StopReplicaRequest(1, 1, 1)),
        (controlled_shutdown.API, ControlledShutdownRequest(1, 1)),
    ):
        refused = await connection.call(api, None, request)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await connection.close()


def test_where_an_epoch_ends_is_not_the_high_watermark(cluster: ClusterProcesses) -> None:
    """A leader may know less of the high watermark than consumers have read: none may take that for truncation."""
    create(cluster, "ends", 1)
    cluster.await_in_sync("ends")
    leader = cluster.leader("ends")
    for broker in cluster.brokers.values():
        if broker is not leader:
            broker.kill()
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("ends", [record("a")], acks=1).error_code == 0
        asked = offset_for_leader_epoch.OffsetForLeaderPartition(
            0, -1, cluster.partitions("ends")[0].leader_epoch
        )
        topics = [offset_for_leader_epoch.OffsetForLeaderTopic("ends", [asked])]
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, topics)
        (answer,) = wire.call(offset_for_leader_epoch.API, 4, request).topics
        assert (answer.partitions[0].error_code, answer.partitions[0].end_offset) == (0, 1)
        fetched = wire.fetch("ends", 0)
        assert fetched.high_watermark == 0
