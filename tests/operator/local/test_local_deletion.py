"""The local runtime deletes what was made here and is no longer wanted, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from millstream_harness.local import DEADLINE_S, Sandbox, brokers_of, partitions
from millstream_operator.local.processes import wait_for
from millstream_operator.local.runtime import LocalRuntime, Outcome

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]


def test_data_is_deleted_where_a_policy_says_so(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "kept", "{clusterRef: {name: west}}")
    sandbox.write("Topic", "gone", "{clusterRef: {name: west}, deletionPolicy: Delete}")
    sandbox.write("ConsumerGroup", "watch", "{clusterRef: {name: west}, topics: [kept], startAt: Earliest}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    (sandbox.manifests / "Cluster-west.yaml").unlink()

    doomed = sandbox.runtime().doomed(sandbox.manifests)
    assert doomed.resources == ["ConsumerGroup/default/watch", "Topic/default/gone", "Topic/default/kept"]
    assert doomed.data == ["topic gone and its records"]
    refused = sandbox.run("delete", "-f", str(sandbox.manifests))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "millstream: local delete: would delete topic gone and its records, and cannot ask for confirmation without a "
        "terminal: add --yes, or --dry-run\n"
    )
    assert partitions(sandbox.bootstrap, "gone") == 1

    ended = sandbox.run("delete", "-f", str(sandbox.manifests), "--yes")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "ConsumerGroup watch: deleted",
        "Topic gone: deleted, with topic gone and its records",
        "Topic kept: deleted",
    ]
    assert wait_for(lambda: partitions(sandbox.bootstrap, "gone") == 0, DEADLINE_S)
    assert partitions(sandbox.bootstrap, "kept") == 1
    assert [one["kind"] for one in LocalRuntime(sandbox.data).status().resources] == ["Cluster"]


def delete(sandbox: Sandbox, manifests: Path) -> Outcome:
    runtime = sandbox.runtime()
    return runtime.delete(manifests, runtime.doomed(manifests))


def test_a_topic_stays_until_its_brokers_can_delete_it(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "gone", "{clusterRef: {name: west}, deletionPolicy: Delete}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    sandbox.kill()
    outcome = delete(sandbox, sandbox.manifests / "Topic-gone.yaml")
    assert "waiting to delete topic gone: " in outcome.failures["Topic/default/gone"]
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.ready("Topic", "gone")[0] == "True"


def test_a_deleted_cluster_stops_and_keeps_its_data(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "kept", "{clusterRef: {name: west}}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    pid, files = sandbox.pid(), sandbox.manifests / "Cluster-west.yaml"
    assert delete(sandbox, files).failures == {}
    assert sandbox.said == ["Cluster west: deleted"]
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert delete(sandbox, files).failures == {}
    assert sandbox.said == ["Cluster west: does not exist"]
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert partitions(sandbox.bootstrap, "kept") == 1


def test_no_folder_is_deleted_that_was_not_made_here(sandbox: Sandbox) -> None:
    sandbox.data.mkdir()
    (sandbox.data / "thesis.txt").write_text("years of work")
    (sandbox.data / "clusters").mkdir()
    for options in (["--yes"], []):  # refused before it asks
        refused = sandbox.run("down", "--delete-data", *options)
        assert refused.returncode == 2
        assert refused.stderr == (
            f"millstream: --data: {sandbox.data} is not a data folder of `millstream local`: it has no state.json. "
            "Nothing was deleted; name the folder that you gave to `millstream local up`\n"
        )
    (sandbox.data / "state.json").write_text('{"version": 4, "lineage": "of another tool"}')
    for options in (["--yes"], []):
        refused = sandbox.run("down", "--delete-data", *options)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"millstream: {sandbox.data}/state.json cannot be read: ")
    assert sorted(entry.name for entry in sandbox.data.iterdir() if entry.name != ".lock") == [
        "clusters",
        "state.json",
        "thesis.txt",
    ]
    (sandbox.data / "state.json").unlink()


def test_only_what_was_made_is_deleted(sandbox: Sandbox) -> None:
    for name in ("volumes/mine", "notes"):
        (sandbox.data / name).mkdir(parents=True)
    sandbox.cluster()
    assert sandbox.run("up", "-f", str(sandbox.manifests)).returncode == 0
    ended = sandbox.run("down", "--delete-data", "--yes")
    assert ended.stdout == (
        "broker west: stopped\n"
        f"left in {sandbox.data}, as `millstream local` did not make it: notes, volumes\n"
        f"the data in {sandbox.data} is deleted\n"
    )
    assert (sandbox.data / "volumes/mine").is_dir()
    assert not (sandbox.data / "clusters").exists()


def test_folders_that_the_user_makes_later_are_not_deleted(sandbox: Sandbox) -> None:
    sandbox.cluster()
    assert sandbox.run("up", "-f", str(sandbox.manifests)).returncode == 0
    for name in ("volumes", "loads"):
        (sandbox.data / name).mkdir()
    (sandbox.data / "volumes/mine.txt").write_text("x")
    ended = sandbox.run("down", "--delete-data", "--yes")
    assert f"left in {sandbox.data}, as `millstream local` did not make it: loads, volumes\n" in ended.stdout
    assert (sandbox.data / "volumes/mine.txt").read_text() == "x"
    assert (sandbox.data / "loads").is_dir()
    assert not (sandbox.data / "clusters").exists()


def test_no_data_is_deleted_under_a_broker_that_is_not_known(sandbox: Sandbox) -> None:
    sandbox.cluster()
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    file, pid = sandbox.data / "state.json", sandbox.pid()
    whole = file.read_text()
    file.write_text(json.dumps(json.loads(whole) | {"daemons": {}}))
    refused = sandbox.run("down", "--delete-data", "--yes")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"millstream: --data: {sandbox.data}/clusters/west/0 is in use by a broker that is not known here (process "
        f"{pid}): nothing was deleted; stop it first\n"
    )
    assert brokers_of(sandbox.data) == [pid]
    assert (sandbox.data / "clusters/west/0/meta.properties").exists()
    file.write_text(whole)
    assert sandbox.runtime().down() == ["broker/default/west/0"]


def test_a_copy_leaves_the_processes_and_topics_of_its_original_alone(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, deletionPolicy: Delete}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    pid, original, copy = sandbox.pid(), sandbox.data, sandbox.data.with_name("copy")
    subprocess.run(["cp", "-a", str(original), str(copy)], check=True)
    said = f"{copy} is a copy of {original}, whose processes are left alone: broker west (process {pid})\n"

    sandbox.data = copy
    status = sandbox.run("status", "-o", "json")
    assert (status.stderr, json.loads(status.stdout)["processes"]) == (said, [])
    assert sandbox.run("delete", "-f", str(sandbox.manifests / "Topic-orders.yaml"), "--yes").returncode == 1
    assert partitions(sandbox.bootstrap, "orders") == 1
    shutil.copy(original / "state.json", copy / "state.json")
    ended = sandbox.run("down", "--delete-data", "--yes")
    assert ended.stdout == f"{said}nothing was running\nthe data in {copy} is deleted\n"
    assert not copy.exists()

    # The original's are still its own, also when its folder has moved.
    assert brokers_of(original) == [pid]
    sandbox.data = original.rename(original.with_name("moved"))
    assert sandbox.runtime().down() == ["broker/default/west/0"]
    assert brokers_of(original) == []


def test_data_is_not_deleted_by_a_script_that_does_not_say_so(sandbox: Sandbox) -> None:
    sandbox.cluster()
    assert sandbox.run("up", "-f", str(sandbox.manifests)).returncode == 0
    refused = sandbox.run("down", "--delete-data")
    assert refused.returncode == 2
    assert "cannot ask for confirmation without a terminal: add --yes" in refused.stderr
    assert (sandbox.data / "clusters").is_dir()
    assert sandbox.run("down", "--delete-data", "--yes").returncode == 0
