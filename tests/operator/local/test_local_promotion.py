"""`millstream local up` promotes; meanwhile the command itself, or the target's broker and the worker, are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.connection import Cluster
from millstream.errors import UnknownTopic
from millstream.topics import describe_topic
from millstream_harness.local import DEADLINE_S, LOCAL, Sandbox, produce
from millstream_harness.scenario import eventually
from millstream_operator.local.runtime import LocalRuntime

pytestmark = pytest.mark.soak

SPEC = (
    "sources: [{name: west, clusterRef: {name: west}}], target: {clusterRef: {name: east}}, mode: Identity,"
    " topics: {include: [orders]}"
)
COUNT = 200
PROMOTED = f"{{{SPEC}, promote: {{requestId: now}}}}"
TARGET, WORKER = "broker/default/east/0", "mirror/default/copy/0"


@pytest.fixture
def mirrored(sandbox: Sandbox) -> Sandbox:
    """Two clusters and a replica that has all records."""
    for name in ("west", "east"):
        sandbox.write("Cluster", name, "{}")
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 2}")
    sandbox.write("MirrorMaker", "copy", f"{{{SPEC}}}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    produce(bootstrap(sandbox, "west"), "orders", COUNT)
    east = Cluster(bootstrap(sandbox, "east"))
    eventually(lambda: records(east), lambda count: count == COUNT, "the replica is complete", DEADLINE_S)
    return sandbox


def bootstrap(sandbox: Sandbox, cluster: str) -> str:
    found: str = sandbox.found("Cluster", cluster)["status"]["bootstrap"]
    return found


def records(cluster: Cluster) -> int:
    """Of the topic; 0 while there is none."""
    with contextlib.suppress(UnknownTopic):
        return sum(one.latest or 0 for one in describe_topic(cluster, "orders").partitions)
    return 0


@pytest.fixture
def promoting(mirrored: Sandbox) -> Iterator[subprocess.Popen[str]]:
    """`up` with a request, which waits for the target: its broker is stopped (SIGSTOP)."""
    mirrored.write("MirrorMaker", "copy", PROMOTED)
    os.kill(mirrored.pid(TARGET), signal.SIGSTOP)
    manifest = mirrored.manifests / "MirrorMaker-copy.yaml"
    with subprocess.Popen(
        [*LOCAL, "up", "-f", str(manifest), "--data", str(mirrored.data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as up:
        try:
            runtime = LocalRuntime(mirrored.data)
            eventually(
                lambda: runtime.store.holder, lambda pid: pid == str(up.pid), "it has begun", DEADLINE_S
            )
            yield up
        finally:
            up.kill()


def is_done(sandbox: Sandbox, own: int = 0) -> dict[str, Any]:
    """The next `up` completes the promotion; the topic's recovery point. ``own``: records that the target's producers
    have written by now."""
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    status = sandbox.found("MirrorMaker", "copy")["status"]
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions == {"Ready": ("True", "Promoted"), "Promoted": ("True", "Promoted")}
    last = status["lastPromotion"]
    assert (last["requestId"], last["state"], last["notMirrored"]) == ("now", "Done", 0)
    (row,) = last["topics"]
    assert sum(row["ends"]) == sum(row["sourceEnds"]) == COUNT
    produce(bootstrap(sandbox, "east"), "orders", 10)
    assert records(Cluster(bootstrap(sandbox, "east"))) == COUNT + own + 10
    assert not [one for one in sandbox.runtime().status().daemons if one["name"].startswith("mirror/")]
    found: dict[str, Any] = row
    return found


ENDS_AFTER_ITS_WRITE = """
import os, signal, sys
from pathlib import Path
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.local.runtime import LocalRuntime

write = KafkaAdmin.change_configs
KafkaAdmin.change_configs = lambda *args: (write(*args), os.kill(os.getpid(), signal.SIGKILL))
LocalRuntime(Path(sys.argv[1])).up(Path(sys.argv[2]))
"""


def test_the_command_ends_between_its_write_and_its_status(mirrored: Sandbox) -> None:
    """So do worker and broker. The topic is promoted by then; the next command finds the same recovery point."""
    mirrored.write("MirrorMaker", "copy", PROMOTED)
    arguments = [str(mirrored.data), str(mirrored.manifests / "MirrorMaker-copy.yaml")]
    done = subprocess.run(
        [sys.executable, "-c", ENDS_AFTER_ITS_WRITE, *arguments], timeout=DEADLINE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    produce(bootstrap(mirrored, "east"), "orders", 5)
    mirrored.kill(WORKER)
    mirrored.kill(TARGET)
    is_done(mirrored, own=5)


def test_the_command_is_killed(mirrored: Sandbox, promoting: subprocess.Popen[str]) -> None:
    promoting.kill()
    promoting.wait()
    os.kill(mirrored.pid(TARGET), signal.SIGCONT)
    is_done(mirrored)


def test_the_targets_broker_and_the_worker_are_killed(
    mirrored: Sandbox, promoting: subprocess.Popen[str]
) -> None:
    mirrored.kill(WORKER)
    mirrored.kill(TARGET)
    said, _ = promoting.communicate(timeout=DEADLINE_S)
    assert promoting.returncode == 1, said
    assert "MirrorMaker copy: TargetUnreachable: request now: target: " in said
    done = is_done(mirrored)
    again = mirrored.runtime().up(mirrored.manifests)
    assert again.failures == {}
    assert mirrored.found("MirrorMaker", "copy")["status"]["lastPromotion"]["topics"] == [done]
