"""A consumer with the files that the operator makes for a workload, at a broker with TLS and access rules."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.command import COMMAND
from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_harness.in_memory import in_memory, stored
from millstream_harness.known_users import KnownUsers
from millstream_harness.manifests import cluster, group
from millstream_harness.spark import publish
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.client import ClusterClient
from millstream_operator.kafka.records import GroupState, TopicIdentity
from millstream_operator.models import ConsumerGroup, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.resources.pod_access import FOLDER

pytestmark = pytest.mark.soak

AUTHORITY = Authority()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    config = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_SSL",
        "audit.log": str(tmp_path / "audit.log"),
        **tls_keys(AUTHORITY.issue().write(tmp_path / "broker.pem")),
    }
    with guarded_broker(tmp_path / "data", config) as found:
        yield found


def mounted(guarded: Guarded, folder: Path) -> Path:
    """The files of a workload's pods that read topic "orders" as group "team"; the broker knows their user."""
    users = KnownUsers()
    platform = {
        "bootstrap": guarded.login,
        "secret": "s",
        "caSecret": "default-cluster-ca-cert",
        "internal": "Closed",
    }
    workload = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    manifest = stored(group("watch", topics=["orders"], groupId="team", workload=workload))
    brokers: dict[str, Any] = {
        "groups": lambda ids: {one: GroupState("Empty", ()) for one in ids},
        "committed": lambda ids: {one: {} for one in ids},
        "identities": lambda topics: {topic: TopicIdentity("id", 1) for topic in topics},
        "offsets": lambda wanted: dict.fromkeys(wanted, 0),
        "led_offsets": lambda wanted: dict.fromkeys(wanted, 0),
        **users.answers,
    }
    found = in_memory(stored(cluster("default"), {"platform": platform}), manifest, **brokers)
    data = {"ca.crt": base64.b64encode(AUTHORITY.pem.encode()).decode()}
    name = {"namespace": "ns", "name": "default-cluster-ca-cert"}
    found.kube.put({"kind": "Secret", "metadata": name, "data": data})
    reconcile_groups(found.services, [decode_as(ConsumerGroup, manifest)])
    pod = found.kube.objects["Deployment", "watch-consumers"]["spec"]["template"]["spec"]
    for source in pod["volumes"][0]["projected"]["sources"]:
        for key, value in found.kube.objects["Secret", source["secret"]["name"]]["data"].items():
            text = base64.b64decode(value).decode()
            (folder / key).write_text(text.replace(FOLDER, str(folder)))

    async def store() -> None:
        async with ClusterClient(guarded.bootstrap) as client:
            admin = AdminClient(client)
            await admin.alter_scram_credentials(list(users.credentials.values()))
            await admin.create_acls([*users.rules])

    asyncio.run(store())
    return folder


def test_command_consumes_its_topics_as_its_group_and_no_others(guarded: Guarded, tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    mounted(guarded, folder)
    for topic in ("orders", "others"):
        publish(guarded.bootstrap, topic, [[(None, b"one"), (None, b"two")]])

    def consume(topic: str, group: str) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, "consume", topic, "--group", group, "--max", "2"]
        environment = {**os.environ, "MILLSTREAM_CONFIG": str(folder / "client.properties")}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    done = consume("orders", "team")
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["one", "two"]), done.stderr

    def denied() -> set[tuple[str, str]]:
        lines = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
        return {(one["resource_type"], one["resource"]) for one in lines if one["event"] == "denied"}

    assert denied() == set()
    assert consume("others", "team").returncode != 0
    assert consume("orders", "strangers").returncode != 0
    assert denied() == {("Group", "strangers")}, "a topic that it may not describe is not there"


def test_librdkafkas_file_is_a_clients_whole_configuration(guarded: Guarded, tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    mounted(guarded, folder)
    publish(guarded.bootstrap, "orders", [[(None, b"one")]])
    lines = (folder / "librdkafka.properties").read_text().splitlines()
    config = dict(line.split("=", 1) for line in lines)
    consumer = Consumer({**config, "group.id": "team", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"one"
    finally:
        consumer.close()
