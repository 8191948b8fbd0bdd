"""Disks that are full, read-only, broken or away: clear errors, no acknowledged record lost, other disks still work."""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.coordination_file import nodes_in
from millstream_harness.disk import DyingDisk, dying_disk, small_disk
from millstream_harness.ledger import Load, check
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, fetch_request, record
from millstream_kafka.protocol import (
    create_topics,
    delete_topics,
    describe_log_dirs,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
)
from millstream_kafka.protocol import delete_records as delete_records_api
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.soak

B = TypeVar("B", bound=BrokerProcess)


def two_dirs(broker: B, first: Path, second: Path) -> B:
    broker.config["log.dirs"] = f"{first},{second}"
    return broker


def homes(wire: Wire) -> dict[str, set[str]]:
    """The topics of each log directory, by the directory's name."""
    answer = wire.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(None))
    return {Path(one.log_dir).name: {topic.name for topic in one.topics} for one in answer.results}


def topic_in(wire: Wire, home: str) -> str:
    """Create topics until one is in this directory."""
    for number in range(10):
        name = f"in-{home}-{number}"
        wire.create(name)
        if name in homes(wire)[home]:
            return name
    raise AssertionError(f"no new topic went to {home}: {homes(wire)}")


@pytest.mark.parametrize("flush", ["9223372036854775807", "1"])
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, flush: str) -> None:
    """Producers wait for space, the other directory keeps working, and no acknowledged record is lost."""
    with small_disk(tmp_path / "small", 24) as disk:
        broker = BrokerProcess(
            tmp_path, {"log.flush.interval.messages": flush, "log.segment.bytes": "1000000"}
        )
        with two_dirs(broker, tmp_path / "roomy", disk.path).keep_port():
            with Wire(broker.bootstrap) as wire:
                small, roomy = topic_in(wire, "small"), topic_in(wire, "roomy")
            with (
                Load(broker.bootstrap, small, size=2000, pause_s=0.005) as on_small,
                Load(broker.bootstrap, roomy, pause_s=0.005) as on_roomy,
            ):
                on_small.until(100)
                disk.fill(leave=200_000)
                with Wire(broker.bootstrap) as wire:
                    eventually(
                        lambda: wire.produce(small, [record(b"x" * 100_000)]),
                        lambda answer: answer.error_code != 0,
                        "the disk is full",
                    )
                    refused = wire.produce(small, [record(b"x" * 100_000)])
                    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert "No space left on device" in (refused.error_message or "")
                    assert wire.fetch(small, 0).error_code == 0, "what is there is served"
                on_roomy.until(on_roomy.ledger.count + 100)
                disk.free()
                on_small.until(on_small.ledger.count + 100)
            assert on_small.ledger.failed == on_roomy.ledger.failed == []
            verify_without_foreign(broker, small, on_small)
            check(broker.bootstrap, roomy, [on_roomy])
            broker.kill()
            broker.start()
            verify_without_foreign(broker, small, on_small)
            check(broker.bootstrap, roomy, [on_roomy])
            assert "Traceback" not in broker.said()


def verify_without_foreign(broker: BrokerProcess, topic: str, load: Load) -> None:
    check(broker.bootstrap, topic, [load], ignore=rb"x+")


def said_at_start(broker: BrokerProcess) -> str:
    """Start the broker; return its error, or ""."""
    try:
        broker.start()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_disk_that_is_full_at_a_kill(tmp_path: Path) -> None:
    """A restart on a full disk serves its records or explains why it cannot; with space, all works again."""
    with small_disk(tmp_path / "data", 16) as disk:
        broker = BrokerProcess(tmp_path, {"log.segment.bytes": "1000000"}).keep_port()
        with broker:
            with Wire(broker.bootstrap) as wire:
                wire.create("kept")
            with Load(broker.bootstrap, "kept", size=2000, pause_s=0.005) as load:
                load.until(200)
                disk.fill()
                broker.kill()
                disk.fill()
                why = said_at_start(broker)
                if why:
                    assert "cannot be written: No space left on device" in why
                    assert "Traceback" not in why
                else:  # the journal's last block had room for the writes of a start
                    with Wire(broker.bootstrap) as wire:
                        assert wire.fetch("kept", 0).error_code == 0, "what is there is served"
                        refused = wire.produce("kept", [record(b"x" * 100_000)])
                        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    broker.stop()
                disk.free()
                broker.start()
                load.until(load.ledger.count + 100)
            assert load.ledger.failed == []
            check(broker.bootstrap, "kept", [load])


