"""Clean and unclean starts and stops, and the data afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.coordination import OVERRIDE, tree
from millstream_broker.coordination.stores.file import FILE_NAME
from millstream_harness.broker import BrokerProcess
from millstream_harness.coordination_file import nodes_in, put
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, fetch_request, record
from millstream_kafka.batch import read_records
from millstream_kafka.protocol import delete_topics, fetch, metadata

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
StartBrokerProcess = Callable[..., BrokerProcess]


def values(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    """All records of a partition, read over one connection."""
    found: list[bytes] = []
    end = wire.end_offset(topic, partition)
    while len(found) < end:
        data = wire.fetch(topic, len(found), partition=partition)
        assert data.error_code == 0
        assert isinstance(data.records, memoryview)
        rest = data.records
        while len(rest):
            size = int.from_bytes(rest[8:12], "big") + 12
            if size > len(rest):
                break
            found += [one.value or b"" for one in read_records(rest[:size])]
            rest = rest[size:]
    return found


def test_sigterm_stops_the_broker_and_a_restart_has_everything(
    start_broker_process: StartBrokerProcess,
) -> None:
    broker = start_broker_process()
    with Wire(broker.bootstrap) as wire:
        wire.create("kept")
        topic_id = wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics[0].topic_id
        for number in range(50):
            assert wire.produce("kept", [record(f"{number}")]).error_code == 0
        assert broker.stop() == 0
    broker.start()
    with Wire(broker.bootstrap) as wire:
        (topic,) = wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics
        assert (topic.name, topic.topic_id, len(topic.partitions)) == ("kept", topic_id, 1)
        assert topic.partitions[0].leader_epoch == 0, (
            "the leader is the one that it was, with all that it had"
        )
        assert values(wire, "kept") == [b"%d" % number for number in range(50)]
        assert wire.produce("kept", [record("50")]).base_offset == 50


class DrainsForDays(BrokerProcess):
    """Its `shutdown.drain.ms` is far beyond the longest that a configuration may have."""

    @property
    def command(self) -> list[str]:
        program = (
            "import sys\n"
            "from millstream_broker import main\n"
            "from millstream_broker.config.config import BrokerConfig\n"
            "integer = BrokerConfig.integer\n"
            "BrokerConfig.integer = lambda self, name: 10**9 if name == 'shutdown.drain.ms' else integer(self, name)\n"
            "sys.exit(main.main())\n"
        )
        return [sys.executable, "-c", program, *super().command[1:]]


def test_a_broker_that_is_told_to_stop_still_serves_but_is_not_ready(tmp_path: Path) -> None:
    with DrainsForDays(tmp_path) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("kept")
            broker.launch_stop()
            eventually(lambda: broker.get("/readyz"), lambda ready: ready == (503, "stopping\n"), "not ready")
            assert broker.get("/healthz") == (200, "ok\n")
            assert wire.produce("kept", [record("late")]).error_code == 0
            with Wire(broker.bootstrap) as newcomer:
                assert values(newcomer, "kept") == [b"late"]
        assert broker.stop() == 0, "a second signal ends the wait"
    with BrokerProcess(tmp_path) as again, Wire(again.bootstrap) as wire:
        assert values(wire, "kept") == [b"late"]


def test_sigterm_ends_a_long_poll(
    start_broker_process: StartBrokerProcess,
) -> None:
    broker = start_broker_process()
    with Wire(broker.bootstrap) as wire:
        wire.create("polled")
        wire.send(fetch.API, 12, fetch_request("polled", 0, wait_ms=600_000))
        assert broker.stop() == 0


@pytest.mark.parametrize("segment_bytes", ["1073741824", "200000"])
def test_kill_in_mid_write_loses_nothing_acknowledged(
    start_broker_process: StartBrokerProcess, segment_bytes: str
) -> None:
    broker = start_broker_process({"log.segment.bytes": segment_bytes})
    for _ in range(2):
        written = kill_while_writing(broker)
        broker.start()
        with Wire(broker.bootstrap) as reader:
            found = values(reader, "hard")
            assert len(found) >= written
            assert [int(value.split(b"x")[0]) for value in found] == list(range(len(found)))


def kill_while_writing(broker: BrokerProcess) -> int:
    """Kill the broker while a producer writes; returns the number of acknowledged records."""
    acknowledged: dict[int, int] = {}
    with Wire(broker.bootstrap) as wire:
        wire.create("hard")
        first = wire.end_offset("hard")
        writer = threading.Thread(target=write_from, args=(wire, first, acknowledged))
        writer.start()
        eventually(lambda: acknowledged.get(0, 0), lambda count: count >= first + 300, "records written")
        broker.kill()
        writer.join()
    return acknowledged[0]


def write_from(wire: Wire, number: int, acknowledged: dict[int, int]) -> None:
    """Produce numbers until the broker is gone, and record the last acknowledged one."""
    try:
        while True:
            response = wire.produce("hard", [record(b"%d" % number + b"x" * 500)])
            assert (response.error_code, response.base_offset) == (0, number)
            number += 1
            acknowledged[0] = number
    except (EOFError, OSError):
        return


def test_a_second_broker_on_the_same_data_is_refused(start_broker: StartBroker) -> None:
    broker = start_broker()
    second = InProcessBroker(broker.folder)
    with pytest.raises(RuntimeError, match="is in use by another broker"):
        second.start()
    with Wire(broker.bootstrap) as wire:
        wire.create("unharmed")


@pytest.mark.parametrize("key", ["listeners", "http.listener"])
def test_a_port_in_use_is_named(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        value = f"PLAINTEXT://{address}" if key == "listeners" else address
        broker = BrokerProcess(tmp_path / "refused", {key: value})
        with pytest.raises(RuntimeError) as error:
            broker.start()
    said = str(error.value)
    assert "status 1" in said
    assert f"{key}={value}: cannot listen there: address already in use" in said.lower().replace(
        "plaintext", "PLAINTEXT"
    )
    free = value.rpartition(":")[0] + ":0"
    assert f"--override {key}={free} takes any free port" in said
    assert not broker.data.exists(), "nothing was started"


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broker = InProcessBroker(tmp_path / "b", {"log.dirs": str(tmp_path / "file" / "data")})
    with pytest.raises(RuntimeError, match=r"log\.dirs: .*file/data cannot be used: Not a directory"):
        broker.start()


def test_data_of_another_broker_is_refused(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.stop()
    other = InProcessBroker(broker.folder, {"broker.id": "2"})
    with pytest.raises(RuntimeError, match=r"belongs to broker\.id=1, this is broker\.id=2"):
        other.start()


def test_a_broken_coordination_file_is_named_and_left_alone(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.stop()
    path = broker.data / FILE_NAME
    path.write_text("{\n")
    with pytest.raises(RuntimeError, match=r"coordination\.journal: cannot be read"):
        broker.start()
    assert path.read_text() == "{\n"


def test_topics_are_found_again_without_the_coordination_file(start_broker: StartBroker) -> None:
    broker = start_broker({"num.partitions": "2"})
    with Wire(broker.bootstrap) as wire:
        wire.create("found")
        wire.produce("found", [record("a")], partition=1)
        before = wire.call(metadata.API, 12, metadata.MetadataRequest(None))
    broker.stop()
    (broker.data / FILE_NAME).unlink()
    with pytest.raises(RuntimeError, match=r"none has coordination\.journal"):
        broker.start()
    broker.config[OVERRIDE] = "true"
    broker.start()
    assert "coordination.journal is new: continuing with the 1 topics whose logs are here" in broker.said()
    with Wire(broker.bootstrap) as wire:
        after = wire.call(metadata.API, 12, metadata.MetadataRequest(None))
        assert after.cluster_id == before.cluster_id
        assert [(topic.name, topic.topic_id) for topic in after.topics] == [
            ("found", before.topics[0].topic_id)
        ]
        wire.await_leader("found", 1)
        assert values(wire, "found", 1) == [b"a"]


def test_a_deletion_that_was_interrupted_is_finished(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Wire(broker.bootstrap) as wire:
        wire.create("doomed", "spared")
    broker.stop()
    put(broker.data, tree.delete_topic_path("doomed"), b"")
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert [
            topic.name for topic in wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics
        ] == ["spared"]

    def left() -> list[object]:
        return [*broker.data.glob("doomed*"), *(path for path in nodes_in(broker.data) if "doomed" in path)]

    eventually(left, lambda found: not found, "all is gone")


def test_a_topic_created_again_has_none_of_the_old_records(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Wire(broker.bootstrap) as wire:
        wire.create("again")
        wire.produce("again", [record("old")])
        request = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState("again")])
        assert wire.call(delete_topics.API, 6, request).responses[0].error_code == 0
        wire.create("again")
        assert wire.end_offset("again") == 0
        assert wire.produce("again", [record("new")]).base_offset == 0
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert values(wire, "again") == [b"new"]


def test_it_runs_on_asyncio_without_uvloop(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['uvloop'] = None; from millstream_broker.main import main; sys.exit(main())"
    )

    class WithoutUvloop(BrokerProcess):
        @property
        def command(self) -> list[str]:
            return [sys.executable, "-c", program, *super().command[1:]]

    with WithoutUvloop(tmp_path) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("plain")
            big = [record(b"x" * 900_000)]
            for _ in range(8):
                assert wire.produce("plain", big).error_code == 0
            assert len(values(wire, "plain")) == 8
        assert broker.stop() == 0


def test_version_and_help_need_no_configuration() -> None:
    command = str(Path(sys.executable).parent / "millstream-broker")
    for argument, said in (("--version", "millstream-broker 0."), ("--help", "--override KEY=VALUE")):
        done = subprocess.run([command, argument], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert said in done.stdout
