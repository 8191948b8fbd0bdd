"""Workers as the operator runs them where Clusters ask for a login and check access rules: with a user of their own.

The operator's objects are in memory; its requests, the brokers and the worker are real.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_harness.in_memory import MemoryKube, stored
from millstream_harness.manifests import cluster, resource
from millstream_harness.mirror import OF_MIRRORS, MirrorProcess, arrived, create, produce
from millstream_harness.mirror_groups import commit, follows
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_harness.scenario import eventually, unique
from millstream_kafka.admin.client import AdminClient as Admin
from millstream_kafka.client import AuthenticationFailed, ClusterClient, Credential, Sasl, Security
from millstream_kafka.protocol.errors import ApiError
from millstream_operator.kafka.client_config import ClientConfig
from millstream_operator.kafka.records import ScramMechanism, ScramUser
from millstream_operator.kubernetes.client import Kube
from millstream_operator.models import Cluster, MirrorMaker, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.reconcile.common.pod_users import remove_unused_users
from millstream_operator.reconcile.mirror.apply import reconcile_mirror

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("west"), OF_MIRRORS) as found:
        yield found


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("east"), OF_MIRRORS) as found:
        yield found


class Operated:
    """A MirrorMaker from west to east, and its worker."""

    def __init__(self, folder: Path, west: Guarded, east: Guarded, **spec: Any) -> None:
        self.brokers = {"west": west, "east": east}
        self.name = unique("mirror")
        wanted = {
            "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
            "target": {"clusterRef": {"name": "east"}},
            **spec,
        }
        manifest = stored(resource("MirrorMaker", self.name, **wanted))
        platform = {
            name: {"platform": {"bootstrap": where.login, "secret": "s", "internal": "Open"}}
            for name, where in self.brokers.items()
        }
        clusters = [stored(cluster(name), status) for name, status in platform.items()]
        self.kube = MemoryKube(*clusters, manifest)
        self.services = services_on_kubernetes(self.kube, reach=self._reach)
        for one in clusters:
            self.services.store.put(one)
        self.folder = folder
        self.worker = MirrorProcess(folder / self.name, {}, "")

    def _reach(self, kube: Kube, found: Cluster) -> ClientConfig:
        return ClientConfig(self.brokers[found.name].bootstrap)

    @property
    def user(self) -> str:
        return f"millstream-pods.mirrormaker.u-{self.name}"

    @property
    def password(self) -> str:
        secret = self.kube.objects["Secret", f"{self.name}-mirror-user"]
        return base64.b64decode(secret["data"]["password"]).decode()

    def look(self) -> None:
        """Reconcile, and mount what a pod mounts."""
        manifest = self.kube.objects["MirrorMaker", self.name]
        self.services.store.put(manifest)
        reconcile_mirror(self.services, decode_as(MirrorMaker, manifest))
        text = self.kube.objects["ConfigMap", f"{self.name}-mirror"]["data"]["mirror.json"]
        file = json.loads(text.replace("/run/millstream/secrets", str(self.folder)))
        self.worker.config = {**file, "http": "127.0.0.1:0"}
        where = self.folder / f"{self.name}-mirror-user"
        where.mkdir(exist_ok=True)
        (where / "password").write_text(self.password)

    def sweep(self, name: str) -> None:
        found = decode_as(Cluster, self.kube.objects["Cluster", name])
        remove_unused_users(self.services, found, self.services.brokers_of(found))

    def problems(self) -> list[Any]:
        (source,) = self.worker.status()["sources"]
        return [*source["problems"], *filter(None, [source["lastError"]])]

    def client(self, at: Guarded) -> ClusterClient:
        """A client as the worker's user."""
        login = Sasl("SCRAM-SHA-512", *(Credential("", "", value=one) for one in (self.user, self.password)))
        return ClusterClient(at.login, security=Security(sasl=login))

    def close(self) -> None:
        self.worker.kill()
        self.services.admins.close()


