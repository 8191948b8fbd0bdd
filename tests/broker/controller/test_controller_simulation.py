"""Controller, leaders and followers through many orders of events: crashes, lost responses, zombies.

Each seed is one history: 1,500 events, then calm. A failure reports its seed and its story.
"""

from __future__ import annotations

import pytest

from millstream_harness.simulated_cluster import SimulatedCluster

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

HISTORIES = 50
EVENTS = 1500


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_histories(first: int, min_isr: int) -> None:
    histories = [live(seed, min_isr) for seed in range(first, first + 10)]
    # A few histories have so much trouble that they acknowledge nothing.
    assert sum(any(one.acked.values()) for one in histories) > 5


def test_a_history_is_the_same_again() -> None:
    assert live(7, 2).story == live(7, 2).story


def live(seed: int, min_isr: int) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, min_isr=min_isr)
    try:
        cluster.create_topic(2, 3)
        for _ in range(EVENTS):
            cluster.step()
        cluster.calm()
    except Exception as error:
        story = "\n".join(cluster.story[-200:])
        raise AssertionError(f"seed {seed}, min_isr {min_isr}: {error!r}\n{story}") from error
    return cluster