def test_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    """The kernel's response to a broken disk. Reads continue; a restart restores writes."""
    with (
        small_disk(tmp_path / "broken", 24) as disk,
        two_dirs(BrokerProcess(tmp_path), tmp_path / "whole", disk.path).keep_port() as broker,
    ):
        with Wire(broker.bootstrap) as wire:
            broken, whole = topic_in(wire, "broken"), topic_in(wire, "whole")
            for number in range(10):
                assert wire.produce(broken, [record(f"{number}")]).error_code == 0
        broker.kill()
        disk.remount("ro")
        broker.start()
        assert f"{disk.path} cannot be used: Read-only file system" in broker.said()
        with Wire(broker.bootstrap) as wire:
            refused = wire.produce(broken, [record("lost")])
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert str(disk.path) in (refused.error_message or "")
            assert wire.fetch(broken, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert wire.produce(whole, [record("a")]).error_code == 0
            assert topic_in(wire, "whole"), "new topics go where there is a disk"
            described = {
                topic.name: topic
                for topic in wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics
            }
            assert described[broken].partitions[0].offline_replicas == [1]
            assert described[whole].partitions[0].offline_replicas == []
            answer = wire.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(None))
            assert {Path(one.log_dir).name: one.error_code for one in answer.results} == {
                "whole": 0,
                "broken": ErrorCode.KAFKA_STORAGE_ERROR,
            }
        disk.remount("rw")
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            assert wire.produce(broken, [record("10")]).base_offset == 10
            assert len(wire.fetch(broken, 0).records or b"") > 0
        assert "Traceback" not in broker.said()


class WithFileLimit(BrokerProcess):
    """No file may grow beyond a limit: further writes fail with EFBIG, like any other disk error."""

    limit = 4_000_000

    @property
    def command(self) -> list[str]:
        return ["prlimit", f"--fsize={self.limit}", *super().command]


def test_writes_that_fail(tmp_path: Path) -> None:
    assert shutil.which("prlimit"), "util-linux"
    with WithFileLimit(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        wire.create("limited", "other")
        answers = [wire.produce("limited", [record(b"x" * 900_000)]) for _ in range(8)]
        assert [answer.error_code for answer in answers] == [0] * 4 + [ErrorCode.KAFKA_STORAGE_ERROR] * 4
        assert "File too large" in (answers[-1].error_message or "")
        assert wire.produce("limited", [record(b"small")]).base_offset == 4, "what fits is taken"
        assert wire.produce("other", [record(b"x" * 900_000)]).error_code == 0
        assert wire.end_offset("limited") == 5
        broker.kill()
        broker.config["log.segment.bytes"] = "3000000"
        broker.start()
        with Wire(broker.bootstrap) as again:
            assert again.produce("limited", [record(b"x" * 900_000)]).base_offset == 5
        assert "Traceback" not in broker.said()


def answers(wire: Wire, topic: str) -> dict[str, int]:
    """Each API's error for a topic."""
    asked = list_offsets.ListOffsetsPartition(0, -1, -1)
    by_time = list_offsets.ListOffsetsPartition(0, -1, 0)
    found = {
        "produce": wire.produce(topic, [record("x")]).error_code,
        "fetch": wire.fetch(topic, 0).error_code,
    }
    for name, partition in (("end", asked), ("by time", by_time)):
        request = list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic(topic, [partition])])
        found[name] = wire.call(list_offsets.API, 7, request).topics[0].partitions[0].error_code
    epoch = offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)
    request_epoch = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        -2, [offset_for_leader_epoch.OffsetForLeaderTopic(topic, [epoch])]
    )
    (answer,) = wire.call(offset_for_leader_epoch.API, 4, request_epoch).topics
    return {**found, "epoch": answer.partitions[0].error_code}


