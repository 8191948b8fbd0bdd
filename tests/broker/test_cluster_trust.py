"""Requests reserved for brokers, forged by clients of a real cluster with the best possible guesses.

The forger knows everything that can be known or guessed: broker epochs, the controller epoch, leader epochs. Other
tests try what a faulty broker could do, with the cluster's secret, read from ZooKeeper.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from millstream_broker.config.config import Listener
from millstream_broker.coordination import BrokerRecord
from millstream_broker.security.mechanisms.inter_broker import MECHANISM, InterBroker
from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import STABLE, ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT
from millstream_harness.ledger import Load, check
from millstream_harness.process import resident_mb
from millstream_harness.wire import Wire, produce_request, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import build_batch
from millstream_kafka.client import Connection
from millstream_kafka.protocol import (
    controlled_shutdown,
    fetch,
    list_offsets,
    produce,
    sasl_authenticate,
    sasl_handshake,
    stop_replica,
    update_metadata,
)
from millstream_kafka.protocol.controlled_shutdown import ControlledShutdownRequest
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest
from millstream_kafka.protocol.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from millstream_kafka.protocol.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

pytestmark = pytest.mark.process

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


@pytest.fixture(scope="module")
def cluster(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    """A cluster in which silent replicas stay in the ISR."""
    folder = tmp_path_factory.mktemp("trust")
    with ClusterProcesses(folder, config=STABLE, zookeeper=shared_zookeeper) as cluster:
        yield cluster


class Known(NamedTuple):
    """The state in coordination."""

    controller: int
    controller_epoch: int
    broker_epochs: dict[int, int]
    secret: bytes


def known(cluster: ClusterProcesses) -> Known:
    zookeeper = KazooClient(cluster.connect)
    zookeeper.start(60)
    try:
        secret = b""
        if zookeeper.exists("/cluster/secret"):
            secret = bytes.fromhex(json.loads(zookeeper.get("/cluster/secret")[0])["secret"])
        return Known(
            json.loads(zookeeper.get("/controller")[0])["brokerid"],
            int(zookeeper.get("/controller_epoch")[0]),
            {number: zookeeper.get(f"/brokers/ids/{number}")[1].czxid for number in cluster.brokers},
            secret,
        )
    finally:
        zookeeper.stop()
        zookeeper.close()


def create(cluster: ClusterProcesses, name: str, partitions: int = 1, bootstrap: str | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap or cluster.bootstrap, **PATIENT})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(60)
    cluster.await_in_sync(name)


def leader_number(cluster: ClusterProcesses, topic: str) -> int:
    leader = cluster.leader(topic)
    return next(number for number, one in cluster.brokers.items() if one is leader)


def id_of(cluster: ClusterProcesses, topic: str) -> uuid.UUID:
    return cluster.metadata(topic).topics[0].topic_id


def works(cluster: ClusterProcesses, topic: str) -> None:
    """Check that every replica is in sync, has a log, and accepts writes."""
    cluster.await_in_sync(topic)
    assert all((one.data / f"{topic}-0").is_dir() for one in cluster.brokers.values())
    with Wire(cluster.leader(topic).bootstrap) as wire:
        assert wire.produce(topic, [record("more")], acks=-1).error_code == 0


def stop_request(controller: int, controller_epoch: int, broker_epoch: int, topic: str) -> StopReplicaRequest:
    states = [StopReplicaPartitionState(0, epoch, True) for epoch in (-2, -1, 0, INT_MAX)]
    return StopReplicaRequest(
        controller, controller_epoch, broker_epoch, [StopReplicaTopicState(topic, states)]
    )


def update_request(
    controller: int, controller_epoch: int, broker_epoch: int, topic: str, topic_id: uuid.UUID
) -> UpdateMetadataRequest:
    """An update that leaves the topic without a leader and adds a broker that does not exist."""
    gone = UpdateMetadataPartitionState(0, controller_epoch, -1, INT_MAX, [], INT_MAX, [1, 2, 3], [])
    return UpdateMetadataRequest(
        controller,
        controller_epoch,
        broker_epoch,
        [UpdateMetadataTopicState(topic, topic_id, [gone])],
        [UpdateMetadataBroker(9, [UpdateMetadataEndpoint(1, "127.0.0.1", "PLAINTEXT", 0)], None)],
    )


async def astray(
    cluster: ClusterProcesses, facts: Known, number: int, to: int, epoch: int | None = None
) -> Connection:
    """A connection that authenticates as broker `number`."""
    own = facts.broker_epochs.get(number, 1) if epoch is None else epoch
    host, port = cluster.brokers[to].bootstrap.split(":")
    broker = BrokerRecord(to, (Listener("PLAINTEXT", host, int(port)),))
    return await InterBroker(number, "PLAINTEXT", facts.secret, lambda: own).connect(
        broker, "astray", timeout_s=60
    )


def test_nobody_but_the_controller_stops_replicas(cluster: ClusterProcesses) -> None:
    create(cluster, "kept")
    facts = known(cluster)
    for number, broker in cluster.brokers.items():
        with Wire(broker.bootstrap) as wire:
            for controller_epoch in (0, 1, facts.controller_epoch, facts.controller_epoch + 1, INT_MAX):
                for broker_epoch in (-1, 0, facts.broker_epochs[number], 2**31 - 1, LONG_MAX):
                    for controller in (facts.controller, 1, 9):
                        request = stop_request(controller, controller_epoch, broker_epoch, "kept")
                        answer = wire.call(stop_replica.API, 3, request)
                        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                        assert answer.partition_errors == []
    works(cluster, "kept")


def test_nobody_but_the_controller_tells_of_the_cluster(cluster: ClusterProcesses) -> None:
    create(cluster, "told")
    facts = known(cluster)
    victim = leader_number(cluster, "told")
    topic_id = id_of(cluster, "told")
    with Wire(cluster.brokers[victim].bootstrap) as wire:
        for controller_epoch in (0, facts.controller_epoch, facts.controller_epoch + 1, INT_MAX):
            for broker_epoch in (facts.broker_epochs[victim], LONG_MAX):
                request = update_request(facts.controller, controller_epoch, broker_epoch, "told", topic_id)
                answer = wire.call(update_metadata.API, 7, request)
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    works(cluster, "told")
    # The same requests over this listener reach the controller: topics are created, leaders change.
    create(cluster, "told-later", bootstrap=cluster.brokers[victim].bootstrap)
    works(cluster, "told-later")


def test_a_broker_that_is_not_the_controller_is_not_taken_for_it(cluster: ClusterProcesses) -> None:
    """Even with the secret: its requests are checked against ZooKeeper and have no effect."""
    create(cluster, "astray")
    topic_id = id_of(cluster, "astray")
    facts = known(cluster)
    other, victim = (number for number in (1, 2, 3) if number != facts.controller)
    own = facts.broker_epochs[victim]

    async def say() -> None:
        connection = await astray(cluster, facts, other, victim)
        in_its_name = await astray(cluster, facts, facts.controller, victim)
        cases: list[tuple[Connection, int, int, int, ErrorCode]] = [
            (
                connection,
                facts.controller,
                facts.controller_epoch,
                own,
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ),
            (connection, facts.controller, INT_MAX, LONG_MAX, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            (connection, other, facts.controller_epoch, own, ErrorCode.NOT_CONTROLLER),
            (connection, other, facts.controller_epoch + 1, own, ErrorCode.NOT_CONTROLLER),
            (connection, other, INT_MAX, own, ErrorCode.NOT_CONTROLLER),
            (in_its_name, facts.controller, facts.controller_epoch + 1, own, ErrorCode.NOT_CONTROLLER),
            (
                in_its_name,
                facts.controller,
                facts.controller_epoch - 1,
                own,
                ErrorCode.STALE_CONTROLLER_EPOCH,
            ),
            *(
                (in_its_name, facts.controller, facts.controller_epoch, epoch, ErrorCode.STALE_BROKER_EPOCH)
                for epoch in (-1, 0, own - 1, own + 1, LONG_MAX)
            ),
        ]
        for by, controller, controller_epoch, broker_epoch, expected in cases:
            stop = stop_request(controller, controller_epoch, broker_epoch, "astray")
            assert (await by.call(stop_replica.API, 3, stop)).error_code == expected
            update = update_request(controller, controller_epoch, broker_epoch, "astray", topic_id)
            assert (await by.call(update_metadata.API, 7, update)).error_code == expected
        shutdown = ControlledShutdownRequest(victim, own)
        asked = await astray(cluster, facts, other, facts.controller)
        answer = await asked.call(controlled_shutdown.API, 3, shutdown)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for one in (connection, in_its_name, asked):
            await one.close()

    asyncio.run(say())
    works(cluster, "astray")
    create(cluster, "astray-later", bootstrap=cluster.brokers[victim].bootstrap)


def test_nobody_stops_a_broker_in_its_name(cluster: ClusterProcesses) -> None:
    create(cluster, "stays")
    facts = known(cluster)
    victim = leader_number(cluster, "stays")
    for broker in cluster.brokers.values():
        with Wire(broker.bootstrap) as wire:
            request = ControlledShutdownRequest(victim, facts.broker_epochs[victim])
            answer = wire.call(controlled_shutdown.API, 3, request)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert leader_number(cluster, "stays") == victim


# Forged replicas


def as_replica(
    number: int, topic: str, offset: int, epoch: int, *, session_id: int = 0, session_epoch: int = 0
) -> FetchRequest:
    asked = FetchPartition(0, epoch, offset, epoch, 0, 1 << 20)
    return FetchRequest(
        replica_id=number,
        max_wait_ms=0,
        min_bytes=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic, partitions=[asked])],
    )


def test_a_made_up_replica_acknowledges_nothing(cluster: ClusterProcesses) -> None:
    """Both followers are paused; a forged fetch from the end of the log moves nothing."""
    create(cluster, "forged")
    number = leader_number(cluster, "forged")
    leader = cluster.brokers[number]
    others = [each for each in cluster.brokers if each != number]
    epoch = cluster.partitions("forged")[0].leader_epoch
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("forged", [record("safe")], acks=-1).error_code == 0
    for other in others:
        cluster.brokers[other].pause()
    try:
        with Wire(leader.bootstrap) as producer, Wire(leader.bootstrap) as forger:
            request = produce_request(
                "forged", build_batch([record("nobody has it")]), acks=-1, timeout_ms=2000
            )
            producer.send(produce.API, 9, request)
            until(lambda: len_of(leader, "forged") > 100, "the leader has it")
            for offset in (2, 3, LONG_MAX, -1, 0, 1, 2):
                for session_epoch in (0, -1):
                    for other in others:
                        forged = as_replica(other, "forged", offset, epoch, session_epoch=session_epoch)
                        answer = forger.call(fetch.API, 12, forged)
                        assert code_of(answer) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            asked = list_offsets.ListOffsetsRequest(
                others[0],
                0,
                [list_offsets.ListOffsetsTopic("forged", [list_offsets.ListOffsetsPartition(0, -1, -1)])],
            )
            end = forger.call(list_offsets.API, 7, asked).topics[0].partitions[0]
            assert (end.error_code, end.offset) == (0, 1)
            acknowledged = producer.receive().responses[0].partition_responses[0]
            assert acknowledged.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert forger.fetch("forged", 1).high_watermark == 1
    finally:
        for other in others:
            cluster.brokers[other].resume()
    works(cluster, "forged")


def code_of(answer: FetchResponse) -> int:
    return answer.error_code or answer.responses[0].partitions[0].error_code


def len_of(broker: BrokerProcess, topic: str) -> int:
    return sum(path.stat().st_size for path in (broker.data / f"{topic}-0").glob("*.log"))


def test_made_up_replicas_end_no_session_and_leave_nothing(cluster: ClusterProcesses) -> None:
    create(cluster, "crowded")
    leader = cluster.leader("crowded")
    epoch = cluster.partitions("crowded")[0].leader_epoch
    many = [
        FetchTopic(f"made-up-{topic}", partitions=[FetchPartition(index) for index in range(1000)])
        for topic in range(20)
    ]
    with Load(cluster.bootstrap, "crowded", pause_s=0.001) as load:
        load.until(50)
        with Wire(leader.bootstrap) as wire:
            wire.call(fetch.API, 12, FetchRequest(replica_id=4, session_epoch=0, topics=many))
            before = resident_mb(leader.pid)
            for number in range(1000):
                answer = wire.call(fetch.API, 12, as_replica(number, "crowded", 0, epoch))
                assert code_of(answer) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                assert answer.session_id == 0
            for number in range(10):
                answer = wire.call(
                    fetch.API, 12, FetchRequest(replica_id=number, session_epoch=0, topics=many)
                )
                assert answer.session_id == 0
            assert resident_mb(leader.pid) - before < 50
        load.until(load.ledger.count + 50)
    assert load.ledger.failed == []
    check(cluster.bootstrap, "crowded", [load])
    works(cluster, "crowded")


def test_a_session_is_one_connections_of_one_incarnation(cluster: ClusterProcesses) -> None:
    """The rules among brokers apply to every client that has the secret."""
    create(cluster, "sessions")
    facts = known(cluster)
    number = leader_number(cluster, "sessions")
    epoch = cluster.partitions("sessions")[0].leader_epoch
    stranger, own = 77, 10

    async def fetch_in_turn() -> None:
        first = await astray(cluster, facts, stranger, number, own)
        second = await astray(cluster, facts, stranger, number, own)
        earlier = await astray(cluster, facts, stranger, number, own - 1)
        later = await astray(cluster, facts, stranger, number, own + 1)
        other = next(each for each in cluster.brokers if each != number)
        zombie = await astray(cluster, facts, other, number, facts.broker_epochs[other] - 1)

        async def ask(
            by: Connection, replica: int, session_id: int = 0, session_epoch: int = 0
        ) -> FetchResponse:
            request = as_replica(
                replica, "sessions", 0, epoch, session_id=session_id, session_epoch=session_epoch
            )
            return await by.call(fetch.API, 12, request)

        begun = await ask(first, stranger)
        assert begun.session_id
        # It is no replica of the partition: each fetch reports that, until the partition is forgotten.
        assert code_of(begun) == ErrorCode.UNKNOWN_LEADER_EPOCH
        for by, expected in (
            (second, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (earlier, ErrorCode.STALE_BROKER_EPOCH),
        ):
            answer = await ask(by, stranger, begun.session_id, 1)
            assert (answer.error_code, answer.session_id) == (expected, 0)
        assert (await ask(earlier, stranger)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert (await ask(zombie, other)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert code_of(await ask(first, other)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await ask(first, stranger, begun.session_id, 1)).session_id == begun.session_id
        nothing = FetchRequest(
            replica_id=stranger, max_wait_ms=0, session_id=begun.session_id, session_epoch=2, topics=[]
        )
        assert code_of(await first.call(fetch.API, 12, nothing)) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await ask(later, stranger)).session_id
        assert (await ask(first, stranger)).error_code == ErrorCode.STALE_BROKER_EPOCH
        for one in (first, second, earlier, later, zombie):
            await one.close()

    asyncio.run(fetch_in_turn())
    works(cluster, "sessions")


# Proof of being a broker


def test_who_does_not_know_the_secret_proves_nothing(cluster: ClusterProcesses) -> None:
    facts = known(cluster)

    def begin(wire: Wire) -> bytes:
        shaken = wire.call(sasl_handshake.API, 1, SaslHandshakeRequest(MECHANISM))
        assert (shaken.error_code, shaken.mechanisms) == (0, [MECHANISM])
        return bytes(step(wire, b"").auth_bytes)

    def step(wire: Wire, auth_bytes: bytes) -> Any:
        return wire.call(sasl_authenticate.API, 2, SaslAuthenticateRequest(auth_bytes))

    proven: bytes = b""

    def prove(secret: bytes, challenge: bytes, answering: int) -> bytes:
        import hmac
        import struct

        claim = struct.pack(">iq", 2, facts.broker_epochs[2])
        return claim + hmac.digest(secret, challenge + struct.pack(">i", answering) + claim, "sha256")

    with Wire(cluster.brokers[1].bootstrap) as wire:
        assert step(wire, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
        for wrong in (b"", b"x", b"x" * 44, b"x" * 100_000):
            begin(wire)
            assert step(wire, wrong).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert step(wire, wrong).error_code == ErrorCode.ILLEGAL_SASL_STATE
        challenges = [begin(wire) for _ in range(3)]
        assert len(set(challenges)) == 3
        for secret, challenge, answering in (
            (b"", challenges[-1], 1),
            (b"guessed", challenges[-1], 1),
            (facts.secret, challenges[0], 1),
            (facts.secret, b"", 1),
            (facts.secret, challenges[-1], 3),
        ):
            begin(wire)
            answer = step(wire, prove(secret, challenge, answering))
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        request = as_replica(2, "any", 0, 0)
        assert code_of(wire.call(fetch.API, 12, request)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        proven = prove(facts.secret, begin(wire), 1)
        assert step(wire, proven).error_code == 0
        assert code_of(wire.call(fetch.API, 12, request)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with Wire(cluster.brokers[1].bootstrap) as wire:
        begin(wire)
        assert step(wire, proven).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_broker_by_itself_takes_nobody_for_a_broker(shared_broker: BrokerProcess) -> None:
    with Wire(shared_broker.bootstrap) as wire:
        assert wire.call(sasl_handshake.API, 1, SaslHandshakeRequest(MECHANISM)).error_code == 0
        wire.call(sasl_authenticate.API, 2, SaslAuthenticateRequest(b""))
        refused = wire.call(sasl_authenticate.API, 2, SaslAuthenticateRequest(bytes(44)))
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        answer = wire.call(fetch.API, 12, as_replica(2, "any", 0, 0))
        assert code_of(answer) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_brokers_prove_it_on_their_listener_alone(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """While `inter.broker.listener.name` changes, one broker after the other, they still reach each other."""
    both = {**STABLE, "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"}
    cluster = ClusterProcesses(tmp_path, config=both, zookeeper=shared_zookeeper)
    outside = {}
    for number, broker in cluster.brokers.items():
        outside_port = int(broker.config["listeners"].rsplit(":")[-1])
        inside_port = fixed_port()
        broker.config["listeners"] = f"OUTSIDE://127.0.0.1:{outside_port},INSIDE://127.0.0.1:{inside_port}"
        broker.config["inter.broker.listener.name"] = "INSIDE"
        outside[number] = (f"127.0.0.1:{outside_port}", f"127.0.0.1:{inside_port}")
    with cluster:
        create(cluster, "t", 3, outside[1][0])
        for places in outside.values():
            codes = []
            for place in places:
                with Wire(place) as wire:
                    codes.append(wire.call(sasl_handshake.API, 1, SaslHandshakeRequest(MECHANISM)).error_code)
            assert codes == [ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.NONE]
        changed = cluster.brokers[1]
        changed.stop()
        changed.config["inter.broker.listener.name"] = "OUTSIDE"
        changed.start()
        cluster.await_in_sync("t")
        for partition in range(3):
            with Wire(cluster.leader("t", partition).bootstrap) as wire:
                assert wire.produce("t", [record("x")], partition=partition, acks=-1).error_code == 0
