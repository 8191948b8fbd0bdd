"""The operator as a real process beside the API server that KUBECONFIG names.

Outside Kubernetes the names of Services do not resolve, so the operator gets the address of each Cluster's broker: a
real process, which the test starts.

    python -m millstream_harness.operator LEVEL INTERVAL NAMESPACE,… LIVENESS METRICS LEASE IDENTITY CLUSTER=HOST:PORT…
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_operator.kafka.client_config import ClientConfig
from millstream_operator.kubernetes.client import Kube
from millstream_operator.main import operate, wait_for_crds
from millstream_operator.manager.leadership import Leadership, LeaseName
from millstream_operator.models import Cluster
from millstream_operator.reconcile.common import shared_cluster as together
from millstream_operator.reconcile.topic import apply as topic_kafka
from millstream_operator.serving import logs
from millstream_operator.serving.scrape import parse_address

from .broker import fixed_port
from .daemon import Daemon

LOOK_TIMEOUT_S = 120.0
HARNESS = Path(__file__).resolve().parents[1]


class OperatorProcess(Daemon):
    """An operator for some namespaces; ``start``, ``stop`` and ``kill`` any number of times.

    ``release`` names its Lease in namespace default. Its identity is the folder's name, so after a restart it need not
    wait. With ``interval_s``, it looks at a Topic again after that time, unless an event or a retry is first: a test of
    events sets an hour.
    """

    name = "the operator"
    start_timeout_s = 180.0
    stop_timeout_s = 30.0  # its pod's terminationGracePeriodSeconds

    def __init__(
        self,
        folder: Path,
        namespaces: Sequence[str],
        addresses: Mapping[str, str],
        release: str = "",
        *,
        level: str = "debug",
        kubeconfig: Path | None = None,
        interval_s: float | None = None,
    ) -> None:
        super().__init__(folder, "operator.log")
        self.level = level
        self.kubeconfig = kubeconfig
        self.interval = "" if interval_s is None else str(interval_s)
        self.lease = f"default/{release or namespaces[0]}"
        self.identity = folder.name
        self.namespaces = namespaces
        self.addresses = dict(addresses)
        self.liveness = ""
        self.metrics_port = 0
        self.begun = 0

    def start(self) -> Self:
        """Start it and wait until its liveness endpoint responds."""
        self.begun = len(self.said())
        port, self.metrics_port = fixed_port(), fixed_port()
        self.liveness = f"http://127.0.0.1:{port}/healthz"
        addresses = [f"{cluster}={address}" for cluster, address in self.addresses.items()]
        metrics = f"127.0.0.1:{self.metrics_port}"
        arguments = [self.level, self.interval, ",".join(self.namespaces), self.liveness, metrics]
        command = [sys.executable, "-m", __name__, *arguments, self.lease, self.identity, *addresses]
        config = {"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig is not None else {}
        path = os.pathsep.join(filter(None, (str(HARNESS), os.environ.get("PYTHONPATH"))))
        self.launch(command, {**os.environ, "PYTHONPATH": path, **config})
        self.await_ready(lambda _: self._answers())
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.health())
        except OSError:
            return False

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.liveness, timeout=60) as answer:
            health: dict[str, Any] = json.load(answer)
        return health

    def metrics(self) -> str:
        """Its metrics, as Prometheus scrapes them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def resident_bytes(self) -> int:
        """Its resident memory, from /proc."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int:
        """Its peak memory since its start."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        """Its user and system time since its start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def has_looked_at(self, resource: str) -> None:
        """Wait until it has reconciled a resource (``Topic ns/name``) since its start."""
        self._wait_said(resource, 1)

    def looks_at(self, resource: str) -> None:
        """Wait until it has finished another reconcile of a resource."""
        self._wait_said(resource, self._looks(resource) + 1)

    def _looks(self, resource: str) -> int:
        return self.said()[self.begun :].count(f"reconciled {resource}\n")

    def _wait_said(self, resource: str, times: int) -> None:
        deadline = time.monotonic() + LOOK_TIMEOUT_S
        while self._looks(resource) < times:
            if time.monotonic() > deadline:
                raise AssertionError(f"no look at {resource} in {LOOK_TIMEOUT_S} s:\n{self.said()}")
            time.sleep(0.05)


def main(
    level: str,
    interval: str,
    namespaces: str,
    liveness: str,
    metrics: str,
    lease: str,
    identity: str,
    *addresses: str,
) -> None:
    logs.configure("plain", "info")
    logging.getLogger("millstream_operator").setLevel(level.upper())
    if interval:
        for module in (together, topic_kafka):
            vars(module)["PROBLEM_INTERVAL_S"] = float(interval)
        topic_kafka.READY_INTERVAL_S = float(interval)
    known = dict(address.split("=", 1) for address in addresses)

    def reach(kube: Kube, cluster: Cluster) -> ClientConfig:
        return ClientConfig(known.get(cluster.name, "127.0.0.1:1"))  # nothing listens there

    kube = Kube.connect()
    wait_for_crds(kube)
    leadership = Leadership(kube, LeaseName(*lease.split("/")), identity)
    services = services_on_kubernetes(kube, reach=reach)
    asyncio.run(operate(services, namespaces.split(","), liveness, leadership, parse_address(metrics)))


if __name__ == "__main__":
    main(*sys.argv[1:])
