"""Workloads of ConsumerGroups on a laptop: real consumers as processes, beside a real broker."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.kube import until
from millstream_harness.local import Sandbox, produce
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.local import processes
from millstream_operator.local.consumers import Consumer, WorkloadFile, pause_after
from millstream_operator.models.references import expanded

pytestmark = [pytest.mark.soak, pytest.mark.timeout(500)]

ROOT = Path(__file__).resolve().parents[3]
CONSUMER = """
import os, sys, time
from confluent_kafka import Consumer
print("consumes", os.environ["MILLSTREAM_TOPICS"], sys.argv[1:], flush=True)
consumer = Consumer({
    "bootstrap.servers": os.environ["MILLSTREAM_BOOTSTRAP_SERVERS"],
    "group.id": os.environ["MILLSTREAM_GROUP_ID"],
    "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200, "session.timeout.ms": 6000,
})
consumer.subscribe(os.environ["MILLSTREAM_TOPICS"].split(","))
while True:
    consumer.poll(0.2)
"""


@pytest.fixture
def consumer(tmp_path: Path) -> Path:
    """A consumer configured by its environment."""
    file = tmp_path / "consumer.py"
    file.write_text(CONSUMER)
    return file


@dataclass(frozen=True)
class HeldConsumer:
    """It stops at a record while a file exists, so there is a lag when the supervisor looks."""

    program: Path
    hold: Path


@pytest.fixture
def held_consumer(tmp_path: Path) -> HeldConsumer:
    found = HeldConsumer(tmp_path / "held_consumer.py", tmp_path / "hold")
    wait = f"    while os.path.exists({str(found.hold)!r}) and message: time.sleep(0.1)"
    found.program.write_text(
        CONSUMER.replace("    consumer.poll(0.2)", f"    message = consumer.poll(0.2)\n{wait}")
    )
    return found


def running(mark: str) -> list[int]:
    return processes._marked(f"{processes.MARK}={mark}")


def mark_of(sandbox: Sandbox) -> str:
    told = json.loads((sandbox.data / "consumers" / "work" / "workload.json").read_text())
    return str(told["mark"])


def workload(program: Path, extra: str = "replicas: 1", args: str = "[]") -> str:
    container = f"{{name: c, image: ours, command: [{sys.executable}, {program}], args: {args}}}"
    spec = f"{{terminationGracePeriodSeconds: 5, containers: [{container}]}}"
    asked = f"{{{extra}, template: {{spec: {spec}}}}}"
    return f"{{clusterRef: {{name: west}}, topics: [flights], startAt: Earliest, workload: {asked}}}"


def set_up(sandbox: Sandbox, spec: str) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "flights", "{clusterRef: {name: west}, partitions: 2}")
    sandbox.write("ConsumerGroup", "work", spec)


def status(sandbox: Sandbox) -> dict[str, Any]:
    found: dict[str, Any] = sandbox.found("ConsumerGroup", "work")["status"]
    return found


def condition(sandbox: Sandbox, which: str = "WorkloadReady") -> tuple[str, str, str]:
    (found,) = (one for one in status(sandbox)["conditions"] if one["type"] == which)
    return found["status"], found["reason"], found["message"]


def test_consumers_run_as_processes_until_down(sandbox: Sandbox, consumer: Path) -> None:
    """They consume; an ended one restarts; a new number or program takes effect; none is left at the end."""
    set_up(sandbox, workload(consumer, args='["$(MILLSTREAM_GROUP_ID)"]'))
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert outcome.failures == {}
    assert any("spec.workload.template.spec.containers[].image" in line for line in sandbox.said)
    ready = ("True", "WorkloadReady", "1 of 1 consumers are ready")
    until("it is ready", lambda: condition(sandbox) == ready)
    produce(sandbox.bootstrap, "flights", 20)
    until("all consumed", lambda: committed(sandbox) == 20)
    log = sandbox.data / "consumers" / "work" / "0.log"
    assert "consumes flights ['work']" in log.read_text()

    mark = mark_of(sandbox)
    (first,) = running(mark)
    os.kill(first, signal.SIGKILL)
    until("another one", lambda: running(mark) not in ([], [first]))

    sandbox.write("ConsumerGroup", "work", workload(consumer, "replicas: 2", '["$(MILLSTREAM_GROUP_ID)"]'))
    sandbox.runtime().up(sandbox.manifests)
    until("two", lambda: len(running(mark)) == 2)
    (kept, other) = running(mark)
    sandbox.runtime().up(sandbox.manifests)
    assert running(mark) == [kept, other], "what is so already stays"
    assert not any("containers[].image" in line for line in sandbox.said), "it is said once"
    stopped = sandbox.runtime().down()
    assert "consumers/default/work/0" in stopped
    assert running(mark) == []


def committed(sandbox: Sandbox) -> int:
    admin = KafkaAdmin(sandbox.bootstrap)
    try:
        return sum(admin.committed(["work"]).get("work", {}).values())
    finally:
        admin.close()


def members(sandbox: Sandbox) -> int:
    admin = KafkaAdmin(sandbox.bootstrap)
    try:
        return len(admin.groups(["work"])["work"].members)
    finally:
        admin.close()


def test_scaled_to_none_and_started_by_the_first_record(sandbox: Sandbox, consumer: Path) -> None:
    set_up(sandbox, workload(consumer, "scaling: {min: 0, max: 5, targetLag: 5}"))
    sandbox.runtime().up(sandbox.manifests)
    mark = mark_of(sandbox)
    none = ("True", "WorkloadReady", "0 of 0 consumers are ready")
    until("it is ready", lambda: condition(sandbox) == none)
    assert running(mark) == []
    produce(sandbox.bootstrap, "flights", 100)
    until("as many as partitions", lambda: len(running(mark)) == 2)
    until("all consumed", lambda: committed(sandbox) == 100)


def test_scaled_up_down_and_up_again_and_never_above_the_partitions(
    sandbox: Sandbox, held_consumer: HeldConsumer
) -> None:
    """By the lag alone twenty consumers would run; there are two partitions. Without lag the second one stops after
    the window, the first one keeps reading, and the second one comes back."""
    scaling = "scaling: {min: 1, max: 5, targetLag: 5, stabilizationSeconds: 30}"
    set_up(sandbox, workload(held_consumer.program, scaling))
    sandbox.runtime().up(sandbox.manifests)
    mark, most = mark_of(sandbox), 0
    said = sandbox.data / "consumers" / "work" / "consumers.json"

    def count() -> int:
        nonlocal most
        found = len(running(mark))
        most = max(most, found, json.loads(said.read_text())["wanted"])
        return found

    until("its first report", said.exists)
    until("one", lambda: count() == 1)
    held_consumer.hold.touch()
    produce(sandbox.bootstrap, "flights", 100)
    until("two", lambda: count() == 2)
    until("both are ready", lambda: condition(sandbox)[2] == "2 of 2 consumers are ready")
    assert condition(sandbox)[:2] == ("True", "WorkloadReady")
    held_consumer.hold.unlink()
    until("all consumed", lambda: count() and committed(sandbox) == 100)
    until("one of them stopped", lambda: count() == 1)
    until("it says so", lambda: condition(sandbox)[2] == "1 of 1 consumers are ready")
    held_consumer.hold.touch()
    produce(sandbox.bootstrap, "flights", 100)
    until("two again", lambda: count() == 2)
    held_consumer.hold.unlink()
    until("all consumed", lambda: count() and committed(sandbox) == 200)
    assert most == 2


def records_left(sandbox: Sandbox) -> int:
    lag: int = sandbox.found("ConsumerGroup", "workers")["status"]["lag"]["records"]
    return lag


def test_the_example(sandbox: Sandbox) -> None:
    """Its consumers start once there are records, and read them. The command `millstream` is the one beside Python."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    example = str(ROOT / "examples" / "workload")
    assert sandbox.run("up", "-f", example, PATH=path).returncode == 0
    bootstrap = sandbox.found("Cluster", "work")["status"]["bootstrap"]
    produce(bootstrap, "jobs", 3000)
    log = sandbox.data / "consumers" / "workers" / "0.log"
    until("a consumer that reads", lambda: log.exists() and '"n":' in log.read_text())
    until("all is read", lambda: records_left(sandbox) == 0, every=1.0)
    assert sandbox.run("down").returncode == 0


