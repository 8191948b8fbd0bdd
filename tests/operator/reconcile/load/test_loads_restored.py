"""Batch loads in the local runtime beside a driver of an earlier run, and after the data folder is restored."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.local import LOCAL, Sandbox, produce
from millstream_harness.spark import use_spark
from millstream_harness.spark_loads import read_table
from millstream_operator.local.processes import wait_for

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
]
START_S = 60.0
END_S = 300.0


class Lake:
    """A BatchLoad of topic ``orders`` into a folder that is not in the data folder."""

    def __init__(self, sandbox: Sandbox, path: Path) -> None:
        self.sandbox = sandbox
        self.path = path
        sandbox.cluster()
        for topic in ("orders", "returns"):
            sandbox.write("Topic", topic, "{clusterRef: {name: west}, partitions: 1}")

    def edit(self, **spec: Any) -> None:
        given = {
            "clusterRef": {"name": "west"},
            "topics": ["orders"],
            "value": {"format": "JSON", "schema": "n INT"},
            "output": {"path": str(self.path)},
            "spark": {"driver": {"memory": "512m"}},
            **spec,
        }
        self.sandbox.write("BatchLoad", "daily", json.dumps(given))

    def up(self) -> dict[str, str]:
        return self.sandbox.runtime().up(self.sandbox.manifests).failures

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = self.sandbox.found("BatchLoad", "daily")["status"]["lastRun"]
        return found

    def offsets(self) -> Counter[int]:
        return Counter(read_table("Parquet", self.path)["_offset"].to_pylist())

    @contextlib.contextmanager
    def left_behind(self) -> Iterator[None]:
        """Kill an `up` that has just started Spark; its driver goes on, to its end, after the block."""
        command = [*LOCAL, "up", "-f", str(self.sandbox.manifests), "--data", str(self.sandbox.data)]
        operator = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_for(lambda: any(self._drivers()), START_S)
        drivers = list(self._drivers())
        for pid in drivers:
            os.kill(pid, signal.SIGSTOP)
        operator.kill()
        operator.wait()
        try:
            yield
        finally:
            for pid in drivers:
                os.kill(pid, signal.SIGCONT)
        assert wait_for(lambda: not any(self._drivers()), END_S)

    def _drivers(self) -> Iterator[int]:
        folder = bytes(self.sandbox.data / "loads")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if folder in (process / "cmdline").read_bytes():
                    yield int(process.name)


@pytest.fixture
def lake(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    use_spark(monkeypatch)
    return Lake(sandbox, tmp_path / "lake")


def test_a_driver_of_an_earlier_run_commits_nothing_after_the_next_run(lake: Lake) -> None:
    lake.edit()
    lake.up()
    produce(lake.sandbox.bootstrap, "orders", 100)
    assert lake.up() == {}
    produce(lake.sandbox.bootstrap, "orders", 100)
    lake.edit(minRecords=2)
    with lake.left_behind():
        lake.edit(topics=["orders", "returns"])
        assert lake.up() == {}
        assert lake.run()["rows"] == 100
    assert lake.offsets() == Counter(range(200)), "each record once"


def test_a_restored_data_folder_does_not_take_other_records_for_loaded(lake: Lake) -> None:
    lake.edit()
    lake.up()
    produce(lake.sandbox.bootstrap, "orders", 100)
    assert lake.up() == {}
    lake.sandbox.runtime().down()
    backup = lake.sandbox.data.with_name("backup")
    shutil.copytree(lake.sandbox.data, backup, symlinks=True)
    lake.up()
    produce(lake.sandbox.bootstrap, "orders", 50)
    lake.edit(minRecords=2)
    assert lake.up() == {}
    lake.sandbox.runtime().down()
    shutil.rmtree(lake.sandbox.data)
    backup.rename(lake.sandbox.data)
    lake.edit()
    lake.up()
    produce(lake.sandbox.bootstrap, "orders", 50)  # others at the offsets of the lost ones
    lake.edit(minRecords=2)
    failed = lake.up()["BatchLoad default/daily"]
    assert "which this load does not know" in failed
    assert lake.sandbox.ready("BatchLoad", "daily")[:2] == ("False", "TableReplaced")
    assert lake.offsets() == Counter(range(150)), "nothing was published"
    begin = [{"topic": "orders", "partition": 0, "offset": 100}]
    again = {"position": "Offsets", "requestId": "restored", "offsets": begin}
    lake.edit(minRecords=2, **{"from": again})
    assert lake.up() == {}
    assert lake.offsets() == Counter(range(150)) + Counter(range(100, 150)), "as its user decided"
