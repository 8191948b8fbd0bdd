"""The clock of a broker whose date is wrong: every function that reads it, and no other clock."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import ModuleType

import pytest

from millstream_faults.shifted.sitecustomize import shift

HOUR = 3600
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "broker-image/src/millstream_broker",
    "broker-image/src/millstream_process",
    "kafka-protocol/src/millstream_kafka",
)


@pytest.fixture
def clock() -> ModuleType:
    """The module `time` of a process that began with this shift."""
    copy = ModuleType("time")
    copy.__dict__.update(time.__dict__)
    shift(copy, lambda: HOUR * 10**9)
    return copy


def test_every_reading_is_shifted(clock: ModuleType) -> None:
    before = time.time()
    readings = [
        clock.time(),
        clock.time_ns() / 1e9,
        clock.clock_gettime(time.CLOCK_REALTIME),
        clock.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9,
        time.mktime(clock.localtime()),
        time.mktime(time.strptime(clock.ctime())),
        time.mktime(time.strptime(clock.asctime())),
        float(clock.strftime("%s")),
    ]
    utc = clock.gmtime()
    after = time.time()
    for reading in readings:
        assert before - 1 <= reading - HOUR <= after
    assert utc[:4] in (time.gmtime(before + HOUR)[:4], time.gmtime(after + HOUR)[:4])


def test_a_given_time_and_other_clocks_are_not_shifted(clock: ModuleType) -> None:
    assert clock.gmtime(0) == time.gmtime(0)
    assert clock.ctime(0) == time.ctime(0)
    assert clock.strftime("%Y", time.gmtime(0)) == "1970"
    assert clock.asctime(time.gmtime(0)) == time.asctime(time.gmtime(0))
    before = time.monotonic()
    assert before <= clock.monotonic() <= time.monotonic()
    assert before <= clock.clock_gettime(time.CLOCK_MONOTONIC) <= time.monotonic()


def test_a_class_may_have_the_function_as_an_attribute(clock: ModuleType) -> None:
    """As `logging.Formatter` has."""
    formatter = type("Formatter", (), {"converter": clock.localtime})()
    assert formatter.converter(0) == time.localtime(0)


def test_the_broker_reads_its_clock_in_no_other_way() -> None:
    """`datetime` reads it without these functions."""
    other = re.compile(r"datetime\.(now|utcnow|today)|date\.today")
    reading = [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if other.search(path.read_text())
    ]
    assert reading == []