def test_a_supervisor_that_is_killed_leaves_nobody(sandbox: Sandbox, consumer: Path) -> None:
    set_up(sandbox, workload(consumer))
    sandbox.runtime().up(sandbox.manifests)
    mark = mark_of(sandbox)
    until("one", lambda: len(running(mark)) == 1)
    (left,) = running(mark)
    sandbox.kill("consumers/default/work/0")
    sandbox.runtime().up(sandbox.manifests)
    until("one, another one", lambda: len(running(mark)) == 1 and running(mark) != [left])
    sandbox.kill("consumers/default/work/0")
    sandbox.runtime().down()
    assert running(mark) == []


def test_a_workload_that_is_taken_away_and_a_resource_that_is_deleted(
    sandbox: Sandbox, consumer: Path
) -> None:
    spec = workload(consumer)
    set_up(sandbox, spec)
    sandbox.runtime().up(sandbox.manifests)
    mark = mark_of(sandbox)
    sandbox.write("ConsumerGroup", "work", "{clusterRef: {name: west}, topics: [flights]}")
    sandbox.runtime().up(sandbox.manifests)
    assert running(mark) == []
    sandbox.write("ConsumerGroup", "work", spec.replace("topics:", "deletionPolicy: Delete, topics:"))
    sandbox.runtime().up(sandbox.manifests)
    until("one", lambda: len(running(mark)) == 1)
    until("a member", lambda: members(sandbox) == 1)  # it ends without leaving: the group keeps it for 6 s
    folder = sandbox.manifests
    for kept in ("Cluster-west.yaml", "Topic-flights.yaml"):
        (folder / kept).unlink()
    outcome = sandbox.runtime().delete(folder, sandbox.runtime().doomed(folder))
    assert outcome.failures == {}
    assert running(mark) == []
    assert committed(sandbox) == 0


