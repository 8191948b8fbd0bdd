"""The operator as a real process beside the API server that KUBECONFIG names.

Outside Kubernetes the names of Services do not resolve, so it is started with the address of each Cluster's broker: a
real one, which the test starts as a process of its own.

    python -m millstream_harness.operator NAMESPACE,… LIVENESS CLUSTER=HOST:PORT…
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from millstream_operator import logs
from millstream_operator.kube import Kube
from millstream_operator.main import operate, wait_for_crds
from millstream_operator.models import Cluster
from millstream_operator.services import Services

from .daemon import Daemon

LOOK_TIMEOUT_S = 40.0
HARNESS = Path(__file__).resolve().parents[1]


class OperatorProcess(Daemon):
    """An operator for some namespaces; ``start``, ``stop`` (SIGTERM) and ``kill`` as often as wanted."""

    name = "the operator"
    start_timeout_s = 30.0
    stop_timeout_s = 20.0

    def __init__(self, folder: Path, namespaces: Sequence[str], addresses: Mapping[str, str]) -> None:
        super().__init__(folder, "operator.log")
        self.namespaces = namespaces
        self.addresses = dict(addresses)
        self.liveness = ""
        self.begun = 0

    def start(self) -> Self:
        """Start it and wait until it answers on its liveness endpoint."""
        self.begun = len(self.said())
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.liveness = f"http://127.0.0.1:{port}/healthz"
        addresses = [f"{cluster}={address}" for cluster, address in self.addresses.items()]
        command = [sys.executable, "-m", __name__, ",".join(self.namespaces), self.liveness, *addresses]
        self.launch(command, {**os.environ, "PYTHONPATH": str(HARNESS)})
        self.await_ready(lambda _: self._answers())
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.health())
        except OSError:
            return False

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.liveness, timeout=5) as answer:
            health: dict[str, Any] = json.load(answer)
        return health

    def resident_bytes(self) -> int:
        """Its memory now, from /proc."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def has_looked_at(self, resource: str) -> None:
        """Wait until it has looked at a resource (``Topic ns/name``) since it was started."""
        self._wait_said(resource, 1)

    def looks_at(self, resource: str) -> None:
        """Wait until it has finished one more look at a resource."""
        self._wait_said(resource, self._looks(resource) + 1)

    def _looks(self, resource: str) -> int:
        return self.said()[self.begun :].count(f"looked at {resource}\n")

    def _wait_said(self, resource: str, times: int) -> None:
        deadline = time.monotonic() + LOOK_TIMEOUT_S
        while self._looks(resource) < times:
            if time.monotonic() > deadline:
                raise AssertionError(f"no look at {resource} in {LOOK_TIMEOUT_S} s:\n{self.said()}")
            time.sleep(0.05)


def main(namespaces: str, liveness: str, *addresses: str) -> None:
    logs.configure("plain", "info")
    logging.getLogger("millstream_operator").setLevel(logging.DEBUG)
    known = dict(address.split("=", 1) for address in addresses)

    def address_of(cluster: Cluster) -> str:
        return known.get(cluster.name, "127.0.0.1:1")  # nobody listens there

    kube = Kube.connect()
    wait_for_crds(kube)
    asyncio.run(operate(Services(kube, address_of=address_of), namespaces.split(","), liveness))


if __name__ == "__main__":
    main(*sys.argv[1:])
