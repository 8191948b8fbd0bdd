"""`millstream mirror status` and `wait` of real mirrors: tables, JSON and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, delete, produce
from millstream_harness.mirror_brokers import broker_fixture
from millstream_harness.scenario import eventually, unique

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
west, east = broker_fixture("west"), broker_fixture("east")
MILLSTREAM = Path(sys.executable).parent / "millstream"


def run(*args: str, broker: InProcessBroker, verb: str = "status") -> subprocess.CompletedProcess[str]:
    command = [str(MILLSTREAM), "--bootstrap", broker.bootstrap, "mirror", verb, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def found(*args: str, broker: InProcessBroker) -> list[dict[str, Any]]:
    done = run(*args, "-o", "json", broker=broker)
    assert done.returncode == 0, done.stderr
    mirrors: list[dict[str, Any]] = json.loads(done.stdout)
    return mirrors


def test_change_of_a_copy_names_its_mirror(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, name = unique("copied"), unique("mirror")
    create(west, topic, 1)
    produce(west, topic, range(3))
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name)
    arrived(east, topic, [3])

    def said(*words: str) -> str:
        command = [str(MILLSTREAM), "--bootstrap", east.bootstrap, *words, "--yes"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr

    whose = f"topic {topic}: mirror {name} of west copies records into it"
    eventually(
        lambda: said("config", "set", f"topic/{topic}", "retention.ms=86400000"),
        lambda shown: f"{whose}; what is deleted is not copied again" in shown,
        "the worker has stored its progress",
    )
    assert said("config", "set", f"topic/{topic}", "retention.ms=-1") == ""
    assert f"{whose}: it is created again, with what the source still has" in said("topic", "delete", topic)


@pytest.mark.parametrize("naming", ["Same", "Prefixed"])
def test_status_lists_mirrors_of_cluster(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, naming: str
) -> None:
    topic, name = unique("shown"), unique("mirror")
    target = topic if naming == "Same" else f"west.{topic}"
    create(west, topic, 2)
    produce(west, topic, range(100), 2)
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, naming=naming, name=name
    )
    arrived(east, target, [50, 50])
    source = ("--source", f"west={west.bootstrap}")

    def settled() -> dict[str, Any]:
        (one,) = found(name, *source, broker=east)
        return one

    one = eventually(settled, lambda now: now["lag"] == 0 and now["state"] == "Stable", "no lag")
    assert (one["mirror"], one["source"], one["group"]) == (name, "west", f"millstream-mirror.{name}.west")
    assert one["workers"] == 1
    (shown,) = one["topics"]
    assert (shown["topic"], shown["partitions"], shown["lag"], shown["gaps"]) == (target, 2, 0, [])
    assert shown["caughtUp"].endswith("Z")
    assert found(name, broker=east)[0]["topics"][0]["lag"] is None, "the source was not named"

    mirror.kill()
    produce(west, topic, range(30))
    assert found(name, *source, broker=east)[0]["topics"][0]["lag"] == 30

    table = run(name, *source, broker=east).stdout.splitlines()
    assert table[0].split() == [
        "SOURCE",
        "STATE",
        "WORKERS",
        "TOPIC",
        "PROMOTED",
        "PARTITIONS",
        "LAG",
        "CAUGHT",
        "UP",
        "MISSING",
    ]
    assert table[1].split()[3:7] == [target, "-", "2", "30"]
    all_of_them = run(broker=east).stdout.splitlines()
    assert all_of_them[0].split()[:8] == [
        *("MIRROR", "SOURCE", "STATE", "WORKERS", "TOPICS", "PROMOTED", "PARTITIONS", "LAG"),
    ]
    assert any(line.split()[:2] == [name, "west"] for line in all_of_them)


def test_promoted_topics_have_no_lag(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    name = unique("mirror")
    topics = [f"{name}-{number}" for number in range(2)]
    for topic in topics:
        create(west, topic)
        produce(west, topic, range(10))
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": topics}, mode="Identity", name=name
    )
    for topic in topics:
        arrived(east, topic, [10])
    eventually(mirror.status, lambda status: status["topics"] == 2, "both are mirrored")

    def shown() -> dict[str, tuple[bool, int]]:
        (one,) = found(name, "--source", f"west={west.bootstrap}", broker=east)
        return {topic["topic"]: (topic["promoted"], topic["lag"]) for topic in one["topics"]}

    eventually(shown, lambda now: now == dict.fromkeys(topics, (False, 0)), "no lag")
    reset = [str(MILLSTREAM), "-b", east.bootstrap, "config", "reset", f"topic/{topics[0]}"]
    subprocess.run([*reset, "millstream.mirror.source"], check=True, timeout=60)
    produce(west, topics[0], range(5))
    eventually(shown, lambda now: now == {topics[0]: (True, 5), topics[1]: (False, 0)}, "it is promoted")
    (one,) = found(name, "--source", f"west={west.bootstrap}", broker=east)
    assert one["lag"] == 0
    rows = [line.split() for line in run(name, broker=east).stdout.splitlines()[1:]]
    assert [row[3:5] for row in rows] == [[topics[0], "yes"], [topics[1], "-"]]


def test_invalid_arguments_are_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, name = unique("shown"), unique("mirror")
    create(west, topic)
    produce(west, topic, range(10))
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name)
    arrived(east, topic, [10])
    wrong = run(name, "--source", f"west={east.bootstrap}", broker=east)
    assert wrong.returncode == 2
    assert f"--source: {east.bootstrap} is cluster " in wrong.stderr
    assert "which west is: name an address of that cluster" in wrong.stderr
    unknown = run(name, "--source", f"north={east.bootstrap}", broker=east)
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "millstream: --source: no mirror has a source north: there is: west\n",
    )
    nobody = run("nobody", broker=east)
    assert nobody.returncode == 1
    assert nobody.stderr.startswith('millstream: no mirror "nobody" has progress in this cluster: ')
    assert run("--source", "west", broker=east).returncode == 2
    without = run("--source-config", "west=client.properties", broker=east)
    assert (without.returncode, without.stderr) == (
        2,
        "millstream: --source-config: west has no address: add --source west=HOST:PORT\n",
    )


def test_wait_ends_once_everything_is_copied(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topics, name = [unique("awaited"), unique("awaited-too")], unique("mirror")
    for topic in topics:
        create(west, topic)
        produce(west, topic, range(10))
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": topics}, name=name)
    for topic in topics:
        arrived(east, topic, [10])
    wait = (name, "--source", f"west={west.bootstrap}")
    done = run(*wait, broker=east, verb="wait")
    assert (done.returncode, done.stdout) == (0, f"{name}: lag 0 in 2 topics\n"), done.stderr

    mirror.kill()
    produce(west, topics[0], range(1200))
    produce(west, topics[1], range(30))
    late = run(*wait, "--timeout", "0", broker=east, verb="wait")
    behind = f"lag behind west: {topics[0]} 1,200, {topics[1]} 30"
    assert (late.returncode, late.stdout) == (1, "")
    assert late.stderr.startswith(f"millstream: {name}: not copied within 0 s: {behind}")
    command = [str(MILLSTREAM), "-b", east.bootstrap, "mirror", "wait", *wait, "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith(f"{name}: waiting: {behind}")
        mirror.start()
        told, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    (only,) = json.loads(told)["mirrors"]
    assert (only["lag"], [topic["lag"] for topic in only["topics"]]) == (0, [0, 0])

    mirror.kill()
    admin(west).create_partitions([NewPartitions(topics[0], 2)])[topics[0]].result(20)
    (one,) = found(*wait, broker=east)
    assert one["lag"] is None, "the mirror has not begun all partitions"
    late = run(*wait, "--timeout", "0", broker=east, verb="wait")
    assert f"lag behind west: {topics[0]} unknown" in late.stderr
    mirror.start()
    assert run(*wait, broker=east, verb="wait").returncode == 0

    delete(west, topics[1])
    (one,) = found(*wait, broker=east)
    assert {topic["topic"]: topic["lag"] for topic in one["topics"]} == {topics[0]: 0, topics[1]: None}
    assert one["lag"] == 0, "a topic that the source does not have any more has no lag"
    assert run(*wait, broker=east, verb="wait").returncode == 0


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_wait_ignores_deselected_topic(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    name = unique("mirror")
    topics = [unique("kept"), unique("left")]
    for topic in topics:
        create(west, topic)
        produce(west, topic, range(10))
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": topics}, mode=mode, name=name
    )
    for topic in topics:
        arrived(east, topic, [10])
    eventually(mirror.status, lambda status: status["lag"]["records"] == 0, "everything is recorded")
    mirror.stop()
    mirror.config["topics"] = {"include": topics, "exclude": topics[1:]}
    mirror.start()
    produce(west, topics[1], range(5))
    waited = run(name, "--source", f"west={west.bootstrap}", broker=east, verb="wait")
    assert (waited.returncode, waited.stdout) == (0, f"{name}: lag 0 in 1 topic\n"), waited.stderr


def test_wait_without_source_address_is_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, name = unique("awaited"), unique("mirror")
    create(west, topic)
    produce(west, topic, range(10))
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name)
    arrived(east, topic, [10])
    without = run(name, broker=east, verb="wait")
    assert (without.returncode, without.stdout) == (2, "")
    assert without.stderr == "millstream: --source: west has no address: add --source west=HOST:PORT\n"
