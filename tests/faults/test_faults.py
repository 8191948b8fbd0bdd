"""A short run of what `make faults` does for longer: break a cluster, then check every invariant."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from millstream_faults import isolation
from millstream_harness.faults_command import COMMAND, ENVIRONMENT, check_refusal, run
from millstream_harness.scenario import eventually
from millstream_harness.tools import missing, require

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

KINDS = (
    "kill leader,kill controller,kill transaction coordinator,move coordinators,pause leader,isolate leader,"
    "reject brokers at leader,full disk,move replicas,"
    "make topic anew,make compacted topic anew,delete records,alter configuration,add partition,delete group,"
    "reset group,remove log directory,swap log directories of brokers,restore older ZooKeeper,clock an hour ahead,"
    "rotate authority,change password,revoke rules"
)
SEED = int(os.environ.get("MILLSTREAM_SEED", "7"))


def need_namespaces() -> None:
    require("java")
    if isolation.unshare() is None:
        missing("the right to make namespaces (root, or user namespaces; util-linux, iproute2, iptables)")


@pytest.mark.timeout(900)
def test_a_cluster_that_is_broken(tmp_path: Path) -> None:
    need_namespaces()
    out = tmp_path / "run"
    few = ["--seconds", "30", "--faults", "10", "--seed", str(SEED), "--zookeepers", "1", "--kinds", KINDS]
    done = run(*few, "--out", str(out), timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    assert (out / "timeline.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kinds", "kill everybody"], "kill everybody: there are kill leader, kill follower,"),
        (["--seconds", "0"], "0 is less than 1"),
        (["--out", str(Path(__file__).parent)], "there is something in it already"),
    ],
)
def test_what_it_does_not_take(arguments: list[str], said: str) -> None:
    check_refusal(arguments, said)


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    """Neither a broker nor ZooKeeper outlives the run, even if the run is killed."""
    need_namespaces()
    out = tmp_path / "run"
    command = [*COMMAND, "--zookeepers", "1", "--out", str(out)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "19 clients" in running.stdout.readline()
        assert len(mentioning(str(out))) > 10, "brokers, ZooKeeper and clients run"
        running.kill()
    eventually(lambda: mentioning(str(out)), lambda found: not found, "processes of the run")


def mentioning(text: str) -> list[str]:
    """The command lines of the processes that mention a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if text in line]
