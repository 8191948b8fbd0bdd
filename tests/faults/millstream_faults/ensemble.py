"""The data of ZooKeeper's servers, as an operator handles it: copied, emptied, replaced, restored.

A client refuses a server that has seen fewer changes than itself. So the servers' epochs rise with each replacement, as
they do if the servers restart a few times: then running brokers meet the tree at once. A server by itself has no epoch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from kazoo.client import KazooClient

from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.kafka_uuid import uuid_text

EPOCHS = ("acceptedEpoch", "currentEpoch")
COPIED = ("/cluster", "/brokers/topics", "/config", "/controller_epoch")
"""What a tree has of its topics."""
CLUSTER = "/cluster/id"


class Ensemble:
    """The servers run between all calls."""

    def __init__(self, servers: Sequence[ZooKeeperProcess], folder: Path, root: str) -> None:
        """`root` is the path of the cluster's tree."""
        self.servers, self._folder, self.root = servers, folder, root
        self._copies = 0
        self._epoch = 0

    @property
    def connect(self) -> str:
        return ",".join(server.connect for server in self.servers)

    def copy(self) -> Path:
        """A copy of each server's data. The servers run: what they have acknowledged is in most of the copies."""
        self._copies += 1
        target = self._folder / f"copy-{self._copies}"
        for server in self.servers:
            _copy(server.data, target / str(server.number))
        return target

    def replace(self, copied: Path | None) -> None:
        """Restart all servers with the data of a copy, or with none."""
        for server in self.servers:
            server.kill()
        self._epoch = max(self._epoch, *(_epoch(server.data) for server in self.servers)) + 2
        for server in self.servers:
            shutil.rmtree(server.data)
            if copied is None:
                server.data.mkdir()
            else:
                _copy(copied / str(server.number), server.data)
            if len(self.servers) > 1:
                _put_epoch(server.data, self._epoch)
        self.start()

    def start(self) -> None:
        for server in self.servers:
            if server.process is None:
                server.launch_server()
        for server in self.servers:
            server.await_serving()

    def away(self) -> Path:
        """Kill all servers, and return their final data; `replace` puts it back."""
        for server in self.servers:
            server.kill()
        return self.copy()

    def tree(self) -> dict[str, bytes]:
        """The nodes of the topics, as they are now."""
        client = KazooClient(self.connect)
        client.start(60)
        try:
            nodes = (node for path in COPIED for node in _nodes(client, self.root + path))
            return {path.removeprefix(self.root): data for path, data in nodes}
        finally:
            client.stop()
            client.close()

    def write(self, nodes: dict[str, bytes], root: str) -> None:
        """Write these nodes below a path."""
        client = KazooClient(self.connect)
        client.start(60)
        try:
            for path, data in nodes.items():
                client.ensure_path(root + path)
                client.set(root + path, data)
        finally:
            client.stop()
            client.close()


def foreign(nodes: dict[str, bytes]) -> dict[str, bytes]:
    """The same topics, in another cluster: by other ids, its own first."""
    changed = {CLUSTER: json.dumps({"version": "1", "id": uuid_text(uuid.uuid4())}).encode()}
    for path, data in nodes.items():
        if path.startswith("/brokers/topics/") and path.count("/") == 3:
            topic = {**json.loads(data), "topic_id": uuid_text(uuid.uuid4())}
            changed[path] = json.dumps(topic).encode()
        else:
            changed.setdefault(path, data)
    return changed


def _nodes(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    if client.exists(path) is None:
        return
    yield path, client.get(path)[0]
    for child in client.get_children(path):
        yield from _nodes(client, f"{path}/{child}")


def _copy(source: Path, target: Path) -> None:
    """Transaction logs are files with large holes."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{source}/.", str(target)], check=True)


def _epoch(data: Path) -> int:
    found = [data / "version-2" / name for name in EPOCHS]
    return max((int(path.read_text()) for path in found if path.exists()), default=0)


def _put_epoch(data: Path, epoch: int) -> None:
    (data / "version-2").mkdir(exist_ok=True)
    for name in EPOCHS:
        (data / "version-2" / name).write_text(str(epoch))
