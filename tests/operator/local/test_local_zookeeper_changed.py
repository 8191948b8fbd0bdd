"""A Cluster is deleted, and created again with another `spec.zookeeper` than its data has: it can be corrected."""

from __future__ import annotations

import json

import pytest

from millstream_harness.local import Sandbox, consume, produce

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("had", [{}, {"replicas": 1}])
def test_refused_zookeeper_of_a_deleted_cluster_can_be_corrected(
    sandbox: Sandbox, had: dict[str, int]
) -> None:
    """The Cluster is created again with ZooKeeper, or without, while its data is of the other kind."""
    listeners = f"listeners: [{{name: internal, type: Internal, port: {sandbox.port}}}]"
    right, wrong = (
        f"{{{listeners}{f', zookeeper: {json.dumps(one)}' if one else ''}}}"
        for one in (had, {} if had else {"replicas": 1})
    )
    sandbox.write("Cluster", "west", right)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    bootstrap = sandbox.found("Cluster", "west")["status"]["bootstrap"]
    produce(bootstrap, "orders", 100)
    ended = sandbox.run("delete", "-f", str(sandbox.manifests), "--yes")
    assert ended.returncode == 0, ended.stderr
    sandbox.write("Cluster", "west", wrong)
    failed = sandbox.runtime().up(sandbox.manifests).failures
    assert failed["Cluster default/west"].startswith("spec.zookeeper: ")
    sandbox.write("Cluster", "west", right)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert consume(bootstrap, "orders", 100) == list(range(100))
    sandbox.runtime().down(delete_data=True)
