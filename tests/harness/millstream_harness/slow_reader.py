"""A process that reads a topic slowly, then fast to its end, and measures its memory.

    python -m millstream_harness.slow_reader BOOTSTRAP TOPIC MESSAGES FULL_MB blocking|async JSON_OPTIONS

It takes a message every 50 ms until it holds FULL_MB, then 100 more, and then the rest at once. It prints a JSON
object: how many MB its memory had grown by at most (`slow`, `fast`), and how many messages of each partition it has
seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millstream
from millstream_harness.process import resident_mb

PAUSE_S = 0.05
MORE = 100
PATIENCE_S = 90.0
"""How long to wait for a full queue."""
LOOK_EVERY = 50
"""How many messages to take between two looks at the memory, once it reads fast."""


class Reader:
    def __init__(self, messages: int, full_mb: float) -> None:
        self.left, self.full_mb = messages, full_mb
        self.begun, self.since_full = time.monotonic(), 0
        self.base_mb = resident_mb(os.getpid())
        self.most = {"slow": 0.0, "fast": 0.0}
        self.seen: Counter[int] = Counter()

    def take(self, message: millstream.Message) -> float:
        """Count it; how long to pause before the next one, -1 when it was the last."""
        assert message.offset == self.seen[message.partition]
        self.seen[message.partition] += 1
        self.left -= 1
        slow = self.since_full < MORE
        if slow or self.left % LOOK_EVERY == 0:
            grown = resident_mb(os.getpid()) - self.base_mb
            phase = "slow" if slow else "fast"
            self.most[phase] = max(self.most[phase], grown)
            late = time.monotonic() - self.begun > PATIENCE_S
            self.since_full += self.since_full > 0 or grown > self.full_mb or late
        if not self.left:
            return -1
        return PAUSE_S if slow else 0


@contextmanager
def stream_of(bootstrap: str, topic: str, options: dict[str, Any]) -> Iterator[millstream.MessageStream]:
    with millstream.connect(bootstrap, group=f"slow-{os.getpid()}", **options) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        yield stream


def read(stream: millstream.MessageStream, reader: Reader) -> None:
    for message in stream:
        if (pause := reader.take(message)) < 0:
            return
        if pause:
            time.sleep(pause)


async def read_async(stream: millstream.MessageStream, reader: Reader) -> None:
    async for message in stream:
        if (pause := reader.take(message)) < 0:
            return
        if pause:
            await asyncio.sleep(pause)


def main(bootstrap: str, topic: str, messages: str, full_mb: str, how: str, options: str) -> None:
    with stream_of(bootstrap, topic, json.loads(options)) as stream:
        reader = Reader(int(messages), float(full_mb))
        if how == "async":
            asyncio.run(read_async(stream, reader))
        else:
            read(stream, reader)
    print(json.dumps({**reader.most, "seen": [count for _, count in sorted(reader.seen.items())]}))


def read_slowly(
    bootstrap: str, topic: str, messages: int, full_mb: float, how: str, options: dict[str, Any]
) -> dict[str, Any]:
    """The process's result."""
    command = [sys.executable, "-m", "millstream_harness.slow_reader", bootstrap, topic]
    command += [str(messages), str(full_mb), how, json.dumps(options)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