def test_a_program_that_cannot_run_says_why(sandbox: Sandbox, tmp_path: Path) -> None:
    set_up(sandbox, workload(tmp_path / "missing.py"))
    sandbox.runtime().up(sandbox.manifests)
    until("why", lambda: condition(sandbox)[1] == "WorkloadFailed")
    assert "missing.py" in condition(sandbox)[2]


def test_an_image_without_a_command_is_not_known_here(sandbox: Sandbox, consumer: Path) -> None:
    set_up(sandbox, workload(consumer).replace(f"command: [{sys.executable}, {consumer}], ", ""))
    sandbox.runtime().up(sandbox.manifests)
    assert condition(sandbox) == (
        "False",
        "WorkloadRefused",
        "spec.workload.template.spec.containers[0].command: required on this machine, because an "
        "image's program is unknown here",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)", "1"), ("$(A)$(B)", "1$(B)"), ("$$(A)", "$(A)"), ("$A ${A}", "$A ${A}"), ("x$(A", "x$(A")],
)
def test_variables_in_arguments_are_kubernetes(text: str, expected: str) -> None:
    assert expanded(text, {"A": "1"}) == expected


def test_pauses_grow_to_a_minute() -> None:
    assert [pause_after(failures) for failures in (1, 2, 3, 7, 100)] == [1, 2, 4, 60, 60]


def test_a_program_that_ends_is_started_again_after_a_pause(tmp_path: Path) -> None:
    workload = WorkloadFile({}, "", [sys.executable, "-c", "raise SystemExit('over')"], {}, "m", 1, 1.0)
    one = Consumer(0, tmp_path)
    now, starts = 0.0, 0
    for failures in (1, 2, 3):
        one.tend(workload, now)
        assert one.process is not None
        one.process.wait(120)
        one.tend(workload, now)
        assert (one.process, one.failures) == (None, failures)
        assert one.failure == f"{sys.executable} ended with status 1: over"
        one.tend(workload, now + pause_after(failures) - 0.1)
        assert one.process is None, "not yet"
        now += pause_after(failures)
        starts += 1
    assert starts == 3
