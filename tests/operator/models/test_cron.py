"""Times of schedules: cron expressions, and changes of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_operator.models.cron import MACROS, check, last_time, next_time

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def several(cron: str, zone: str, after: str, count: int) -> list[str]:
    found, moment = [], at(after)
    for _ in range(count):
        moment = next_time(cron, zone, moment)
        found.append(moment.strftime("%d %H:%M"))
    return found


def test_a_time_that_summer_time_skips_comes_right_after_the_change() -> None:
    # On 29 March 2026 clocks go from 02:00 to 03:00 (01:00 UTC).
    assert several("30 2 * * *", BERLIN, "2026-03-27T12:00:00Z", 3) == ["28 01:30", "29 01:00", "30 00:30"]


def test_a_time_that_winter_time_repeats_comes_once() -> None:
    # On 25 October 2026 clocks go from 03:00 to 02:00 (01:00 UTC).
    assert several("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", 2) == ["25 00:30", "26 01:30"]


def test_every_real_hour_counts() -> None:
    assert several("15 * * * *", BERLIN, "2026-10-25T00:00:00Z", 4) == [
        "25 00:15",
        "25 01:15",
        "25 02:15",
        "25 03:15",
    ]


CRONS = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0 */5 * * *",
        "15 3 1 * *",
        "0 0 * * 1",
        "59 23 L * *",
        "30 2 29 2 *",
    ]
)
ZONES = st.sampled_from(["Etc/UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(CRONS, ZONES, MOMENTS)
def test_the_last_and_the_next_time_enclose_a_moment(cron: str, zone: str, moment: datetime) -> None:
    last, following = last_time(cron, zone, moment), next_time(cron, zone, moment)
    assert last <= moment < following
    assert next_time(cron, zone, last) == following, "no time is passed over, and none comes twice"
    assert last_time(cron, zone, following - timedelta(seconds=1)) == last


@pytest.mark.parametrize("zone", ["", "/etc/passwd", "../UTC", "Europe", "Europe/Berln"])
def test_what_is_no_time_zone_is_told(zone: str) -> None:
    with pytest.raises(ValueError, match=r"timeZone: .* is not allowed"):
        check("0 3 * * *", zone)


@pytest.mark.parametrize(
    "cron",
    ["", "0 \uff13 * * *", "@reboot", "0 3 * *", "0 0 3 * * *", "60 * * * *", "0 3 31 2 *", "a b c d e"],
)
def test_what_is_no_cron_expression_is_told(cron: str) -> None:
    with pytest.raises(ValueError, match=r"cron: .* is not allowed"):
        check(cron, "Etc/UTC")


def test_macros_of_kubernetes() -> None:
    check("@hourly", "UTC")
    for macro, fields in MACROS.items():
        assert several(macro, "UTC", "2026-03-01T00:30", 3) == several(fields, "UTC", "2026-03-01T00:30", 3)