async def topics_of(client: ClusterClient) -> set[str | None]:
    async with client:
        return {topic.name for topic in (await client.metadata(None)).topics}


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
async def test_worker_has_the_rights_that_it_needs_and_no_others(
    west: Guarded, east: Guarded, tmp_path: Path, mode: str
) -> None:
    prefix, group = unique(f"orders-{mode}"), unique("app")
    topic, hidden, other = f"{prefix}.eu", f"{prefix}.secret", unique("other")
    mirror = Operated(
        tmp_path,
        west,
        east,
        mode=mode,
        topics={"include": [f"{prefix}[.].*"], "exclude": [hidden]},
        groups={"include": [group]},
    )
    for name in (topic, hidden, other):
        await asyncio.to_thread(create, west, name, 2, retention_ms="123456789")
    await asyncio.to_thread(produce, west, topic, range(1000), 2)
    try:
        await asyncio.to_thread(mirror.look)
        await asyncio.to_thread(mirror.worker.start)
        await asyncio.to_thread(arrived, east, topic, [500, 500])
        await asyncio.to_thread(commit, west, group, topic, 123, 45)
        await asyncio.to_thread(follows, east, group, topic, 123, 45)
        assert mirror.problems() == []
        assert await topics_of(mirror.client(west)) == {topic}
        assert await topics_of(mirror.client(east)) == {topic}
        async with mirror.client(west) as client:
            with pytest.raises(ApiError, match="AUTHORIZATION"):
                await Admin(client).scram_credentials()
        more = AdminClient({"bootstrap.servers": west.bootstrap})
        await asyncio.to_thread(more.create_partitions([NewPartitions(topic, 3)])[topic].result, 20)
        await asyncio.to_thread(produce, west, topic, range(2000, 2300), 3)
        await asyncio.to_thread(arrived, east, topic, [600, 600, 100])
        await asyncio.to_thread(mirror.worker.kill)
        await asyncio.to_thread(produce, west, topic, range(3000, 3300), 3)
        await asyncio.to_thread(mirror.worker.start)
        await asyncio.to_thread(arrived, east, topic, [700, 700, 200])
        status = await asyncio.to_thread(
            eventually, mirror.worker.status, lambda now: now["lag"]["records"] == 0, "no lag"
        )
        assert status["sources"][0]["problems"] == []
        assert mirror.password not in mirror.worker.output.read_text()
    finally:
        mirror.close()


async def test_worker_goes_on_when_its_user_was_lost_or_has_another_password(
    west: Guarded, east: Guarded, tmp_path: Path
) -> None:
    """Brokers restored from an older copy do not know the user; a deleted Secret gives another password."""
    topic = unique("orders")
    mirror = Operated(tmp_path, west, east, topics={"include": [topic]})
    await asyncio.to_thread(create, west, topic)
    await asyncio.to_thread(produce, west, topic, range(100))
    found = decode_as(Cluster, mirror.kube.objects["Cluster", "east"])
    admin = mirror.services.brokers_of(found)
    user = ScramUser(mirror.user, ScramMechanism.SCRAM_SHA_512)
    try:
        await asyncio.to_thread(mirror.look)
        await asyncio.to_thread(mirror.worker.start)
        await asyncio.to_thread(arrived, east, topic, [100])
        first = mirror.password
        for number, lost in enumerate((True, False), 1):
            if lost:
                rules = await asyncio.to_thread(admin.rules, f"User:{mirror.user}")
                await asyncio.to_thread(admin.delete_rules, rules or ())
                await asyncio.to_thread(admin.change_scram_users, [], [user])
            else:
                del mirror.kube.objects["Secret", f"{mirror.name}-mirror-user"]
            await asyncio.to_thread(mirror.worker.kill)
            await asyncio.to_thread(produce, west, topic, range(100))
            await asyncio.to_thread(mirror.look)
            await asyncio.to_thread(mirror.worker.start)
            await asyncio.to_thread(arrived, east, topic, [100 * (number + 1)])
        assert mirror.password != first
    finally:
        mirror.close()


@pytest.mark.parametrize("seconds", [600, 0])
async def test_worker_logs_in_with_the_former_password_for_the_time_of_the_rotation(
    west: Guarded, east: Guarded, tmp_path: Path, seconds: int
) -> None:
    """A worker has it until Kubernetes has updated its file and it restarts."""
    topic = unique("orders")
    mirror = Operated(tmp_path, west, east, topics={"include": [topic]})
    try:
        await asyncio.to_thread(create, west, topic)
        await asyncio.to_thread(mirror.look)
        first, former = mirror.password, mirror.client(west)
        rotate = {"requestId": "1", "previousValidSeconds": seconds}
        mirror.kube.objects["MirrorMaker", mirror.name]["spec"]["rotate"] = rotate
        await asyncio.to_thread(mirror.look)
        assert mirror.password != first
        assert await topics_of(mirror.client(west)) == {topic}
        if seconds:
            assert await topics_of(former) == {topic}
        else:
            with pytest.raises(AuthenticationFailed):
                await topics_of(former)
    finally:
        mirror.close()


async def test_deleted_mirror_leaves_no_user_that_could_log_in(
    west: Guarded, east: Guarded, tmp_path: Path
) -> None:
    topic = unique("orders")
    mirror = Operated(tmp_path, west, east, topics={"include": [topic]})
    try:
        await asyncio.to_thread(create, west, topic)
        await asyncio.to_thread(mirror.look)
        assert await topics_of(mirror.client(west)) == {topic}
        mirror.services.store.remove(Key("MirrorMaker", "ns", mirror.name), f"u-{mirror.name}")
        for name, where in mirror.brokers.items():
            await asyncio.to_thread(mirror.sweep, name)
            with pytest.raises(AuthenticationFailed):
                await topics_of(mirror.client(where))
            admin = mirror.services.brokers_of(decode_as(Cluster, mirror.kube.objects["Cluster", name]))
            assert await asyncio.to_thread(admin.rules, f"User:{mirror.user}") == []
    finally:
        mirror.close()
