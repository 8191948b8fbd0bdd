"""A MirrorMaker with mode Identity in the local runtime: real brokers, real workers, and the status that users see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream_harness.local import DEADLINE_S, Sandbox, produce
from millstream_operator.local.processes import wait_for

pytestmark = pytest.mark.soak

MILLSTREAM = str(Path(sys.executable).parent / "millstream")
SPEC = (
    "{mode: Identity, sources: [{name: west, clusterRef: {name: west}}], target: {clusterRef: {name: east}},"
    " topics: {include: [orders]}}"
)


def millstream(bootstrap: str, *command: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MILLSTREAM, "--bootstrap", bootstrap, *command],
        input=lines,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def stored(sandbox: Sandbox, cluster: str) -> list[bytes]:
    """The topic's batches by partition, as stored by the cluster's broker."""
    folders = sorted(sandbox.data.glob(f"**/{cluster}/**/orders-[0-9]"))
    return [b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))) for folder in folders]


def test_a_replica_its_refusals_and_its_promotion(sandbox: Sandbox) -> None:
    for name in ("west", "east"):
        sandbox.write("Cluster", name, "{brokers: {storage: {size: 1Gi}}}")
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 3}")
    sandbox.write("MirrorMaker", "replica", SPEC)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    west, east = (sandbox.found("Cluster", name)["status"]["bootstrap"] for name in ("west", "east"))
    produce(west, "orders", 500)

    def is_copied() -> bool:
        copy = stored(sandbox, "east")
        return len(copy) == 3 and copy == stored(sandbox, "west")

    assert wait_for(is_copied, DEADLINE_S)
    assert b"".join(stored(sandbox, "east"))
    assert wait_for(lambda: sandbox.ready("MirrorMaker", "replica")[1] == "Mirroring", DEADLINE_S)

    refused = millstream(east, "produce", "orders", lines="a record\n")
    assert refused.returncode == 1
    assert "orders is a read-only mirror of" in refused.stderr
    assert is_copied()
    done = millstream(east, "config", "reset", "topic/orders", "millstream.mirror.source")
    assert done.returncode == 0, done.stderr
    assert millstream(east, "produce", "orders", lines="a record\n").returncode == 0
    assert wait_for(lambda: not is_copied(), DEADLINE_S)
