"""Kafka's own ProducerPerformance and ConsumerPerformance, and topics to run them on.

The same client binaries for both brokers, with the JVM's defaults.
"""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.java import TOOLS, java_command, run

CLIENT_JVM = ("-Xmx512M", "-server", "-XX:+UseG1GC")
TIMEOUT_S = 900.0
PRODUCED = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


class TlsAddress(NamedTuple):
    """A listener with TLS, and the PEM file of the authority that its clients trust."""

    bootstrap: str
    truststore: Path


Address = str | TlsAddress
"""Where clients connect: host and port, for a listener without TLS."""


@contextmanager
def new_topic(bootstrap: str, partitions: int = 1) -> Iterator[str]:
    """A separate topic for one workload, deleted after it."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    client = admin(bootstrap)
    client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    del client
    yield topic
    client = admin(bootstrap)
    client.delete_topics([topic])[topic].result(30)


def admin(bootstrap: str) -> AdminClient:
    """An admin client for a few calls: it ends with its last reference, and its calls with it."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def properties(address: Address) -> dict[str, str]:
    """What a client needs to connect."""
    if isinstance(address, str):
        return {"bootstrap.servers": address}
    return {
        "bootstrap.servers": address.bootstrap,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(address.truststore),
    }


def producer_command(
    address: Address, topic: str, records: int, size: int, props: dict[str, str], throughput: int = -1
) -> list[str]:
    settings = {**properties(address), **props}
    return java_command(
        TOOLS["producer-perf-test"],
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size)),
        *("--throughput", str(throughput), "--producer-props"),
        *(f"{key}={value}" for key, value in settings.items()),
        options=CLIENT_JVM,
    )


def produce(address: Address, topic: str, records: int, size: int, props: dict[str, str]) -> float:
    """Records a second, reported by ProducerPerformance."""
    done = run(producer_command(address, topic, records, size, props), timeout=TIMEOUT_S)
    return produced_rate(done.stdout, records)


def produced_rate(output: str, records: int) -> float:
    """The rate in the tool's last line; ValueError if it has not sent all records."""
    lines = PRODUCED.findall(output)
    if not lines or int(lines[-1][0]) != records:
        raise ValueError(f"ProducerPerformance did not send {records} records:\n{output}")
    return float(lines[-1][1])


def consumer_command(address: Address, topic: str, records: int, timeout_ms: int = 60_000) -> list[str]:
    needed = properties(address)
    bootstrap = needed.pop("bootstrap.servers")
    given = [part for pair in needed.items() for part in ("--command-property", "=".join(pair))]
    return java_command(
        TOOLS["consumer-perf-test"],
        *given,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records)),
        *("--timeout", str(timeout_ms), "--hide-header"),
        options=CLIENT_JVM,
    )


def consume(address: Address, topic: str, records: int) -> float:
    """Records a second of fetching, reported by ConsumerPerformance."""
    done = run(consumer_command(address, topic, records), timeout=TIMEOUT_S)
    return consumed_rate(done.stdout, records)


def consumed_rate(output: str, records: int) -> float:
    """The last field of the tool's last row (fetch.nMsg.sec); ValueError if it has not read all records."""
    rows = [line.split(", ") for line in output.splitlines() if line.count(", ") == 9]
    if not rows or int(rows[-1][4]) < records:
        raise ValueError(f"ConsumerPerformance did not read {records} records:\n{output}")
    return float(rows[-1][9])


def spawn(command: list[str]) -> subprocess.Popen[str]:
    """A client that runs beside another."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