def partition_of(wire: Wire, topic: str) -> metadata.MetadataResponsePartition:
    request = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=topic)])
    return wire.call(metadata.API, 12, request).topics[0].partitions[0]


def assert_offline(broker: BrokerProcess, home: str, *topics: str) -> None:
    """Every API reports the failed directory, as Apache Kafka 4.3 does.

    A thread may meet the error: it logs it, and then the loop takes the partitions offline.
    """
    offline = f"\nmillstream_offline_partitions {float(len(topics))}"
    eventually(lambda: broker.get("/metrics")[1], lambda samples: offline in samples, "they are offline")
    with Wire(broker.bootstrap) as wire:
        for topic in topics:
            assert set(answers(wire, topic).values()) == {ErrorCode.KAFKA_STORAGE_ERROR}, answers(wire, topic)
            found = partition_of(wire, topic)
            assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            assert (found.replica_nodes, found.isr_nodes, found.offline_replicas) == ([1], [], [1])
        request = describe_log_dirs.DescribeLogDirsRequest(None)
        for one in wire.call(describe_log_dirs.API, 4, request).results:
            if Path(one.log_dir).name == home:
                assert one.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert (one.topics, one.total_bytes) == ([], -1)
            else:
                assert one.error_code == 0
    samples = broker.get("/metrics")[1]
    assert "\nmillstream_offline_log_directories 1.0" in samples
    assert offline in samples


def said_offline(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.said().splitlines() if "is offline until a restart, with its" in line]


@pytest.mark.parametrize("failing", ["writes", "reads"])
def test_a_disk_that_dies_under_load(tmp_path: Path, failing: str) -> None:
    """The directory goes offline, with partitions that met no error; the other one serves; a repair restores it."""
    config = {
        "log.flush.interval.messages": "1",
        "log.segment.bytes": "200000",
        "log.flush.offset.checkpoint.interval.ms": "200",  # the broker checks an idle directory, too
    }
    with (
        dying_disk(tmp_path / "dying", 32) as disk,
        two_dirs(BrokerProcess(tmp_path, config), tmp_path / "whole", disk.path).keep_port() as broker,
    ):
        with Wire(broker.bootstrap) as wire:
            whole, dying = topic_in(wire, "whole"), topic_in(wire, "dying")
            quiet = next(name for name in ("a", "b", "c", "d") if made_in(wire, name, "dying"))
            for number in range(50):
                assert wire.produce(quiet, [record(f"{number}" * 1000)]).error_code == 0
        with (
            Load(broker.bootstrap, dying, size=1000, pause_s=0.002) as on_dying,
            Load(broker.bootstrap, whole, pause_s=0.002) as on_whole,
        ):
            on_dying.until(300)
            if failing == "reads":
                on_dying.__exit__(None, None, None)
            kill_disk(broker, disk)
            if failing == "reads":
                read_until_it_fails(broker, quiet)
            eventually(lambda: said_offline(broker), bool, "the broker says so")
            assert_offline(broker, "dying", dying, quiet)
            on_whole.until(on_whole.ledger.count + 100)
            with Wire(broker.bootstrap) as wire:
                wire.create("new")
                assert "new" in homes(wire)["whole"]
            broker.kill()
            disk.repair()
            broker.start()
            if failing == "writes":
                on_dying.until(on_dying.ledger.count + 100)
        (line,) = said_offline(broker)
        assert f"ERROR millstream_broker.log.directory: log.dirs: {disk.path} is offline" in line
        assert on_whole.ledger.failed == on_dying.ledger.failed == []
        check(broker.bootstrap, whole, [on_whole])
        check(broker.bootstrap, dying, [on_dying], ignore=b"x")
        with Wire(broker.bootstrap) as wire:
            assert wire.end_offset(quiet) == 50
        assert "Traceback" not in broker.said()
        broker.stop()


