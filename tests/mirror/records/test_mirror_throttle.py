"""Limits in bytes a second: the token bucket with a simulated clock, and workers that share a limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce
from millstream_harness.mirror_conditions import conditions_of
from millstream_harness.scenario import eventually, unique
from millstream_mirror.records.throttle import BURST_S, LEAST_BYTES, MOST_BYTES, SHARE_S, TokenBucket

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
BATCH = 100_000

steps = st.lists(
    st.tuples(
        st.floats(0, 3),  # seconds until the step
        st.integers(0, 3),  # fetches in flight that end
        st.floats(0, 1),  # share of its bytes that each of them used
        st.integers(0, BATCH),  # bytes that it sent above them
    ),
    max_size=200,
)


@given(st.integers(1024, 50_000_000), steps)
@example(32769, [(0.0, 2, 0.0, 36569), (0.0, 1, 1.0, 59632)])
def test_fetches_stay_within_limit(rate: int, moves: list[tuple[float, int, float, int]]) -> None:
    bucket = TokenBucket(rate, 1000.0)
    now, used, waiting, ended = 1000.0, 0, list[int](), 0
    fetch = min(max(rate * SHARE_S, LEAST_BYTES), MOST_BYTES)
    for pause, ends, share, above in moves:
        now += pause
        while reserved := bucket.reserve(now):
            waiting.append(reserved)
            ended = 0
        for _ in range(min(ends, len(waiting))):
            reserved = waiting.pop(0)
            sent = int(reserved * share) + above
            bucket.settle(reserved, sent)
            used += sent
            ended += 1
            # A later fetch pays for bytes above the reserve: only those that ended since the last one can be above.
            assert used + sum(waiting) <= rate * (now - 1000 + BURST_S) + fetch + ended * BATCH + 1
    assert bucket.wait_s() >= 0


def test_fetches_use_whole_limit() -> None:
    bucket, now, used = TokenBucket(1_000_000, 0.0), 0.0, 0
    while now < 100:
        if reserved := bucket.reserve(now):
            bucket.settle(reserved, reserved)
            used += reserved
        else:
            assert bucket.wait_s() < 1
            now += bucket.wait_s() + 0.001
    assert 1_000_000 * 99 < used <= 1_000_000 * (100 + BURST_S) + 1_000_000 * SHARE_S


def test_pause_saves_at_most_one_burst() -> None:
    bucket = TokenBucket(1_000_000, 0.0)
    used = 0
    while reserved := bucket.reserve(3600.0):
        bucket.settle(reserved, reserved)
        used += reserved
    assert used <= 1_000_000 * (BURST_S + SHARE_S)


def test_large_batch_delays_later_fetches() -> None:
    bucket = TokenBucket(10_000, 0.0)
    bucket.settle(bucket.reserve(0.0), 110_000)
    assert bucket.reserve(9.9) == 0
    assert bucket.reserve(10.1) > 0


def test_lowered_limit_applies_immediately() -> None:
    bucket = TokenBucket(1_000_000, 0.0)
    bucket.change(1024, 10.0)
    assert bucket.reserve(10.0) == LEAST_BYTES
    assert bucket.reserve(10.0) == 0
    assert bucket.wait_s() == pytest.approx((LEAST_BYTES - 1024) / 1024)


def test_two_workers_share_limit_fairly(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """One topic has far more records than the limit allows meanwhile; the others are small."""
    limit = 300_000
    name = unique("limit")
    hot, small = f"{name}-a", [f"{name}-{letter}" for letter in "bcd"]
    create(west, hot, 4)
    produce(west, hot, range(200_000), 4, batch_num_messages=100)
    for topic in small:
        create(west, topic)
        produce(west, topic, range(300))
    begun = time.monotonic()
    workers = [
        start_mirror(
            {"west": west.bootstrap},
            east.bootstrap,
            security={"west": {"maxBytesPerSecond": limit}},
            topics={"include": [f"{name}-.*"]},
            name=name,
        )
        for _ in range(2)
    ]
    for topic in small:
        arrived(east, topic, [300])
    ends = eventually(
        lambda: [worker.status()["sources"][0] for worker in workers],
        lambda found: all(one["partitions"] in (3, 4) for one in found),
        "both have a share",
    )
    assert sum(one["lag"]["records"] for one in ends) > 0, "the limit was not reached"

    def written() -> int:
        lines = (line for worker in workers for line in worker.get("/metrics").splitlines())
        return sum(
            int(float(line.split()[-1]))
            for line in lines
            if line.startswith("millstream_mirror_bytes_total{")
        )

    before = written()
    moved = eventually(written, lambda now: now > before + 2 * limit, "more than a burst", 60)
    elapsed = time.monotonic() - begun
    largest = 100 * 200
    # From their starts, each with a burst and a fetch of its share, which may have included other partitions.
    assert moved <= limit * (elapsed + 2 * (BURST_S + SHARE_S)) + 2 * (LEAST_BYTES + largest)
    assert admin(east).list_topics(hot, timeout=10).topics[hot].partitions.keys() == {0, 1, 2, 3}


def slow_mirror(
    start_mirror: StartMirror, west: InProcessBroker, east: InProcessBroker, topic: str, mode: str
) -> MirrorProcess:
    return start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        security={"west": {"maxBytesPerSecond": 5_000}},
        topics={"include": [topic]},
        name=topic,
        mode=mode,
    )


MODES = pytest.mark.parametrize("mode", ["Aggregate", "Identity"])


@MODES
def test_backlog_is_reported_as_lag_immediately(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    topic = unique("backlog")
    create(west, topic)
    produce(west, topic, range(20_000), batch_num_messages=100)
    mirror = slow_mirror(start_mirror, west, east, topic, mode)
    for _ in range(2):
        told = eventually(
            lambda: conditions_of(mirror).get("CaughtUp", ("Unknown",)),
            lambda now: now[0] != "Unknown",
            "its lag is known",
        )
        assert told == ("False", "Behind", "1 partition has not been caught up yet")
        mirror.kill()
        mirror.start()


@MODES
def test_lag_in_seconds_grows_while_behind(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    """The limit holds the worker back for minutes; after a restart it still knows since when it has been behind."""
    topic, count = unique("behind"), 20_000
    create(west, topic)
    mirror = slow_mirror(start_mirror, west, east, topic, mode)
    produce(west, topic, range(10))
    arrived(east, topic, [10])
    eventually(lambda: lag(mirror), lambda now: now == (0, 0.0), "it is caught up")
    produce(west, topic, range(10, count), batch_num_messages=100)

    records, seconds = eventually(lambda: lag(mirror), lambda now: now[1] > 0, "the lag in seconds")
    assert 0 < records < count
    (metric,) = re.findall(
        r'^millstream_mirror_lag_seconds{source="west"} (\S+)$', mirror.get("/metrics"), re.M
    )
    assert float(metric) >= seconds
    caught_up = eventually(
        lambda: conditions_of(mirror).get("CaughtUp", ("",)),
        lambda now: now[0] == "False",
        "more than ten seconds behind",
        60,
    )
    assert caught_up == ("False", "Behind", "more than 10 seconds behind")

    mirror.kill()
    mirror.start()
    again = eventually(lambda: lag(mirror), lambda now: now[0] > 0, "it finds out how far it is behind")
    assert again[1] > 10, "it began before the restart"
    assert mirror.stop() == 0
    del mirror.config["sources"][0]["maxBytesPerSecond"]
    mirror.start()
    arrived(east, topic, [count])
    eventually(lambda: lag(mirror), lambda now: now == (0, 0.0), "it has caught up")
    eventually(
        lambda: conditions_of(mirror).get("CaughtUp", ("",))[:2],
        lambda now: now == ("True", "CaughtUp"),
        "the condition tells so",
    )


def lag(mirror: MirrorProcess) -> tuple[int, float]:
    """The lag in records and in seconds."""
    found = mirror.status()["lag"]
    return found["records"], found["seconds"]
