"""Replicas of real brokers over a real ZooKeeper: they die, lag, fill up and come back.

Every test ends with a byte-for-byte comparison of the replicas' segment files.
"""

from __future__ import annotations

import contextlib
import random
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT
from millstream_harness.disk import small_disk
from millstream_harness.ledger import Load, check, read
from millstream_harness.wire import Wire, produce_request, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import alter_partition_reassignments, elect_leaders, produce
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.soak


@pytest.fixture
def cluster(cluster_of_processes: ClusterProcesses) -> ClusterProcesses:
    return cluster_of_processes


@pytest.fixture
def patient(
    request: pytest.FixtureRequest, shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> Iterator[ClusterProcesses]:
    """Sessions outlast every pause here: only the leader deals with a silent replica, after the parameter's ms."""
    lag_ms = getattr(request, "param", "30000")
    config = {"zookeeper.session.timeout.ms": "30000", "replica.lag.time.max.ms": lag_ms}
    with ClusterProcesses(tmp_path, config=config, zookeeper=shared_zookeeper) as cluster:
        yield cluster


def admin(cluster: ClusterProcesses) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})


def create(
    cluster: ClusterProcesses, name: str = "t", partitions: int = 1, replicas: int = 3, **config: str
) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    asked = admin(cluster)
    asked.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name].result(30)
    cluster.await_in_sync(name, replicas)


def delete_all_records(cluster: ClusterProcesses, end: int) -> None:
    asked = admin(cluster)
    deleted = asked.delete_records([TopicPartition("t", 0, end)])
    assert next(iter(deleted.values())).result(60).low_watermark == end


def files(broker: BrokerProcess, topic: str, partition: int = 0) -> bytes:
    """The bytes of all segments of a replica, in order."""
    while True:
        segments = sorted((broker.data / f"{topic}-{partition}").glob("*.log"))
        with contextlib.suppress(FileNotFoundError):  # a segment was deleted meanwhile
            return b"".join(path.read_bytes() for path in segments)


