"""Disks that are full, read-only, broken or away: clearly told, nothing acknowledged lost, the others go on."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_broker.protocol import create_topics, describe_log_dirs, fetch, metadata
from millstream_broker.protocol.errors import ErrorCode
from millstream_harness.broker import BrokerProcess
from millstream_harness.disk import small_disk
from millstream_harness.ledger import Load, check
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, fetch_request, record


def two_dirs(broker: BrokerProcess, first: Path, second: Path) -> BrokerProcess:
    broker.config["log.dirs"] = f"{first},{second}"
    return broker


def homes(wire: Wire) -> dict[str, set[str]]:
    """The topics in each log directory, by its name."""
    answer = wire.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(None))
    return {Path(one.log_dir).name: {topic.name for topic in one.topics} for one in answer.results}


def topic_in(wire: Wire, home: str) -> str:
    """A new topic that lies in this directory."""
    for number in range(10):
        name = f"in-{home}-{number}"
        wire.create(name)
        if name in homes(wire)[home]:
            return name
    raise AssertionError(f"no new topic went to {home}: {homes(wire)}")


@pytest.mark.parametrize("flush", ["9223372036854775807", "1"])
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, flush: str) -> None:
    """Producers wait until there is space, the other directory goes on, and nothing acknowledged is lost."""
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


def test_a_disk_that_is_full_at_a_kill(tmp_path: Path) -> None:
    """A restart on a full disk says so; what was acknowledged is served when there is space again."""
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
                with pytest.raises(RuntimeError) as error:
                    broker.start()
                assert "cannot be written: No space left on device" in str(error.value)
                assert "Traceback" not in str(error.value)
                disk.free()
                broker.start()
                load.until(load.ledger.count + 100)
            assert load.ledger.failed == []
            check(broker.bootstrap, "kept", [load])


def test_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    """The kernel's answer to a broken disk. Reading goes on; a restart brings writing back."""
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
    """No file may grow beyond a limit: writing more fails with EFBIG, as any other error of the disk."""

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


class Faulty(BrokerProcess):
    """A system call fails with EIO, as on a dying disk, while the file ``broken`` names the call."""

    @property
    def command(self) -> list[str]:
        program = (
            "import errno, os, sys\n"
            "from millstream_broker import main\n"
            "def faulty(name, call):\n"
            "    def attempt(*args):\n"
            f"        if os.path.exists({str(self.folder / 'broken')!r} + '-' + name):\n"
            "            raise OSError(errno.EIO, os.strerror(errno.EIO))\n"
            "        return call(*args)\n"
            "    setattr(os, name, attempt)\n"
            "for name in ('fsync', 'pwrite', 'sendfile'):\n"
            "    faulty(name, getattr(os, name))\n"
            "sys.exit(main.main())\n"
        )
        return [sys.executable, "-c", program, *super().command[1:]]

    @contextlib.contextmanager
    def broken(self, call: str) -> Iterator[None]:
        flag = self.folder / f"broken-{call}"
        flag.touch()
        yield
        flag.unlink()


def test_an_fsync_that_fails(tmp_path: Path) -> None:
    """The kernel may have dropped what it could not write: the partition is offline until a restart has looked."""
    with Faulty(tmp_path, {"log.flush.interval.messages": "1"}).keep_port() as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("synced")
        with Load(broker.bootstrap, "synced", pause_s=0.002) as load:
            load.until(100)
            with broker.broken("fsync"), Wire(broker.bootstrap) as wire:
                refused = wire.produce("synced", [record("x")])
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            with Wire(broker.bootstrap) as wire:
                assert wire.produce("synced", [record("x")]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "Input/output error" in (wire.produce("synced", [record("x")]).error_message or "")
                request = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="synced")])
                (topic,) = wire.call(metadata.API, 12, request).topics
                assert topic.partitions[0].offline_replicas == [1]
            broker.restart()
            load.until(load.ledger.count + 100)
        assert load.ledger.failed == []
        check(broker.bootstrap, "synced", [load], ignore=b"x")
        assert "Input/output error" in broker.said()
        assert "Traceback" not in broker.said()


def test_writes_and_reads_that_fail_for_a_moment(tmp_path: Path) -> None:
    with Faulty(tmp_path).keep_port() as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("moody")
        with Load(broker.bootstrap, "moody", pause_s=0.002) as load:
            load.until(100)
            with broker.broken("pwrite"), Wire(broker.bootstrap) as wire:
                refused = wire.produce("moody", [record("x")])
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "Input/output error" in (refused.error_message or "")
            load.until(load.ledger.count + 100)
            with broker.broken("sendfile"), Wire(broker.bootstrap) as wire:
                wire.send(fetch.API, 12, fetch_request("moody", 0))
                with pytest.raises(EOFError):
                    wire.receive()
            load.until(load.ledger.count + 100)
        assert load.ledger.failed == []
        check(broker.bootstrap, "moody", [load])
        assert "Traceback" not in broker.said()


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
    """As in Kafka: the others serve. Its partitions are not made anew, and are back when it is."""
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


def test_the_first_directory_is_needed(tmp_path: Path) -> None:
    """It has the metadata, as Kafka's metadata.log.dir, which is the first of log.dirs, too."""
    (tmp_path / "file").write_text("")
    broker = two_dirs(BrokerProcess(tmp_path), tmp_path / "file" / "a", tmp_path / "b")
    with pytest.raises(RuntimeError, match=r"It is the first of log\.dirs and has coordination\.json"):
        broker.start()


def test_metadata_that_cannot_be_written(tmp_path: Path) -> None:
    """Topics cannot be created or changed; clients are told why, and records go on."""
    with (
        small_disk(tmp_path / "small", 8) as disk,
        two_dirs(BrokerProcess(tmp_path), disk.path, tmp_path / "roomy") as broker,
        Wire(broker.bootstrap) as wire,
    ):
        roomy = topic_in(wire, "roomy")
        disk.fill()
        request = create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic("refused", 1, 1)], 10_000, False
        )
        (refused,) = wire.call(create_topics.API, 5, request).topics
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "coordination.json: cannot be written: No space left on device" in (
            refused.error_message or ""
        )
        assert wire.produce(roomy, [record("a")]).error_code == 0
        disk.free()
        assert wire.call(create_topics.API, 5, request).topics[0].error_code == 0
        assert "refused" in json.loads((disk.path / "coordination.json").read_text())["topics"]
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
