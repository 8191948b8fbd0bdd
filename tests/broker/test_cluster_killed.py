"""The end of a process is noticed at once: sessions last two minutes, and no test waits for one to expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.gate import Gate
from millstream_harness.ledger import Load, check
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

SESSION_S = 120
SOON_S = 60.0
"""Long on a busy machine, and well below a session."""


class Cluster(ClusterProcesses):
    """A cluster with sessions of SESSION_S."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperProcess) -> None:
        session = {"zookeeper.session.timeout.ms": str(SESSION_S * 1000)}
        super().__init__(folder, config=session, zookeeper=zookeeper)

    def epochs(self) -> dict[int, int]:
        """The epochs of the registered brokers, from ZooKeeper."""
        zookeeper = KazooClient(self.connect)
        zookeeper.start(SOON_S)
        try:
            stats = {number: zookeeper.exists(f"/brokers/ids/{number}") for number in self.brokers}
            return {number: stat.czxid for number, stat in stats.items() if stat is not None}
        finally:
            zookeeper.stop()
            zookeeper.close()

    def create(self, topic: str, *replicas: int) -> None:
        """One partition; the first replica leads."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[list(replicas)])])[topic].result(SOON_S)
        self.await_in_sync(topic)

    def await_other_leader(self, topic: str, than: int) -> None:
        """Wait for another leader, as another broker reports it."""
        teller = next(one for number, one in self.brokers.items() if number != than)
        until(
            lambda: self.partitions(topic, teller)[0].leader_id not in (-1, than),
            f"{topic} is led by another broker than {than}",
            SOON_S,
        )

    def await_other_controller(self, than: int) -> None:
        tellers = [one for number, one in self.brokers.items() if number != than]
        until(
            lambda: all(self.metadata(of=one).controller_id not in (-1, than) for one in tellers),
            f"another broker than {than} is the controller",
            SOON_S,
        )


class GatedCluster(Cluster):
    """Brokers reach each other through gates, clients reach them directly."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperProcess) -> None:
        self.gates: dict[int, Gate] = {}
        super().__init__(folder, zookeeper)

    def broker(self, number: int, **config: str) -> BrokerProcess:
        broker = super().broker(number, **config)
        behind = fixed_port()
        gate = self.gates[number] = Gate(behind)
        clients = broker.config["listeners"]
        broker.config |= {
            "listeners": f"{clients},BROKERS://127.0.0.1:{behind}",
            "advertised.listeners": f"{clients},BROKERS://127.0.0.1:{gate.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        }
        return broker


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    folder = tmp_path_factory.mktemp("zookeeper")
    with ZooKeeperProcess(folder) as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperProcess) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("killed"), zookeeper) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperProcess) -> Iterator[GatedCluster]:
    with GatedCluster(tmp_path_factory.mktemp("refused"), zookeeper) as cluster:
        yield cluster


def acknowledges(load: Load) -> None:
    """Wait until a record sent from now on is acknowledged."""
    load.until(sum(load.ledger.sent.values()) + 1, SOON_S)


def load(cluster: Cluster, topic: str) -> Load:
    return Load(cluster.bootstrap, topic, pause_s=0.01)


def test_a_leader_is_killed(cluster: Cluster) -> None:
    controller = cluster.controller()
    leader, other = (number for number in cluster.brokers if number != controller)
    cluster.create("led", leader, other, controller)
    with load(cluster, "led") as loaded:
        loaded.until(100)
        cluster.brokers[leader].kill()
        cluster.await_other_leader("led", leader)
        acknowledges(loaded)
        assert leader not in cluster.epochs()
        cluster.brokers[leader].start()
        cluster.await_in_sync("led")
        assert cluster.controller() == controller
    check(cluster.bootstrap, "led", [loaded])


def test_the_controller_is_killed(cluster: Cluster) -> None:
    """It is also a leader; the next controller replaces it at once."""
    controller = cluster.controller()
    cluster.create("controlled", controller, *(one for one in cluster.brokers if one != controller))
    with load(cluster, "controlled") as loaded:
        loaded.until(100)
        cluster.brokers[controller].kill()
        cluster.await_other_controller(controller)
        cluster.await_other_leader("controlled", controller)
        acknowledges(loaded)
        cluster.brokers[controller].start()
        cluster.await_in_sync("controlled")
    check(cluster.bootstrap, "controlled", [loaded])


def test_a_silent_leader_keeps_its_session(cluster: Cluster) -> None:
    controller = cluster.controller()
    leader, other = (number for number in cluster.brokers if number != controller)
    cluster.create("silent", leader, other, controller)
    cluster.create("speaking", other, leader, controller)
    epochs = cluster.epochs()
    with load(cluster, "silent") as loaded, load(cluster, "speaking") as speaking:
        loaded.until(100)
        cluster.brokers[leader].pause()
        try:
            teller = cluster.brokers[other]
            until(
                lambda: leader not in cluster.partitions("speaking", teller)[0].isr_nodes,
                "a leader misses the one that is silent",
                SOON_S,
            )
            acknowledges(speaking)
            assert cluster.epochs() == epochs
            assert cluster.partitions("silent", teller)[0].leader_id == leader
        finally:
            cluster.brokers[leader].resume()
        acknowledges(loaded)
        cluster.await_in_sync("speaking")
        assert cluster.epochs() == epochs
    check(cluster.bootstrap, "silent", [loaded])
    check(cluster.bootstrap, "speaking", [speaking])


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_broker_that_is_wrongly_taken_for_ended(gated: GatedCluster, is_controller: bool) -> None:
    """Refuse brokers' connections but not clients'. The broker lives, registers again once, and loses nothing.

    A new controller may first see it after it has registered again; it then keeps its leaderships.
    """
    controller = gated.controller()
    others = [number for number in gated.brokers if number != controller]
    order = (controller, *others) if is_controller else (*others, controller)
    leader, topic = order[0], f"refused-{is_controller}"
    gated.create(topic, *order)
    before = gated.epochs()
    with load(gated, topic) as loaded:
        loaded.until(100)
        gated.gates[leader].shut()
        if is_controller:
            gated.await_other_controller(controller)
        else:
            gated.await_other_leader(topic, leader)
            acknowledges(loaded)
        until(lambda: gated.epochs().get(leader, 0) > before[leader], "it registers again", SOON_S)
        after = gated.epochs()
        gated.gates[leader].open()
        gated.await_in_sync(topic)
        acknowledges(loaded)
        assert gated.epochs() == after
        assert {number for number in after if after[number] != before[number]} == {leader}
    check(gated.bootstrap, topic, [loaded])