def same_everywhere(cluster: ClusterProcesses, topic: str = "t", partitions: int = 1) -> None:
    """Wait until the replicas are equal, byte for byte."""
    cluster.await_in_sync(topic)
    for partition in range(partitions):
        until(
            lambda partition=partition: (  # type: ignore[misc]
                len({files(one, topic, partition) for one in cluster.brokers.values()}) == 1
            ),
            f"the replicas of {topic}-{partition} are the same",
        )
        assert files(cluster.brokers[1], topic, partition)


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        found = re.search(rf"^millstream_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def number_of(cluster: ClusterProcesses, broker: BrokerProcess) -> int:
    return next(number for number, one in cluster.brokers.items() if one is broker)


def followers_of(cluster: ClusterProcesses, leader: BrokerProcess) -> list[BrokerProcess]:
    return [one for one in cluster.brokers.values() if one is not leader]


def test_brokers_are_killed_in_turn_under_load(cluster: ClusterProcesses) -> None:
    """Leaders, followers, and now and then a controller: every record is there once, in order."""
    create(cluster, partitions=3)
    dice = random.Random(7)
    with Load(cluster.bootstrap, "t", partitions=range(3), pause_s=0.002) as load:
        for _ in range(4):
            load.until(load.ledger.count + 300, 60)
            victim = dice.choice(list(cluster.brokers.values()))
            victim.kill()
            load.until(load.ledger.count + 300, 60)
            victim.start()
            cluster.await_in_sync("t")
    assert load.ledger.failed == []
    check(cluster.bootstrap, "t", [load])
    same_everywhere(cluster, partitions=3)


def test_what_only_a_deposed_leader_has_is_cut_off(patient: ClusterProcesses) -> None:
    """acks=1 promises no more; every replica has the acks=all records."""
    cluster = patient
    create(cluster)
    leader = cluster.leader("t")
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("t", [record("kept")] * 3, acks=-1).error_code == 0
        for one in followers_of(cluster, leader):
            one.pause()
        for number in range(5):
            assert wire.produce("t", [record(f"lost {number}")], acks=1).error_code == 0
    leader.kill()
    for one in followers_of(cluster, leader):
        one.resume()
    leader.start()  # restarted, because its session would last
    same_everywhere(cluster)
    values = [value for _, value in read(cluster.bootstrap, "t", 0)]
    written = [b"kept"] * 3 + [b"lost %d" % number for number in range(5)]
    assert values == written[: len(values)]
    assert len(values) >= 3
    if cluster.leader("t") is not leader:
        # A follower's last request got the first records; it sent no further one.
        assert len(values) < len(written)
        assert f"t-0: truncated from offset {len(written)} to {len(values)}" in leader.said()


def test_logs_that_parted_are_made_one(cluster: ClusterProcesses) -> None:
    """A paused leader wakes after others have led; its own records are cut where the epochs differ."""
    create(cluster, min_insync_replicas="1")
    leader = cluster.leader("t")
    others = followers_of(cluster, leader)
    with Load(cluster.bootstrap, "t", pause_s=0.001) as load:
        load.until(200)
        leader.pause()
        load.until(load.ledger.count + 500, 60)  # the others lead
        leader.kill()
        with (leader.data / "t-0" / "leader-epoch-checkpoint").open() as file:
            epoch = int(file.read().split("\n")[2].split()[0])
    # Batches that only the leader wrote, at the last moment.
    segment = sorted((leader.data / "t-0").glob("*.log"))[-1]
    tail = _batches(segment.read_bytes())[-1]
    with segment.open("ab") as file:
        file.write(_placed(tail, _next_offset(tail), epoch))
    leader.start()
    same_everywhere(cluster)
    assert re.search(r"t-0: truncated from offset \d+ to \d+", leader.said())
    assert load.ledger.failed == []
    check(cluster.bootstrap, "t", [load])
    assert all("Traceback" not in one.said() for one in (leader, *others))


def _batches(data: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        found.append(data[position : position + size])
        position += size
    return found


def _next_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1


def _placed(batch: bytes, offset: int, epoch: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:12] + epoch.to_bytes(4, "big") + batch[16:]


@pytest.mark.parametrize("patient", ["3000"], indirect=True)
def test_a_follower_that_lags_leaves_the_isr_and_comes_back(patient: ClusterProcesses) -> None:
    cluster = patient
    create(cluster)
    leader = cluster.leader("t")
    first, second = followers_of(cluster, leader)
    with Wire(leader.bootstrap) as wire:
        shrinks = metric(leader, "isr_shrinks_total")
        first.pause()
        # acks=all waits for this follower until it leaves the ISR
        assert wire.produce("t", [record("1")], acks=-1, timeout_ms=60_000).error_code == 0
        assert metric(leader, "isr_shrinks_total") > shrinks
        in_sync = {number_of(cluster, leader), number_of(cluster, second)}
        until(lambda: _isr(cluster) == in_sync, "everybody knows")
        assert metric(leader, "under_replicated_partitions") == 1
        assert metric(leader, "under_min_isr_partitions") == 0
        assert metric(leader, "replica_max_lag") == 1
        seen = metric(leader, "isr_expands_total")
        second.pause()
        waiting = wire.produce("t", [record("2")], acks=-1, timeout_ms=60_000)
        assert ErrorCode.of(waiting.error_code) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        refused = wire.produce("t", [record("3")], acks=-1)
        assert ErrorCode.of(refused.error_code) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert wire.produce("t", [record("4")], acks=1).error_code == 0
        assert metric(leader, "under_min_isr_partitions") == 1
        assert wire.end_offset("t") == 1, "nothing is read that might be lost"
        first.resume()
        second.resume()
        cluster.await_in_sync("t")
        until(lambda: wire.end_offset("t") == 3, "what was appended is safe")
    assert metric(leader, "isr_expands_total") >= seen + 2
    assert metric(leader, "under_replicated_partitions") == 0
    same_everywhere(cluster)


def test_a_producer_gives_up_at_its_timeout(patient: ClusterProcesses) -> None:
    cluster = patient
    create(cluster)
    leader = cluster.leader("t")
    followers_of(cluster, leader)[0].pause()
    with Wire(leader.bootstrap) as wire:
        answer = wire.produce("t", [record("1")], acks=-1, timeout_ms=200)
        assert ErrorCode.of(answer.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert wire.produce("t", [record("2")], acks=1, timeout_ms=200).error_code == 0
    followers_of(cluster, leader)[0].resume()
    same_everywhere(cluster)


def test_who_waits_is_answered_by_the_follower_that_the_leader_becomes(patient: ClusterProcesses) -> None:
    """An error that says "nobody has it" would make a client write its records twice."""
    cluster = patient
    asked = admin(cluster)
    asked.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]])])["t"].result(30)
    cluster.await_in_sync("t")
    batch = build_batch([record("x")], producer_id=77, producer_epoch=0, base_sequence=0)
    silent = 2 if cluster.controller() == 3 else 3
    with Wire(cluster.brokers[1].bootstrap) as old, Wire(cluster.brokers[5 - silent].bootstrap) as new:
        assert old.produce("t", [record("before")], acks=-1).error_code == 0
        cluster.brokers[silent].pause()
        old.send(produce.API, 9, produce_request("t", batch, acks=-1, timeout_ms=60_000))
        prefer(new, [5 - silent, 1, silent])
        until(lambda: cluster.leader("t") is cluster.brokers[5 - silent], "another leads")
        cluster.brokers[silent].resume()
        (answer,) = old.receive().responses[0].partition_responses
        assert answer == produce.PartitionProduceResponse(0, 0, 1, -1, 0)
        # A retry succeeds if the leader has the records; new records are refused.
        again = old.produce("t", batch, acks=-1)
        assert (again.error_code, again.base_offset) == (0, 1)
        more = build_batch([record("y")], producer_id=77, producer_epoch=0, base_sequence=1)
        assert old.produce("t", more, acks=-1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert new.produce("t", batch, acks=-1).base_offset == 1
        assert new.produce("t", more, acks=-1).base_offset == 2
    same_everywhere(cluster)


def prefer(wire: Wire, replicas: list[int]) -> None:
    """Make the first of these replicas the leader."""
    moved = alter_partition_reassignments.ReassignablePartition(0, replicas)
    topic = alter_partition_reassignments.ReassignableTopic("t", [moved])
    request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(10_000, topics=[topic])
    assert wire.call(alter_partition_reassignments.API, 0, request).error_code == 0
    elected = elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions("t", [0])], 10_000)
    assert wire.call(elect_leaders.API, 2, elected).error_code == 0


