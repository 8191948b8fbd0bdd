"""Users with certificates on a laptop: Java, librdkafka, Python and the command by `millstream user config`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream_harness.broker import fixed_port
from millstream_harness.command import millstream
from millstream_harness.java import run_kafka_tool
from millstream_harness.kube import until
from millstream_harness.local import Sandbox

pytestmark = pytest.mark.soak


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path)
    outside = {"type": "NodePort", "tls": "Enabled"}
    listeners = [
        {"name": "internal", "type": "Internal", "port": found.port},
        {**outside, "name": "apps", "port": fixed_port(), "authentication": {"type": "Tls"}},
        {**outside, "name": "words", "port": fixed_port(), "authentication": {"type": "ScramSha512"}},
    ]
    authorization = {"type": "Simple", "superUsers": ["CN=admin"]}
    found.write("Cluster", "west", json.dumps({"listeners": listeners, "authorization": authorization}))
    found.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 1}")
    yield found
    found.runtime().down()


def user(sandbox: Sandbox, name: str, *operations: str, kind: str = "Tls", cluster: str = "west") -> None:
    spec: dict[str, Any] = {"clusterRef": {"name": cluster}, "authentication": {"type": kind}}
    if operations:
        acls = [{"resource": {"type": "topic", "name": "orders"}, "operations": list(operations)}]
        spec["authorization"] = {"type": "Simple", "acls": acls}
    sandbox.write("User", name, json.dumps(spec))


def test_users_with_certificates_may_do_what_their_rules_say(
    sandbox: Sandbox, tmp_path: Path, kafka_jars: Path
) -> None:
    user(sandbox, "writer", "Write")
    user(sandbox, "reader", "Read")
    user(sandbox, "admin")
    user(sandbox, "worded", "Read", kind="ScramSha512")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    addresses = {
        each["name"]: (each["bootstrap"], each["protocol"])
        for each in sandbox.found("Cluster", "west")["status"]["listeners"]
    }
    assert (addresses["apps"][1], addresses["words"][1]) == ("SSL", "SASL_SSL")

    def config(name: str, *options: str) -> str:
        ended = millstream("user", "config", name, "--data", str(sandbox.data), *options, bootstrap=None)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.decode()

    def run(name: str, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        path = tmp_path / name
        path.write_text(config(name))
        ended = millstream(*arguments, "--config", str(path), stdin=stdin, bootstrap=None)
        return ended.returncode, (ended.stdout + ended.stderr).decode()

    assert run("writer", "produce", "orders", stdin=b"one\n") == (0, "1 record to orders\n")
    assert run("reader", "consume", "orders") == (0, "one\n")
    assert run("worded", "consume", "orders") == (0, "one\n")
    status, said = run("reader", "produce", "orders", stdin=b"two\n")
    assert (status != 0, "uthoriz" in said) == (True, True), said
    assert "orders" in run("admin", "topic", "list")[1]

    python: dict[str, Any] = {}
    exec(config("admin", "-F", "python"), python)
    assert "orders" in AdminClient(python["config"]).list_topics(timeout=10).topics

    files = tmp_path / "files"
    text = config("admin", "-F", "librdkafka", "--files", str(files))
    settings = dict(line.split("=", 1) for line in text.splitlines())
    assert "orders" in AdminClient(settings).list_topics(timeout=10).topics
    assert {path.stat().st_mode & 0o777 for path in files.iterdir()} == {0o600}
    nobody = {
        key: value for key, value in settings.items() if key in ("bootstrap.servers", "security.protocol")
    }
    with pytest.raises(KafkaException):
        AdminClient({**nobody, "ssl.ca.location": settings["ssl.ca.location"]}).list_topics(timeout=5)

    for options in ((), ("--files", str(files))):
        path = tmp_path / "java.properties"
        path.write_text(config("admin", *options))
        address, _ = addresses["apps"]
        listed = run_kafka_tool(
            "topics", "--bootstrap-server", address, "--command-config", str(path), "--list"
        )
        assert "orders" in listed.stdout.split()


CONSUMER = """
import os
from confluent_kafka import Consumer
from millstream.client_config import load
from millstream.client_properties import translated
read = load("MILLSTREAM_CONFIG", os.environ["MILLSTREAM_CONFIG"])
where = {"bootstrap.servers": read.bootstrap, **translated(read.settings)}
consumer = Consumer({**where, "group.id": os.environ["MILLSTREAM_GROUP_ID"], "auto.offset.reset": "earliest"})
consumer.subscribe(os.environ["MILLSTREAM_TOPICS"].split(","))
while True:
    message = consumer.poll(0.2)
    if message is not None and not message.error():
        print("got", message.value().decode(), flush=True)
"""


def test_an_internal_listener_may_take_nothing_but_certificates(tmp_path: Path) -> None:
    """The command, the consumers of a workload and the workers of a mirror log in beside it, with passwords."""
    found = Sandbox(tmp_path)
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    tls = {"tls": "Enabled", "authentication": {"type": "Tls"}}
    for name, port in (("west", found.port), ("east", fixed_port())):
        listener = {"name": "internal", "type": "Internal", "port": port, **tls}
        spec = {"listeners": [listener], "authorization": {"type": "Simple"}}
        found.write("Cluster", name, json.dumps(spec))
    found.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 1}")
    mirror = {
        "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
        "target": {"clusterRef": {"name": "east"}},
        "topics": {"include": ["orders"]},
        "naming": "Same",
    }
    found.write("MirrorMaker", "copy", json.dumps(mirror))
    container = {"name": "c", "image": "ours", "command": [sys.executable, str(program)]}
    workload = {"template": {"spec": {"containers": [container]}}}
    group = {"clusterRef": {"name": "west"}, "topics": ["orders"], "workload": workload}
    found.write("ConsumerGroup", "work", json.dumps(group))
    user(found, "writer", "Write")
    user(found, "reader", "Read", cluster="east")
    user(found, "worded", "All", kind="ScramSha512")
    try:
        assert found.runtime().up(found.manifests).failures == {}
        assert found.found("Cluster", "west")["status"]["platform"]["internal"] == "Closed"

        def run(name: str, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
            path = tmp_path / f"{name}.properties"
            options = ("--data", str(found.data))
            ended = millstream("user", "config", name, *options, bootstrap=None)
            assert ended.returncode == 0, ended.stderr
            path.write_bytes(ended.stdout)
            ended = millstream(*arguments, "--config", str(path), stdin=stdin, bootstrap=None)
            return ended.returncode, (ended.stdout + ended.stderr).decode()

        assert run("writer", "produce", "orders", stdin=b"one\n") == (0, "1 record to orders\n")
        log = found.data / "consumers" / "work" / "0.log"
        until("the workload consumes", lambda: "got one\n" in log.read_text())
        until("the mirror copies", lambda: run("reader", "consume", "orders") == (0, "one\n"))
        status, said = run("worded", "consume", "orders")
        assert status != 0, said
        assert found.ready("MirrorMaker", "copy")[0] == "True"
        assert found.ready("ConsumerGroup", "work")[0] == "True"
    finally:
        found.runtime().down()
