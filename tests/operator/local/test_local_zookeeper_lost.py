"""ZooKeeper's folder is lost between `down` and `up`: nothing starts, and a restored one has all records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream_harness.local import Sandbox, consume, produce

pytestmark = pytest.mark.process


def test_a_lost_zookeeper_stops_up_and_a_restored_one_has_all_records(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    listeners = f"[{{name: internal, type: Internal, port: {sandbox.port}}}]"
    sandbox.write("Cluster", "west", f"{{zookeeper: {{replicas: 1}}, listeners: {listeners}}}")
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    bootstrap = sandbox.found("Cluster", "west")["status"]["bootstrap"]
    produce(bootstrap, "orders", 100)
    sandbox.runtime().down()
    tree = sandbox.data / "clusters/west/zookeeper"
    shutil.move(tree, tmp_path / "lost")
    ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode != 0
    assert "has topics, which a new ZooKeeper does not know" in ended.stdout + ended.stderr
    assert not tree.exists()
    shutil.move(tmp_path / "lost", tree)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert consume(bootstrap, "orders", 100) == list(range(100))
    sandbox.runtime().down(delete_data=True)