def kill_disk(broker: BrokerProcess, disk: DyingDisk) -> None:
    broker.pause()
    disk.die()
    broker.resume()


def made_in(wire: Wire, topic: str, home: str) -> bool:
    wire.create(topic)
    return topic in homes(wire)[home]


def read_until_it_fails(broker: BrokerProcess, topic: str) -> None:
    """Records are sent from the file, so the client is cut off in the middle of a response."""
    with Wire(broker.bootstrap) as wire:
        wire.send(fetch.API, 12, fetch_request(topic, 0))
        with contextlib.suppress(EOFError):
            wire.receive()


class Faulty(BrokerProcess):
    """System calls on files of one folder fail with EIO, as on a dying disk, while ``broken`` names them."""

    @property
    def command(self) -> list[str]:
        program = (
            "import errno, os, sys\n"
            "from millstream_broker import main\n"
            "def faulty(name, path_of, flag=None, error=errno.EIO):\n"
            "    call = getattr(os, name)\n"
            "    def attempt(*args):\n"
            "        try:\n"
            f"            folder = open({str(self.folder / 'broken')!r} + '-' + (flag or name)).read()\n"
            "        except FileNotFoundError:\n"
            "            return call(*args)\n"
            "        if folder in path_of(*args):\n"
            "            raise OSError(error, os.strerror(error))\n"
            "        return call(*args)\n"
            "    setattr(os, name, attempt)\n"
            "def of(fd):\n"
            "    return os.readlink(f'/proc/self/fd/{fd}')\n"
            "faulty('fsync', of)\n"
            "faulty('pwrite', lambda fd, *rest: of(fd))\n"
            "faulty('pread', lambda fd, *rest: of(fd))\n"
            "faulty('preadv', lambda fd, *rest: of(fd))\n"
            "faulty('preadv', lambda fd, *rest: of(fd), 'pread', errno.EAGAIN)\n"  # not cached: a thread reads
            "faulty('sendfile', lambda out, fd, *rest: of(fd))\n"
            "faulty('open', lambda path, flags, *rest: str(path) if flags & os.O_CREAT else '')\n"
            "faulty('rename', lambda path, target: str(path))\n"
            "faulty('replace', lambda path, target: str(path))\n"
            "sys.exit(main.main())\n"
        )
        return [sys.executable, "-c", program, *super().command[1:]]

    @contextlib.contextmanager
    def broken(self, call: str, folder: str) -> Iterator[None]:
        flag = self.folder / f"broken-{call}"
        beside = self.folder / "beside"
        beside.write_text(folder)
        beside.rename(flag)
        yield
        flag.unlink()


@pytest.mark.parametrize(
    "call", ["fsync", "pwrite", "pread", "preadv", "sendfile", "open", "rename", "replace"]
)
def test_a_call_that_fails_once(tmp_path: Path, call: str) -> None:
    """One error of any call, on the loop or in a thread, takes the directory offline until a restart."""
    config = {"log.segment.bytes": "100000", "log.retention.check.interval.ms": "100"}
    with two_dirs(Faulty(tmp_path, config), tmp_path / "whole", tmp_path / "moody").keep_port() as broker:
        with Wire(broker.bootstrap) as wire:
            whole, moody = topic_in(wire, "whole"), topic_in(wire, "moody")
            quiet = next(name for name in ("a", "b", "c", "d") if made_in(wire, name, "moody"))
            for number in range(120):
                assert wire.produce(moody, [record(f"{number % 10}" * 1000)]).error_code == 0
        with broker.broken(call, f"/{moody}-0" if call != "replace" else "/moody/"):
            with contextlib.suppress(EOFError), Wire(broker.bootstrap) as wire:
                match call:
                    case "pwrite":
                        refused = wire.produce(moody, [record("x")])
                        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                        assert "Input/output error" in (refused.error_message or "")
                    case "open" | "fsync":  # a new segment; the last one, in the background
                        for _ in range(150):
                            if wire.produce(moody, [record("y" * 1000)]).error_code:
                                break
                    case "pread" | "preadv" | "sendfile":
                        wire.fetch(moody, 50)
                    case "rename" | "replace":
                        delete_records(wire, moody, 110)  # rewrites the epochs, too
                        delete_topic(wire, moody)
            eventually(lambda: said_offline(broker), bool, "the broker says so")
        gone = call in ("rename", "replace")
        assert_offline(broker, "moody", quiet, *(() if gone else (moody,)))
        with Wire(broker.bootstrap) as wire:
            assert set(answers(wire, whole).values()) == {0}
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            for topic in (whole, quiet) if gone else (whole, quiet, moody):
                assert set(answers(wire, topic).values()) == {0}
            if not gone:
                assert wire.end_offset(moody) >= 120
            else:
                assert moody not in topics_in(wire)
                assert f"/{moody}-0 (topic id " in broker.said()
                assert "belongs to no topic that coordination knows: it is a stray now" in broker.said()
        assert len(said_offline(broker)) == 1
        assert "Traceback" not in broker.said()