def test_requests_like_one_before_them_are_answered_like_it(patient: ClusterProcesses) -> None:
    """They take a shortcut in the broker, but wait for the followers all the same."""
    cluster = patient
    create(cluster)
    leader = cluster.leader("t")
    with Wire(leader.bootstrap) as wire:
        for version in range(3, 12):
            for number in range(3 * (version - 3), 3 * (version - 3) + 3):
                answer = wire.produce("t", [record("x")], version=version, acks=-1)
                start = 0 if version >= 5 else -1
                assert answer == produce.PartitionProduceResponse(0, 0, number, -1, start)
        asked = [produce_request("t", build_batch([record("x")]), acks=acks) for acks in (-1, 1)]
        for number in range(400):
            wire.send(produce.API, 9, asked[number % 7 == 0])
        offsets = [wire.receive().responses[0].partition_responses[0].base_offset for _ in range(400)]
        assert offsets == list(range(27, 427))
        assert wire.end_offset("t") == 427
        followers_of(cluster, leader)[0].pause()
        late = produce_request("t", build_batch([record("late")]), acks=-1, timeout_ms=200)
        for request in (late, late, asked[1], late):
            wire.send(produce.API, 9, request)
        found = [wire.receive().responses[0].partition_responses[0] for _ in range(4)]
        out = ErrorCode.REQUEST_TIMED_OUT
        assert found == [
            produce.PartitionProduceResponse(0, code, 427 + number, -1, 0)
            for number, code in enumerate([out, out, ErrorCode.NONE, out])
        ]
        assert wire.end_offset("t") == 427
    followers_of(cluster, leader)[0].resume()
    same_everywhere(cluster)


@contextlib.contextmanager
def filling_up(
    zookeeper: ZooKeeperProcess, folder: Path, replicas: list[int]
) -> Iterator[tuple[ClusterProcesses, Load]]:
    """The topic t under load while broker 3's disk is full; afterwards, checks once there is space again."""
    with small_disk(folder / "small", 64) as disk:
        config = {"log.segment.bytes": "1000000", "replica.lag.time.max.ms": "1000"}
        cluster = ClusterProcesses(folder, config=config, zookeeper=zookeeper)
        full = cluster.brokers[3]
        full.config["log.dirs"] = str(disk.path / "data")
        full.data = disk.path / "data"
        with cluster:
            asked = admin(cluster)
            asked.create_topics([NewTopic("t", 1, replica_assignment=[replicas])])["t"].result(30)
            cluster.await_in_sync("t")
            with Load(cluster.bootstrap, "t", size=2000, pause_s=0.02) as load:
                load.until(50)
                disk.fill(leave=100_000)
                yield cluster, load
                disk.free()
                cluster.await_in_sync("t")
                load.until(load.ledger.count + 50, 60)
            assert load.ledger.failed == []
            check(cluster.bootstrap, "t", [load])
            same_everywhere(cluster)


