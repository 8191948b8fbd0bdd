"""A Cluster whose clients log in, on a laptop: listener, access rules, Users and the command together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.command import millstream
from millstream_harness.local import Sandbox

pytestmark = pytest.mark.soak


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path)
    listeners = [
        {"name": "internal", "type": "Internal", "port": found.port},
        {
            "name": "apps",
            "type": "NodePort",
            "port": fixed_port(),
            "allowPlaintext": True,
            "authentication": {"type": "ScramSha512"},
        },
    ]
    authorization = {"type": "Simple", "superUsers": ["admin"]}
    found.write("Cluster", "west", json.dumps({"listeners": listeners, "authorization": authorization}))
    found.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 1}")
    yield found
    found.runtime().down()


def user(sandbox: Sandbox, name: str, *operations: str) -> None:
    spec: dict[str, Any] = {"clusterRef": {"name": "west"}, "authentication": {"type": "ScramSha512"}}
    if operations:
        acls = [{"resource": {"type": "topic", "name": "orders"}, "operations": list(operations)}]
        spec["authorization"] = {"type": "Simple", "acls": acls}
    sandbox.write("User", name, json.dumps(spec))


def test_users_may_do_what_their_rules_say(sandbox: Sandbox, tmp_path: Path) -> None:
    user(sandbox, "writer", "Write")
    user(sandbox, "reader", "Read")
    user(sandbox, "admin")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    (outside,) = sandbox.found("Cluster", "west")["status"]["listeners"]

    def run(name: str, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        config = millstream("user", "config", name, "--data", str(sandbox.data), bootstrap=None)
        assert f"bootstrap.servers={outside['bootstrap']}\n".encode() in config.stdout
        path = tmp_path / name
        path.write_bytes(config.stdout)
        ended = millstream(*arguments, "--config", str(path), stdin=stdin, bootstrap=None)
        return ended.returncode, (ended.stdout + ended.stderr).decode()

    assert run("writer", "produce", "orders", stdin=b"one\n") == (0, "1 record to orders\n")
    assert run("reader", "consume", "orders") == (0, "one\n")
    status, said = run("reader", "produce", "orders", stdin=b"two\n")
    assert status != 0
    assert "uthoriz" in said, said
    assert run("admin", "produce", "orders", stdin=b"three\n")[0] == 0
    assert "orders" in run("admin", "topic", "list")[1]
    refused = millstream("topic", "list", bootstrap=outside["bootstrap"])
    assert refused.returncode == 1
    assert b"it requires SASL (SCRAM-SHA-512), and the client does not use it" in refused.stderr
    inside = millstream("consume", "orders", bootstrap=sandbox.bootstrap)
    assert inside.stdout == b"one\nthree\n"
