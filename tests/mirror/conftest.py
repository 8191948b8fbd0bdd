"""Two sources and a target for each module, and workers that are always stopped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.broker import BrokerProcess, CopiedBroker
from millstream_harness.mirror import MirrorProcess
from millstream_harness.scenario import unique

CONFIG = {
    "group.initial.rebalance.delay.ms": "200",
    "offsets.topic.num.partitions": "3",
    "log.cleaner.backoff.ms": "100",
}

StartMirror = Callable[..., MirrorProcess]


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("west"), CONFIG) as broker:
        yield broker


@pytest.fixture(scope="module")
def north(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("north"), CONFIG) as broker:
        yield broker


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("east"), CONFIG) as broker:
        yield broker


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[CopiedBroker]:
    """A running broker that can be restored from a copy; it keeps its port."""
    broker = CopiedBroker(tmp_path / "copied")
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
