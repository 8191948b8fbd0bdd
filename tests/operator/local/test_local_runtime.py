"""The local runtime end to end: real brokers, and the commands as a user runs them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream_harness.local import DEADLINE_S, LOCAL, Sandbox, brokers_of, consume, partitions, produce
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.local.processes import wait_for
from millstream_operator.local.runtime import LocalRuntime

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]


def test_up_again_and_again(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write(
        "Topic", "orders", "{clusterRef: {name: west}, partitions: 2, config: {retention.ms: '60000'}}"
    )
    sandbox.write("ConsumerGroup", "watch", "{clusterRef: {name: west}, topics: [orders], startAt: Earliest}")
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert outcome.failures == {}
    assert not any("spec.listeners" in line for line in sandbox.said), "the default type needs no word"
    assert f"Cluster west: started at {sandbox.bootstrap}" in sandbox.said
    assert partitions(sandbox.bootstrap, "orders") == 2
    pid = sandbox.pid()

    # A change by hand names the resource that has the topic.
    change = (sys.executable, "-m", "millstream", "config", "set", "topic/orders", "segment.ms=70000")
    told = subprocess.run(
        [*change, "--bootstrap", sandbox.bootstrap], capture_output=True, text=True, check=True
    )
    assert "topic orders: the Topic resource default/orders has it" in told.stderr

    # Nothing to do: the same process, the same resources.
    before = sandbox.found("Topic", "orders")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.said[0] == f"Cluster west: runs at {sandbox.bootstrap}"
    assert sandbox.pid() == pid
    assert sandbox.found("Topic", "orders") == before

    # The topic grows, and its new records are counted.
    produce(sandbox.bootstrap, "orders", 100)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 4}")
    sandbox.runtime().up(sandbox.manifests)
    assert partitions(sandbox.bootstrap, "orders") == 4
    assert sandbox.ready("Topic", "orders") == ("True", "TopicReady", "4 partitions")
    assert sandbox.found("ConsumerGroup", "watch")["status"]["lag"]["records"] == 100

    # The broker is killed: status reports it; up restarts it at its address, with all its records.
    os.kill(sandbox.pid(), signal.SIGKILL)
    assert wait_for(lambda: sandbox.ready("Cluster", "west")[0] == "False", DEADLINE_S)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.pid() != pid
    assert consume(sandbox.bootstrap, "orders", 100) == list(range(100))

    # A resource that no manifest contains any more is left alone.
    (sandbox.manifests / "Topic-orders.yaml").unlink()
    sandbox.write("ConsumerGroup", "watch", "{clusterRef: {name: west}}")
    sandbox.runtime().up(sandbox.manifests)
    assert "Topic orders: is not in these manifests: left unchanged" in sandbox.said
    assert partitions(sandbox.bootstrap, "orders") == 4

    pid = sandbox.pid()
    assert sandbox.runtime().down() == ["broker/default/west/0"]
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert sandbox.runtime().down() == []
    assert (sandbox.data / "clusters/west/0").is_dir()
    sandbox.runtime().down(delete_data=True)
    assert not sandbox.data.exists()


def test_changed_configuration_restarts_the_broker_at_its_port(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.runtime().up(sandbox.manifests)
    pid = sandbox.pid()
    sandbox.cluster(config="{num.partitions: '5'}")
    sandbox.runtime().up(sandbox.manifests)
    assert "Cluster west: its configuration changed: the broker is restarted" in sandbox.said
    assert sandbox.pid() != pid
    assert sandbox.found("Cluster", "west")["status"]["bootstrap"] == sandbox.bootstrap


def test_dynamic_configuration_is_set_and_reset_without_a_restart(sandbox: Sandbox) -> None:
    def retention() -> str:
        with contextlib.closing(KafkaAdmin(sandbox.bootstrap)) as admin:
            return admin.brokers_config().get("log.retention.ms", "")

    sandbox.cluster()
    sandbox.runtime().up(sandbox.manifests)
    pid, before = sandbox.pid(), retention()
    for config, expected in (("{log.retention.ms: '70000'}", "70000"), ("{}", before)):
        sandbox.cluster(config=config)
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
        assert (sandbox.pid(), retention()) == (pid, expected)
        file = sandbox.data / "clusters/west/broker-0.properties"
        assert ("log.retention.ms=70000" in file.read_text()) == (expected == "70000")


def test_the_port_of_a_stopped_cluster_is_not_in_use_but_kept(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.runtime().up(sandbox.manifests)
    sandbox.runtime().down()
    for file in sandbox.manifests.iterdir():
        file.unlink()
    sandbox.cluster("east")
    sandbox.runtime().up(sandbox.manifests)
    words = (
        f"Cluster east: port {sandbox.port} belongs to the stopped Cluster west (`millstream local down --delete-data`"
        " frees it, and deletes all data of this folder): internal listens on "
    )
    assert any(line.startswith(words) for line in sandbox.said)
    sandbox.cluster("north")
    sandbox.runtime().up(sandbox.manifests)
    words = f"Cluster north: port {sandbox.port} belongs to the stopped Cluster west "
    assert any(line.startswith(words) for line in sandbox.said)


MANY = """{{brokers: {{replicas: {brokers}}}, zookeeper: {{replicas: 3}},
  listeners: [{{name: internal, type: Internal, port: {port}}}],
  config: {{min.insync.replicas: '2', offsets.topic.num.partitions: '4', num.partitions: '{partitions}'}}}}"""


@pytest.mark.timeout(400)
def test_a_cluster_of_three_brokers(sandbox: Sandbox) -> None:
    def cluster(brokers: int = 3, partitions: int = 1) -> None:
        sandbox.write(
            "Cluster", "west", MANY.format(brokers=brokers, port=sandbox.port, partitions=partitions)
        )

    names = [*(f"broker/default/west/{broker}" for broker in range(3)), "zookeeper/default/west/0"]

    def pids() -> list[int]:
        return [sandbox.pid(name) for name in names]

    def numbers(count: int, group: str) -> list[int]:
        return consume(bootstrap, "orders", count, group)

    cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 3, replicationFactor: 3}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert "Cluster/west: spec.zookeeper.replicas above 1" in sandbox.said[0]
    assert sandbox.ready("Cluster", "west") == ("True", "AllBrokersReady", "all 3 brokers are ready")
    bootstrap = sandbox.found("Cluster", "west")["status"]["bootstrap"]
    assert len(set(bootstrap.split(","))) == 3
    assert sandbox.found("Topic", "orders")["status"]["replicationFactor"] == 3
    produce(bootstrap, "orders", 100)
    before = pids()

    # A broker is killed: it alone is restarted, and rejoins.
    os.kill(before[1], signal.SIGKILL)
    starting = ("False", "BrokersStarting", "broker 1 does not run: `millstream local up` starts it")
    assert wait_for(lambda: sandbox.ready("Cluster", "west") == starting, DEADLINE_S)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    after = pids()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, True]
    assert sandbox.found("Cluster", "west")["status"]["bootstrap"] == bootstrap
    produce(bootstrap, "orders", 50)
    assert numbers(150, "mended") == sorted([*range(100), *range(50)])

    # Changed configuration restarts the brokers, but not ZooKeeper; records arrive all the while.
    cluster(partitions=5)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    changed = "Cluster west: its configuration changed: brokers are restarted, one after the other"
    assert changed in sandbox.said
    rolled = pids()
    assert [old == new for old, new in zip(after, rolled, strict=True)] == [False, False, False, True]
    produce(bootstrap, "orders", 50)

    # ZooKeeper is killed: it alone is restarted.
    os.kill(rolled[3], signal.SIGKILL)
    assert wait_for(lambda: sandbox.ready("Cluster", "west")[1] == "ZooKeeperNotReady", DEADLINE_S)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert pids()[:3] == rolled[:3]

    # Brokers with data are not removed.
    cluster(brokers=2, partitions=5)
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert "3 brokers have data in" in outcome.failures["Cluster default/west"]
    assert sandbox.ready("Cluster", "west")[:2] == ("False", "ScaleDownRefused")
    assert pids()[:3] == rolled[:3]
    cluster(partitions=5)

    # All are stopped, ZooKeeper last; the data is still there afterwards.
    assert sandbox.runtime().down() == names
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.found("Cluster", "west")["status"]["bootstrap"] == bootstrap
    assert numbers(200, "again") == sorted([*range(100), *range(50), *range(50)])


def test_without_java_several_brokers_are_not_begun(sandbox: Sandbox) -> None:
    sandbox.write("Cluster", "west", MANY.format(brokers=3, port=sandbox.port, partitions=1))
    ended = sandbox.run("up", "-f", str(sandbox.manifests), JAVA_HOME="/nowhere")
    assert (ended.returncode, ended.stderr) == (1, "")
    why = "no Java 17: install a JDK 17 (or name one in JAVA_HOME)"
    assert f"Cluster west: ZooKeeperNotReady: {why}\n" in ended.stdout
    assert sandbox.ready("Cluster", "west") == ("False", "ZooKeeperNotReady", why)
    assert LocalRuntime(sandbox.data).status().daemons == []
    assert not (sandbox.data / "clusters").exists()


def test_what_goes_wrong_is_said_and_the_rest_goes_on(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Cluster", "odd", "{}")
    (sandbox.data / "clusters").mkdir(parents=True)
    (sandbox.data / "clusters/odd").write_text("no folder")
    sandbox.write("Topic", "good", "{clusterRef: {name: west}}")
    sandbox.write("Topic", "bad", "{clusterRef: {name: west}, replicationFactor: 3}")
    sandbox.write("Topic", "lost", "{clusterRef: {name: odd}}")
    target = "{clusterRef: {name: west}}"
    sandbox.write(
        "MirrorMaker", "round", f"{{sources: [{{name: w, clusterRef: {{name: west}}}}], target: {target}, "
        "topics: {include: ['.*']}}",
    )  # fmt: skip
    ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 1
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()

    def line(start: str) -> str:
        (found,) = (entry for entry in lines if entry.startswith(start))
        return found

    assert "clusters/odd" in line("Cluster odd: BrokerFailed: ")
    assert "replication factor" in line("Topic bad: InvalidReplicationFactor: ").lower()
    assert line("Topic lost: ClusterNotReady: ")
    assert "is the source w" in line("MirrorMaker round: SameCluster: ")
    assert line("Topic good: 1 partition")
    assert partitions(sandbox.bootstrap, "good") == 1
    # A later command keeps the reason, which it cannot find out itself.
    for kind, name, reason in (
        ("Cluster", "odd", "BrokerFailed"),
        ("Topic", "bad", "InvalidReplicationFactor"),
        ("Topic", "lost", "ClusterNotReady"),
        ("MirrorMaker", "round", "SameCluster"),
    ):
        ready, found, message = sandbox.ready(kind, name)
        assert (ready, found) == ("False", reason)
        assert line(f"{kind} {name}: {reason}: ") == f"{kind} {name}: {reason}: {message}"


def test_a_full_output_is_not_the_brokers_failure(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.runtime().up(sandbox.manifests)
    sandbox.cluster(config="{num.partitions: '3'}")  # `up` prints this before it restarts the broker
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*LOCAL, "up", "-f", str(sandbox.manifests), "--data", str(sandbox.data)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
    assert ended.returncode == 1
    assert ended.stderr == "millstream: the output cannot be written (no space left on device)\n"
    assert "BrokerFailed" not in (sandbox.data / "state.json").read_text()
    assert sandbox.ready("Cluster", "west")[0] == "True"


def test_a_state_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    script = (
        "import pathlib, resource; from millstream_operator.local.state import State, Store; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)); "
        f"Store(pathlib.Path({str(tmp_path)!r})).save(State(told=['x' * 10_000]))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.stderr.splitlines()[-1] == f"OSError: [Errno 27] File too large: '{tmp_path}/state.json'"


def test_mistakes_change_nothing(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: wst}, partitons: 3}")
    ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert (
        "Topic/orders: spec.partitons: unknown field; did you mean partitions? allowed here: " in ended.stderr
    )
    assert ended.stderr.endswith("nothing was changed\n")
    assert not sandbox.data.exists()
    ended = sandbox.run("up", "-f", str(sandbox.manifests / "nowhere"))
    assert (ended.returncode, "there is no such folder or file" in ended.stderr) == (2, True)
    (sandbox.manifests / "Topic-orders.yaml").unlink()
    (sandbox.data).write_text("a file")
    ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 2


def test_status_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    """A client of Kubernetes and the evaluator of the CRDs' rules take a second of processor time to load."""
    program = (
        "import sys; from pathlib import Path; from millstream_operator.local.runtime import LocalRuntime;"
        "LocalRuntime(Path(sys.argv[1])).status();"
        "print(sorted({'kopf', 'kubernetes', 'aiohttp', 'celpy', 'pyspark'} & set(sys.modules)))"
    )
    data = tmp_path / "data"
    data.mkdir()
    topic = {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": "orders", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {"clusterRef": {"name": "west"}, "partitions": 1, "config": {}, "deletionPolicy": "Retain"},
    }
    state = {"version": 1, "path": str(data), "resources": {"Topic/default/orders": topic}}
    (data / "state.json").write_text(json.dumps(state))
    ended = subprocess.run(
        [sys.executable, "-c", program, str(data)], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_the_commands_speak_to_their_user(sandbox: Sandbox) -> None:
    assert "nothing is in" in sandbox.run("status").stdout
    nothing = f"there is no data folder {sandbox.data}, so nothing was stopped: --data names another one\n"
    assert sandbox.run("down").stdout == nothing
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    ended = sandbox.run_alone("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 0
    assert f"bootstrap of west: {sandbox.bootstrap}\n" in ended.stdout
    assert f"  millstream consume orders --bootstrap {sandbox.bootstrap}\n" in ended.stdout
    assert f"  millstream local down --data {sandbox.data}\n" in ended.stdout
    table = sandbox.run("status").stdout.splitlines()
    assert table[0].split() == ["KIND", "NAME", "READY", "IS", "MESSAGE"]
    assert [line.split()[:3] for line in table[1:3]] == [
        ["Cluster", "west", "True"],
        ["Topic", "orders", "True"],
    ]
    told = json.loads(sandbox.run("status", "--output", "json").stdout)
    assert [resource["kind"] for resource in told["resources"]] == ["Cluster", "Topic"]
    assert told["resources"][1]["status"]["topicId"]
    (process,) = told["processes"]
    assert (process["name"], process["running"], process["address"]) == (
        "broker/default/west/0",
        True,
        sandbox.bootstrap,
    )
    assert sandbox.run_alone("down").stdout == f"broker west: stopped\ndata stays in {sandbox.data}\n"
    assert sandbox.run("status", "-o", "json").returncode == 0


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_an_interrupted_up_leaves_no_broker_that_nothing_knows_of(
    sandbox: Sandbox, sign: signal.Signals
) -> None:
    sandbox.cluster()
    command = [*LOCAL, "up", "-f", str(sandbox.manifests), "--data", str(sandbox.data)]

    def heed() -> None:  # `nohup` around these tests ignores the signal in all of its processes
        if sign != signal.SIGKILL:
            signal.signal(sign, signal.SIG_DFL)

    for _ in range(20):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed
        ) as up:
            try:
                assert wait_for(lambda: brokers_of(sandbox.data), DEADLINE_S)
                up.send_signal(sign)
                _, stderr = up.communicate(timeout=DEADLINE_S)
            finally:
                up.kill()
        if up.returncode > 0 or (up.returncode and sign == signal.SIGKILL):
            break
        sandbox.runtime().down()  # `up` ended before the signal came, or while it did
    if sign == signal.SIGKILL:
        (pid,) = brokers_of(sandbox.data)
        (daemon,) = LocalRuntime(sandbox.data).status().daemons
        assert (daemon["name"], daemon["pid"], daemon["running"]) == ("broker/default/west/0", pid, True)
    else:
        assert stderr == "millstream: interrupted: run the same command again to continue\n"
        assert (up.returncode, brokers_of(sandbox.data)) == (130, [])
    # The broker starts again, at its own ports.
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert brokers_of(sandbox.data) == [sandbox.pid()]
    assert sandbox.found("Cluster", "west")["status"]["bootstrap"] == sandbox.bootstrap
    assert sandbox.runtime().down(delete_data=True) == ["broker/default/west/0"]
    assert brokers_of(sandbox.data) == []
    assert not sandbox.data.exists()


def test_two_at_once_are_refused(sandbox: Sandbox) -> None:
    sandbox.cluster()
    runtime = sandbox.runtime()
    with runtime.store.locked():
        ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 2
    assert "is in use by another `millstream local`" in ended.stderr