def topics_in(wire: Wire) -> set[str | None]:
    return {topic.name for topic in wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics}


def delete_records(wire: Wire, topic: str, offset: int) -> None:
    asked = [delete_records_api.DeleteRecordsPartition(0, offset)]
    request = delete_records_api.DeleteRecordsRequest(
        [delete_records_api.DeleteRecordsTopic(topic, asked)], 10_000
    )
    wire.call(delete_records_api.API, 2, request)


def delete_topic(wire: Wire, topic: str) -> None:
    request = delete_topics.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
    assert wire.call(delete_topics.API, 5, request).responses[0].error_code == 0


@pytest.mark.parametrize("dirs", [1, 2])
def test_the_disk_that_a_broker_cannot_be_without(tmp_path: Path, dirs: int) -> None:
    """The only log directory, or the first, which has the metadata: the broker ends and says why, as Kafka does."""
    with dying_disk(tmp_path / "first", 32) as disk:
        broker = BrokerProcess(
            tmp_path, {"log.flush.interval.messages": "1", "log.flush.offset.checkpoint.interval.ms": "100"}
        )
        broker.config["log.dirs"] = ",".join([str(disk.path), str(tmp_path / "second")][:dirs])
        with broker.keep_port():
            with Wire(broker.bootstrap) as wire:
                topic = topic_in(wire, "first")
            with Load(broker.bootstrap, topic, pause_s=0.002) as load:
                load.until(200)
                kill_disk(broker, disk)
                assert broker.wait(60) == 1
                (last,) = [
                    line for line in broker.said().splitlines() if line.startswith("millstream-broker: ")
                ]
                assert last.startswith(f"millstream-broker: log.dirs: {disk.path} cannot be used: ")
                assert "Start it again when the disk is in order." in last
                disk.repair()
                broker.start()
                load.until(load.ledger.count + 100)
            assert load.ledger.failed == []
            check(broker.bootstrap, topic, [load])
            assert "Traceback" not in broker.said()
            broker.stop()


def test_partitions_are_spread_over_the_directories(tmp_path: Path) -> None:
    with two_dirs(BrokerProcess(tmp_path, {"num.partitions": "4"}), tmp_path / "a", tmp_path / "b") as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("spread", "wide")
            for partition in range(4):
                assert wire.produce("spread", [record(f"{partition}")], partition=partition).error_code == 0
        assert [len(list((tmp_path / home).glob("*-[0-9]"))) for home in "ab"] == [4, 4]
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            assert [wire.end_offset("spread", partition) for partition in range(4)] == [1] * 4


