"""Two sources and a target for all files, and workers that are always stopped.

Each test uses its own names for topics, groups and mirrors. A file that counts what is in a broker, or fills it, has
its own ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.in_process_broker import CopiedInProcessBroker
from millstream_harness.mirror import MirrorProcess
from millstream_harness.mirror_brokers import broker_fixture
from millstream_harness.scenario import unique

StartMirror = Callable[..., MirrorProcess]


west, north, east = (broker_fixture(name, "session") for name in ("west", "north", "east"))


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[CopiedInProcessBroker]:
    """A running broker that can be restored from a copy; it keeps its port."""
    broker = CopiedInProcessBroker(tmp_path / "copied")
    broker.keep_port().start()
    yield broker
    broker.kill()


@pytest.fixture
def start_mirror(tmp_path: Path) -> Iterator[StartMirror]:
    """``start_mirror({NAME: BOOTSTRAP}, TARGET, **config)`` starts a worker.

    The workers of a test without a ``name`` belong to one mirror, which no other test has.
    """
    name = unique("mirror")
    started: list[MirrorProcess] = []
    numbers = itertools.count(1)

    def start(sources: dict[str, str], target: str, **config: Any) -> MirrorProcess:
        mirror = MirrorProcess(
            tmp_path / f"mirror-{next(numbers)}", sources, target, **{"name": name, **config}
        )
        started.append(mirror)
        return mirror.start()

    yield start
    for mirror in started:
        mirror.kill()
