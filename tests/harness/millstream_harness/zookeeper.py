"""ZooKeeper as real processes: one server, or an ensemble; started, killed, paused and restarted.

The server is Apache ZooKeeper from Spark's jars. Sessions last as long as a test requests, from 400 ms (two ticks) to
two minutes. Ports and data stay across restarts.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from millstream_harness.broker import fixed_port
from millstream_harness.daemon import Daemon
from millstream_harness.java import java_command
from millstream_harness.scenario import eventually
from millstream_operator.local import zookeeper as local

TICK_MS = 200
MAX_SESSION_MS = 120_000
"""The server's default is twenty ticks: a busy machine loses sessions of four seconds."""
JVM = (*local.JVM, "-Dzookeeper.forceSync=no")


def zookeeper_command(main: str, *args: str, options: Sequence[str] = JVM, log: str = "broker") -> list[str]:
    """The command that runs a class of ZooKeeper's."""
    return java_command(main, *args, options=options, log=log, classpath=local.classpath())


class ZooKeeperProcess(Daemon):
    """One server over one folder; alone, or with ``peers``: each server's number, quorum and election port."""

    name = "ZooKeeper"

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        number: int = 1,
        peers: dict[int, tuple[int, int]] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(folder, "zookeeper.log")
        self.host = host
        self.number = number
        self.peers = peers or {}
        self.data = folder / "data"
        self.port = port or fixed_port()

    @property
    def connect(self) -> str:
        """The value for `zookeeper.connect`."""
        return f"{self.host}:{self.port}"

    def own_tree(self) -> str:
        """The same with an unused path, so that many tests can share a server."""
        return f"{self.connect}/{uuid.uuid4().hex}"

    def launch_server(self) -> Self:
        """Start it without waiting; a server of an ensemble is ready only with a quorum."""
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / "myid").write_text(str(self.number))
        settings: dict[str, object] = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": MAX_SESSION_MS,
            "initLimit": 50,
            "syncLimit": 10,
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        settings |= {
            f"server.{number}": f"127.0.0.1:{quorum}:{election}"
            for number, (quorum, election) in self.peers.items()
        }
        settings |= self.more_settings()
        file = self.folder / "zoo.cfg"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items() if value is not None))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.launch(zookeeper_command(main, str(file), options=(*JVM, *self.java_options())))
        return self

    def more_settings(self) -> dict[str, object]:
        """Settings over those of every server; None removes one."""
        return {}

    def java_options(self) -> list[str]:
        return []

    def start(self) -> Self:
        """Start it and wait until it serves."""
        self.launch_server()
        self.await_serving()
        return self

    def await_serving(self) -> None:
        self.await_ready(lambda _: "Mode: " in self.ask("srvr"))

    def ask(self, word: str) -> str:
        """The response to one of ZooKeeper's four-letter words; "" without a response."""
        with contextlib.suppress(OSError), self.socket() as asked:
            asked.sendall(word.encode())
            return b"".join(iter(lambda: asked.recv(65536), b"")).decode()
        return ""

    def socket(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), 1.0)

    def leads(self) -> bool:
        return "Mode: leader" in self.ask("srvr")


class ZooKeeperEnsemble:
    """Several servers with one tree, available while a majority runs."""

    def __init__(self, folder: Path, size: int = 3, host: str = "127.0.0.1") -> None:
        peers = {number: (fixed_port(), fixed_port()) for number in range(1, size + 1)}
        self.servers = [
            ZooKeeperProcess(folder / f"zookeeper-{number}", number=number, peers=peers, host=host)
            for number in peers
        ]

    @property
    def connect(self) -> str:
        return ",".join(server.connect for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            server.launch_server()
        for server in self.servers:
            server.await_serving()
        return self

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def leader(self) -> ZooKeeperProcess:
        """Wait for a leader: a server may answer late, or elections may go on."""
        leading = eventually(
            lambda: [one for one in self.servers if one.process is not None and one.leads()],
            bool,
            "the servers that lead",
        )
        return leading[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