def test_a_directory_that_is_away_at_the_start(tmp_path: Path) -> None:
    """As in Kafka, the others serve. Its partitions are not recreated, and return with it."""
    first, second = tmp_path / "first", tmp_path / "second"
    with two_dirs(BrokerProcess(tmp_path), first, second) as broker:
        with Wire(broker.bootstrap) as wire:
            here, away = topic_in(wire, "first"), topic_in(wire, "second")
            assert wire.produce(away, [record("kept")]).error_code == 0
        broker.stop()
        second.rename(tmp_path / "unplugged")
        second.write_text("not a directory")
        broker.start()
        (line,) = [line for line in broker.said().splitlines() if "cannot be used" in line]
        assert re.search(
            r"ERROR .* log\.dirs: .*second cannot be used: (File exists|Not a directory)\.", line
        )
        assert "The other directories serve; partitions in this one are offline until a restart." in line
        with Wire(broker.bootstrap) as wire:
            assert wire.produce(here, [record("a")]).error_code == 0
            assert wire.produce(away, [record("b")]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            wire.create("new")
            assert wire.produce("new", [record("c")]).error_code == 0
        broker.stop()
        second.unlink()
        (tmp_path / "unplugged").rename(second)
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert wire.produce(away, [record("b")]).base_offset == 1
            assert {here, "new"} <= homes(wire)["first"]


def test_no_directory_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broker = two_dirs(BrokerProcess(tmp_path), tmp_path / "file" / "a", tmp_path / "file" / "b")
    with pytest.raises(RuntimeError) as error:
        broker.start()
    assert "status 1" in str(error.value)
    assert re.search(
        r"millstream-broker: log\.dirs: .*/file/b cannot be used: Not a directory", str(error.value)
    )


def test_the_directory_with_the_metadata_is_needed(tmp_path: Path) -> None:
    """By default it is the first. Kafka's metadata.log.dir is the first of log.dirs by default, too."""
    (tmp_path / "file").write_text("")
    broker = two_dirs(BrokerProcess(tmp_path), tmp_path / "file" / "a", tmp_path / "b")
    with pytest.raises(RuntimeError, match=r"No other log directory has coordination\.journal"):
        broker.start()


def test_metadata_that_cannot_be_written(tmp_path: Path) -> None:
    """Topics cannot be created or changed, and clients get the reason; records are still served."""
    with (
        small_disk(tmp_path / "small", 8) as disk,
        two_dirs(BrokerProcess(tmp_path), disk.path, tmp_path / "roomy") as broker,
        Wire(broker.bootstrap) as wire,
    ):
        roomy = topic_in(wire, "roomy")
        disk.fill()
        wire.socket.settimeout(60)  # longer than a broker waits for a request to take effect

        def create(name: str) -> int:
            request = create_topics.CreateTopicsRequest(
                [create_topics.CreatableTopic(name, 1, 1)], 10_000, False
            )
            return wire.call(create_topics.API, 5, request).topics[0].error_code

        # The journal's last page takes a few changes although the disk is full.
        outcomes = ((name, create(name)) for name in (f"refused-{number}" for number in range(100)))
        refused, error = next(outcome for outcome in outcomes if outcome[1])
        assert error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
        assert "coordination.journal: cannot be written: No space left on device" in broker.said()
        assert wire.produce(roomy, [record("a")]).error_code == 0
        disk.free()
        created = (0, ErrorCode.TOPIC_ALREADY_EXISTS)  # created already, if there was space for the request
        assert create(refused) in created
        eventually(
            lambda: wire.produce(refused, [record("a")]).error_code, lambda code: code == 0, "it is led"
        )
        assert f"/brokers/topics/{refused}" in nodes_in(disk.path)
        assert "Traceback" not in broker.said()


def test_few_descriptors_for_many_logs(tmp_path: Path) -> None:
    """With 256 descriptors a broker serves 200 logs of three files each."""

    class Poor(BrokerProcess):
        @property
        def command(self) -> list[str]:
            return ["prlimit", "--nofile=256:256", *super().command]

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 256
    with Poor(tmp_path, {"num.partitions": "200"}) as broker, Wire(broker.bootstrap) as wire:
        wire.create("many")
        for _ in range(2):
            for partition in range(200):
                assert wire.produce("many", [record("a")], partition=partition).error_code == 0
        assert [wire.end_offset("many", partition) for partition in range(200)] == [2] * 200
        assert "Traceback" not in broker.said()
