"""Bytes in flight over a link of any speed: transfers come to fit into their timeout, and grow again."""

from __future__ import annotations

import pytest

from millstream_mirror.records.window import LEAST_BYTES, Window

MOST, TIMEOUT_S = 32 << 20, 6.0


@pytest.mark.parametrize("rate", [20_000, 100_000, 1_000_000, 5_000_000, 1_000_000_000])
def test_window_shrinks_until_transfers_fit(rate: int) -> None:
    window, done = Window(MOST), []
    for _ in range(30):
        if (seconds := window.bytes / rate) > TIMEOUT_S:
            window.timed_out()
        else:
            window.answered(seconds)
            done.append(window.bytes)
    assert len(done) > 25
    assert min(done) * 10 > min(MOST, rate), "a transfer is not needlessly small"


def test_window_stays_within_bounds() -> None:
    window = Window(MOST)
    for _ in range(20):
        window.timed_out()
    assert window.bytes == LEAST_BYTES
    window.answered(5.0)
    assert window.bytes == LEAST_BYTES, "the link is as slow as that"
    for _ in range(20):
        window.answered(0.01)
    assert window.bytes == MOST
