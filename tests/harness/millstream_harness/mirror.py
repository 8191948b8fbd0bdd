"""A mirror worker as a real process, on a port that the system picks."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream_broker.client import ClusterClient
from millstream_broker.log.batch import iter_batches
from millstream_broker.protocol import fetch
from millstream_broker.protocol.errors import ErrorCode

READY = re.compile(r"ready: mirror=(?P<name>\S+) http=(?P<http>\S+)")
START_TIMEOUT_S = 20.0


class MirrorProcess:
    """One worker; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) as often as wanted."""

    def __init__(self, folder: Path, sources: Mapping[str, str], target: str, **config: Any) -> None:
        self.folder = folder
        self.output = folder / "mirror.log"
        self.config = {
            "name": "test",
            "sources": [{"name": name, "bootstrap": bootstrap} for name, bootstrap in sources.items()],
            "target": {"bootstrap": target},
            "http": "127.0.0.1:0",
            **config,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.http = ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> MirrorProcess:
        """Start it and wait for its ready line; raises RuntimeError with its output when it ends before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "mirror.json"
        path.write_text(json.dumps(self.config))
        begun = self.output.stat().st_size if self.output.exists() else 0
        command = [str(Path(sys.executable).parent / "millstream-mirror"), str(path)]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        said = ""
        while time.monotonic() < deadline:
            said = self.output.read_bytes()[begun:].decode(errors="replace")
            if found := READY.search(said):
                self.http = f"http://{found['http']}"
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"the mirror ended with status {self.process.returncode}:\n{said}")
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"the mirror was not ready in {START_TIMEOUT_S} s:\n{said}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=5) as response:
            text: str = response.read().decode()
        return text

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.get("/status"))
        return status

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def stop(self, timeout: float = 10.0) -> int:
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> int:
        return self._end(signal.SIGKILL, 10.0)

    def _end(self, sign: signal.Signals, timeout: float) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sign)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> MirrorProcess:
        return self if self.process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


async def read_batches(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """All record batches of a partition, as they are stored."""
    async with ClusterClient(bootstrap) as cluster:
        batches: list[bytes] = []
        offset = 0
        while True:
            asked = fetch.FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = fetch.FetchRequest(
                max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[fetch.FetchTopic(topic, [asked])]
            )
            answer = (
                (await cluster.call_leader(topic, partition, fetch.API, request)).responses[0].partitions[0]
            )
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < answer.log_start_offset:
                offset = answer.log_start_offset
                continue
            assert answer.error_code == 0, ErrorCode.of(answer.error_code)
            records = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
            before = offset
            for start, header in iter_batches(records):
                batches.append(bytes(records[start : start + header.size]))
                offset = header.next_offset
            if offset == before:
                return batches
