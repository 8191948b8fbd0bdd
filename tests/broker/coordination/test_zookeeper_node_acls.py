"""`zookeeper.set.acl` on a real ZooKeeper: what a stranger can read and change, and trees from before the setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions as kazoo
from kazoo.client import KazooClient

from millstream_broker.broker import StartError
from millstream_broker.cluster.joining import shared_store
from millstream_broker.config.config import BrokerConfig
from millstream_broker.coordination.stores import Create
from millstream_broker.coordination.tree import CLUSTER_SECRET
from millstream_harness.certificates import Authority
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.secured_zookeeper import USERS, SecuredZooKeeper, login

pytestmark = pytest.mark.soak

USERS_OF_BOTH = USERS | {"stranger": "another secret"}
STRANGER = {"zookeeper.sasl.jaas.config": login("stranger", "another secret")}
SET_ACL = {"zookeeper.set.acl": "true"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    with SecuredZooKeeper(tmp_path_factory.mktemp("sasl"), users=USERS_OF_BOTH) as server:
        yield server


@contextmanager
def stranger(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect)
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def open_nodes(client: KazooClient, path: str = "/") -> set[str]:
    """Nodes that everybody may change, or read although they are secrets."""
    try:
        acls, _ = client.get_acls(path)
        children = client.get_children(path)
    except kazoo.NoAuthError:
        return set()
    secret = path == CLUSTER_SECRET or path.startswith(("/config/users", "/config/brokers"))
    found = (
        {path} if any(each.id.scheme == "world" and (secret or each.perms != 1) for each in acls) else set()
    )
    return found.union(*(open_nodes(client, f"{path.rstrip('/')}/{name}") for name in children))


async def test_a_stranger_reads_no_secret_and_changes_nothing(
    server: SecuredZooKeeper, tmp_path: Path
) -> None:
    config = server.config() | SET_ACL
    async with running(tmp_path, config) as broker, connected(broker) as client:
        await create(client, "a")
        with stranger(config["zookeeper.connect"]) as outside:
            await until(lambda: open_nodes(outside) == {"/consumers"})
            assert outside.get("/brokers/topics/a")[0]
            for path in (CLUSTER_SECRET, "/config/users", "/config/brokers"):
                with pytest.raises(kazoo.NoAuthError):
                    outside.get(path)
            changes: list[Any] = [
                lambda: outside.delete("/controller"),
                lambda: outside.delete("/controller_epoch"),
                lambda: outside.set("/brokers/topics/a/partitions/0/state", b""),
                lambda: outside.create("/admin/delete_topics/a"),
                lambda: outside.create("/brokers/ids/7", ephemeral=True),
                lambda: outside.set("/cluster/id", b""),
                lambda: outside.create("/anything"),
            ]
            for change in changes:
                with pytest.raises(kazoo.NoAuthError):
                    change()
            outside.create("/consumers/group")


async def test_nodes_have_their_acl_from_the_moment_they_are_created(server: SecuredZooKeeper) -> None:
    config = server.config() | SET_ACL
    open_store = shared_store(BrokerConfig(config))
    assert open_store is not None
    session = open_store()
    session.start()
    try:
        await session.connected()
        await session.ensure("/cluster", "/config/users", "/consumers", "/brokers")
        await session.create(CLUSTER_SECRET, b"secret")
        await session.multi([Create("/config/users/alice", b"secret"), Create("/brokers/ids")])
        with stranger(config["zookeeper.connect"]) as outside:
            assert open_nodes(outside) == {"/consumers"}
            assert outside.get_children("/brokers") == ["ids"]
            for path in (CLUSTER_SECRET, "/config/users/alice"):
                with pytest.raises(kazoo.NoAuthError):
                    outside.get(path)
    finally:
        await session.close(5.0)


async def test_a_tree_from_before_the_setting_becomes_restricted(
    server: SecuredZooKeeper, tmp_path: Path
) -> None:
    """So does an older copy that is restored: whatever is open when a controller is elected."""
    config = server.config()
    async with running(tmp_path, config) as broker, connected(broker) as client:
        for topic in ("a", "b"):
            await create(client, topic, partitions=3)
    with stranger(config["zookeeper.connect"]) as outside:
        assert {"/", "/brokers/topics/a/partitions/2/state", CLUSTER_SECRET} < open_nodes(outside)
        async with running(tmp_path, config | SET_ACL) as broker:
            await until(lambda: open_nodes(outside) == {"/consumers"})
            assert set(broker.replicas.metadata.state.topics) == {"a", "b"}


@pytest.mark.parametrize(
    "credentials", [{"zookeeper.sasl.jaas.config": ""}, STRANGER], ids=["none", "another's"]
)
async def test_a_broker_without_the_credentials_does_not_start(
    credentials: dict[str, str], server: SecuredZooKeeper, tmp_path: Path
) -> None:
    config = server.config() | SET_ACL
    async with running(tmp_path / "1", config) as broker, connected(broker) as client:
        await create(client, "a")
        wrong = {key: value for key, value in (config | credentials).items() if value}
        wrong = wrong | {"broker.id": "2", "zookeeper.set.acl": "false"}
        with pytest.raises(StartError, match=r"refuses the broker: .* Set zookeeper\.sasl\.jaas\.config"):
            async with running(tmp_path / "2", wrong):
                pass
        assert set(broker.replicas.metadata.state.topics) == {"a"}


async def test_brokers_are_known_by_the_subject_of_their_certificate(tmp_path: Path) -> None:
    authority = Authority()
    with SecuredZooKeeper(tmp_path / "z", authority=authority, needs_client_certificate=True) as server:
        config = server.config() | SET_ACL
        async with running(tmp_path / "1", config) as broker, connected(broker) as client:
            await create(client, "a")
        server.certify(authority)  # another key and certificate, the same subject
        async with running(tmp_path / "1", config) as broker:
            await until(lambda: "a" in broker.replicas.metadata.state.topics)
        authority.issue("other").write(server.folder / "broker.pem")
        with pytest.raises(StartError, match="refuses the broker"):
            async with running(tmp_path / "1", config):
                pass
