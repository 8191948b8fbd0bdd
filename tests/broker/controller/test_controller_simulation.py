"""Controller, leaders and followers through many orders of events: crashes, lost responses, zombies, restored trees.

Each seed is one history: 1,500 events, then calm. A failure reports its seed and its story.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TypeVar

import pytest

from millstream_harness.simulated_cluster import SimulatedCluster
from millstream_harness.simulated_restores import RestoredCluster

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

C = TypeVar("C", bound=SimulatedCluster)
HISTORIES = 50
EVENTS = 1500


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_histories(first: int, min_isr: int) -> None:
    histories = [live(seed, min_isr) for seed in range(first, first + 10)]
    # A few histories have so much trouble that they acknowledge nothing.
    assert sum(any(one.acked.values()) for one in histories) > 5


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_histories_with_older_copies_of_the_tree(first: int, min_isr: int) -> None:
    histories = [restored(seed, min_isr) for seed in range(first, first + 10)]
    assert any(one.restored for one in histories)
    assert sum(any(one.acked.values()) for one in histories) > 3


def test_a_history_is_the_same_again() -> None:
    assert live(7, 2).story == live(7, 2).story
    assert restored(7, 2).story == restored(7, 2).story


TELL = """
from millstream_harness.simulated_restores import RestoredCluster
for seed in range(4):
    cluster = RestoredCluster(seed)
    cluster.create_topic(2, 3)
    for _ in range(500):
        cluster.step()
    print(*cluster.story, sep="\\n")
"""


def test_a_history_does_not_depend_on_the_process() -> None:
    """The order of a set of names is another one in each process."""
    path = os.pathsep.join(sys.path)
    stories = {
        subprocess.run(
            [sys.executable, "-c", TELL],
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": path},
            check=True,
            capture_output=True,
        ).stdout
        for hashes in ("0", "1", "2")
    }
    assert [story.count(b"\n") > 50 for story in stories] == [True]


def live(seed: int, min_isr: int) -> SimulatedCluster:
    return run(SimulatedCluster(seed, min_isr=min_isr))


def restored(seed: int, min_isr: int) -> RestoredCluster:
    return run(RestoredCluster(seed, min_isr=min_isr))


def run(cluster: C) -> C:
    try:
        cluster.create_topic(2, 3)
        for _ in range(EVENTS):
            cluster.step()
        cluster.calm()
    except Exception as error:
        story = "\n".join(cluster.story[-200:])
        where = f"seed {cluster.seed}, min_isr {cluster.min_isr}"
        raise AssertionError(f"{where}: {error!r}\n{story}") from error
    return cluster