def test_a_follower_with_a_full_disk_is_left_behind_alone(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with filling_up(shared_zookeeper, tmp_path, [1, 2, 3]) as (cluster, load):
        until(lambda: _isr(cluster) == {1, 2}, "the full one is out of the ISR", 60)
        load.until(load.ledger.count + 100, 60)


def test_a_leader_with_a_full_disk_lets_others_lead(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with filling_up(shared_zookeeper, tmp_path, [3, 1, 2]) as (cluster, load):
        full = cluster.brokers[3]
        until(lambda: cluster.leader("t") is not full, "another leads", 60)
        load.until(load.ledger.count + 100, 60)
        until(lambda: _isr(cluster) == {1, 2}, "the full one is out of the ISR", 60)
        assert "moving leadership to other brokers" in full.said()


def _isr(cluster: ClusterProcesses) -> set[int]:
    return set(cluster.partitions("t")[0].isr_nodes)


def test_a_follower_that_missed_more_than_there_is_starts_anew(cluster: ClusterProcesses) -> None:
    create(cluster, segment_bytes="100000")
    leader = cluster.leader("t")
    late = followers_of(cluster, leader)[0]
    with Load(cluster.bootstrap, "t", size=1000, pause_s=0.002) as load:
        load.until(300)
        late.kill()
        load.until(load.ledger.count + 1000, 60)
    cluster.await_in_sync("t", 2)
    end = len(read(cluster.bootstrap, "t", 0))
    delete_all_records(cluster, end)
    late.start()
    with Load(cluster.bootstrap, "t", name="more", pause_s=0.002) as more:
        more.until(100)
    cluster.await_in_sync("t")
    assert f"t-0: restarts at offset {end}" in late.said()
    until(lambda: files(late, "t") and files(late, "t") in files(leader, "t"), "it has what is left")


def test_deleted_records_are_deleted_everywhere(patient: ClusterProcesses) -> None:
    cluster = patient
    create(cluster, segment_bytes="50000")
    with Load(cluster.bootstrap, "t", size=1000, pause_s=0.002) as load:
        load.until(500)
    end = len(read(cluster.bootstrap, "t", 0))
    before = {number: len(files(one, "t")) for number, one in cluster.brokers.items()}
    silent = followers_of(cluster, cluster.leader("t"))[0]
    silent.pause()
    asked = admin(cluster)
    deleted = asked.delete_records([TopicPartition("t", 0, end - 1)], operation_timeout=0.5)
    with pytest.raises(KafkaException, match="REQUEST_TIMED_OUT"):
        next(iter(deleted.values())).result(60)
    silent.resume()
    cluster.await_in_sync("t")
    delete_all_records(cluster, end)
    until(
        lambda: all(len(files(one, "t")) < before[number] // 2 for number, one in cluster.brokers.items()),
        "the segments are gone",
    )


def test_high_watermarks_outlive_the_broker(cluster: ClusterProcesses) -> None:
    create(cluster)
    with Load(cluster.bootstrap, "t", pause_s=0.002) as load:
        load.until(100)
    cluster.await_in_sync("t")
    end = len(read(cluster.bootstrap, "t", 0))
    for one in cluster.brokers.values():
        path = one.data / "replication-offset-checkpoint"
        until(
            lambda path=path: path.exists() and f"t 0 {end}" in path.read_text(),  # type: ignore[misc]
            "it is written down",
        )


def test_sole_replicas_are_neither_followed_nor_written_down(cluster: ClusterProcesses) -> None:
    create(cluster, "sole", replicas=1)
    leader = cluster.leader("sole")
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("sole", [record("1")], acks=-1).error_code == 0
        assert wire.end_offset("sole") == 1
    for one in followers_of(cluster, leader):
        assert not (one.data / "sole-0").exists()
        with Wire(one.bootstrap) as wire:
            answer = wire.produce("sole", [record("1")], acks=-1)
        assert ErrorCode.of(answer.error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_topic_made_anew_does_not_have_the_old_ones_records(cluster: ClusterProcesses) -> None:
    """Even if a replica was away while the old topic was deleted."""
    create(cluster)
    away = followers_of(cluster, cluster.leader("t"))[0]
    with Load(cluster.bootstrap, "t", name="old", pause_s=0.002) as load:
        load.until(100)
    away.kill()
    cluster.await_in_sync("t", 2)
    asked = admin(cluster)
    asked.delete_topics(["t"])["t"].result(30)
    away.start()

    def made() -> bool:
        with contextlib.suppress(KafkaException):
            asked.create_topics([NewTopic("t", 1, 3)])["t"].result(30)
            return True
        return False

    until(made, "there is a topic of that name again")
    with Load(cluster.bootstrap, "t", name="new", pause_s=0.002) as new:
        new.until(100)
    check(cluster.bootstrap, "t", [new])
    same_everywhere(cluster)
