"""A cluster whose brokers each have a second listener behind a gate, to cut a client off from one broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millstream
from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.gate import Gate


class GatedCluster(ClusterProcesses):
    """``gates[3]`` is in front of broker 3, for clients that bootstrap from ``gated_bootstrap``."""

    def __init__(self, folder: Path, size: int = 3, *more: Any, **options: Any) -> None:
        self.gates: dict[int, Gate] = {}
        super().__init__(folder, size, *more, **options)

    def broker(self, number: int, **config: str) -> BrokerProcess:
        broker = super().broker(number, **config)
        port, direct = fixed_port(), broker.config["listeners"]
        gate = self.gates[number] = Gate(port)
        broker.config |= {
            "listeners": f"{direct},GATED://127.0.0.1:{port}",
            "advertised.listeners": f"{direct},GATED://127.0.0.1:{gate.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,GATED:PLAINTEXT",
        }
        return broker

    @property
    def gated_bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{gate.port}" for gate in self.gates.values())

    def coordinator_gate(self, group: str) -> Gate:
        """The gate of the broker that coordinates the group now."""
        admin = millstream.Cluster(self.bootstrap).admin
        return self.gates[admin.describe_consumer_groups([group])[group].result(30).coordinator.id]

    def kill(self) -> None:
        super().kill()
        for gate in self.gates.values():
            gate.flow()
            gate.shut()
