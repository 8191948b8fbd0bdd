"""A Cluster here: one broker process over `DATA/clusters/NAME/0`, with the configuration it has on Kubernetes.

    DATA/clusters/NAME/server.properties   what the running broker was started with
    DATA/clusters/NAME/broker.log          what it says
    DATA/clusters/NAME/0/                  its data

Listeners are bound to 127.0.0.1, at ports of `ports`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ..conditions import Reason
from ..models import Cluster, Listener
from ..reconcile.report import Problem
from ..resources.broker_config import broker_config, properties
from ..resources.listeners import all_listeners, kafka_name
from . import ports, processes
from .processes import Daemon, StartFailed
from .state import State

HTTP = "http"
HTTP_PORT = 9404
START_TRIES = 3


def command(name: str) -> str:
    """One of our commands: beside this Python's own, else on the PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def folder_name(namespace: str, name: str) -> str:
    """No two resources share a folder: `_` is in no name."""
    return name if namespace == "default" else f"{namespace}_{name}"


def refusal(cluster: Cluster) -> Problem | None:
    """Why a Cluster cannot be here."""
    if cluster.spec.zookeeper is None:
        return None
    return Problem(
        Reason.INVALID_SPEC,
        f"spec.zookeeper: not here: the local runtime runs clusters of one broker, not of "
        f"{cluster.spec.brokers.replicas} with ZooKeeper; leave it out, with brokers.replicas: 1",
    )


class LocalCluster:
    """The broker of one Cluster. Blocking."""

    def __init__(self, state: State, data: Path, cluster: Cluster) -> None:
        self.state = state
        self.cluster = cluster
        self.id = f"{cluster.namespace}/{cluster.name}"
        self.key = f"broker/{self.id}/0"
        self.folder = data / "clusters" / folder_name(cluster.namespace, cluster.name)
        self.file = self.folder / "server.properties"

    @property
    def daemon(self) -> Daemon | None:
        found = self.state.daemons.get(self.key)
        return found if found is not None and found.alive else None

    @property
    def bootstrap(self) -> str:
        return f"{ports.HOST}:{self._port(self.cluster.spec.internal)}"

    def _asked(self) -> list[tuple[str, int]]:
        return [(listener.name, listener.port) for listener in all_listeners(self.cluster)] + [
            (HTTP, HTTP_PORT)
        ]

    def _port(self, listener: Listener) -> int:
        """Where the listener is, or would be."""
        return self.state.ports.get(self.id, {}).get(f"{listener.name}:{listener.port}", listener.port)

    def config(self) -> dict[str, str]:
        listeners = ",".join(
            f"{kafka_name(listener)}://{ports.HOST}:{self._port(listener)}"
            for listener in all_listeners(self.cluster)
        )
        return {
            **broker_config(self.cluster),
            "broker.id": "0",
            "log.dirs": str(self.folder / "0"),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "http.listener": f"{ports.HOST}:{self.state.ports[self.id][f'{HTTP}:{HTTP_PORT}']}",
        }

    def start(self, say: Callable[[str], None]) -> bool:
        """Have it run with the configuration that the Cluster asks for; False when it does already."""
        running = self.daemon
        asked = {f"{name}:{port}" for name, port in self._asked()}
        if running is not None:
            if asked == self.state.ports.get(self.id, {}).keys() and self._file_is(self.config()):
                return False
            say(f"Cluster {self.cluster.name}: its configuration changed: the broker is restarted")
            processes.stop(running)
        for tries_left in reversed(range(START_TRIES)):
            self._choose_ports(say)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file.write_text(properties(self.config()))
            try:
                daemon = processes.start(
                    [command("millstream-broker"), str(self.file)], self.folder / "broker.log"
                )
            except StartFailed:
                # Between our look at a port and its use somebody else may have taken it.
                if tries_left and not all(map(ports.is_free, self.state.ports[self.id].values())):
                    continue
                raise
            self.state.daemons[self.key] = daemon
            return True
        raise AssertionError("unreachable")

    def _choose_ports(self, say: Callable[[str], None]) -> None:
        others = [port for key, kept in self.state.ports.items() if key != self.id for port in kept.values()]
        chosen = ports.choose(self._asked(), self.state.ports.get(self.id, {}), others)
        before, self.state.ports[self.id] = self.state.ports.get(self.id), chosen
        for listener in all_listeners(self.cluster):
            if (port := self._port(listener)) != listener.port and before != chosen:
                say(
                    f"Cluster {self.cluster.name}: port {listener.port} is in use: {listener.name} listens on {port}"
                )

    def _file_is(self, config: dict[str, str]) -> bool:
        try:
            return self.file.read_text() == properties(config)
        except OSError:
            return False
