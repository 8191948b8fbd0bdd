"""Users on a laptop: the manifests of Kubernetes, with passwords in files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.connection import Cluster
from millstream_harness.command import millstream
from millstream_harness.local import Sandbox
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import ScramMechanism

pytestmark = pytest.mark.soak

AUTHORIZER = (
    "{authorizer.class.name: org.apache.kafka.metadata.authorizer.StandardAuthorizer,"
    ' super.users: "User:ANONYMOUS"}'
)
SHA_512 = ScramMechanism.SCRAM_SHA_512


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path)
    found.cluster(config=AUTHORIZER)
    yield found
    found.runtime().down()


def user(sandbox: Sandbox, name: str, **spec: Any) -> None:
    sandbox.write("User", name, json.dumps({"clusterRef": {"name": "west"}, **spec}))


def test_user_has_its_password_in_a_file_and_goes_with_it(sandbox: Sandbox, tmp_path: Path) -> None:
    acls = [{"resource": {"type": "topic", "name": "t"}, "operations": ["Read"]}]
    user(
        sandbox, "app",
        authentication={"type": "ScramSha512"},
        authorization={"type": "Simple", "acls": acls},
        quotas={"producerByteRate": 1024},
    )  # fmt: skip
    user(sandbox, "plain")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    words = "password in Secret app, 1 access rule, 1 quota"
    assert sandbox.ready("User", "app") == ("True", "UserReady", words)
    folder = sandbox.data / "users" / "app"
    assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == dict.fromkeys(
        (".secret", "password", "sasl.jaas.config", "username"), 0o600
    )
    assert folder.stat().st_mode & 0o077 == 0
    password = (folder / "password").read_text()
    assert password not in (sandbox.data / "state.json").read_text()
    assert password not in "\n".join(sandbox.said)
    admin = KafkaAdmin(sandbox.bootstrap)
    try:
        before = admin.scram_users(["app"])["app"][SHA_512]
        assert len(admin.rules() or ()) == 1
        shown = millstream("user", "config", "app", "--data", str(sandbox.data), bootstrap=None)
        (tmp_path / "app.properties").write_bytes(shown.stdout)
        client = Cluster.from_file(str(tmp_path / "app.properties"))
        assert (client.bootstrap, client.config["sasl.password"]) == (sandbox.bootstrap, password)
        for name, said in (
            ("nobody", b"there is no User nobody in namespace default"),
            ("plain", b"has no passw"),
        ):
            refused = millstream("user", "config", name, "--data", str(sandbox.data), bootstrap=None)
            assert refused.returncode == 1
            assert said in refused.stderr
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
        assert (folder / "password").read_text() == password
        assert admin.scram_users(["app"])["app"][SHA_512] == before
        (sandbox.manifests / "Cluster-west.yaml").unlink()
        done = sandbox.run("delete", "--yes", "-f", str(sandbox.manifests))
        assert "User app: deleted, with user app" in done.stdout
        assert not folder.exists()
        assert admin.scram_users(["app"]) == {}
        assert admin.rules() == []
        assert admin.user_quotas() == {}
    finally:
        admin.close()


def test_own_password_comes_from_the_manifests(sandbox: Sandbox) -> None:
    reference = {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "word"}}}
    user(sandbox, "own", authentication={"type": "ScramSha512", "password": reference})
    failures = sandbox.runtime().up(sandbox.manifests).failures
    assert failures["User default/own"].startswith("there is no Secret mine in namespace default: create it")

    def secret(value: str) -> None:
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}}
        text = json.dumps({**manifest, "stringData": {"word": value, "../other": "x"}})
        (sandbox.manifests / "secret.yaml").write_text(text)

    admin = KafkaAdmin(sandbox.bootstrap)
    try:
        seen = set()
        for value in ("open sesame", "open sesame", "sesame open"):
            secret(value)
            assert sandbox.runtime().up(sandbox.manifests).failures == {}
            assert (sandbox.data / "users" / "mine" / "word").read_text() == value
            seen.add(admin.scram_users(["own"])["own"][SHA_512])
        assert len(seen) == 2, "the same password is not set again"
        assert sorted(file.name for file in (sandbox.data / "users").iterdir()) == ["mine"]
    finally:
        admin.close()
