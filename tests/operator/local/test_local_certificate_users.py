"""Users with certificates on a laptop: Java, librdkafka, Python and the command by `millstream user config`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream_harness.broker import fixed_port
from millstream_harness.command import millstream
from millstream_harness.java import run_kafka_tool
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


def user(sandbox: Sandbox, name: str, *operations: str, kind: str = "Tls") -> None:
    spec: dict[str, Any] = {"clusterRef": {"name": "west"}, "authentication": {"type": kind}}
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
