"""KIP-392: the replica that a leader recommends to a consumer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_broker.replication.isr import Isr
from millstream_broker.replication.selector import select
from millstream_harness.replica import OTHERS, THEM, US, broker_record, led_by

RACKS = {US: "a", THEM: "b", OTHERS: "c"}


def leading(isr: tuple[int, ...] = (US, THEM, OTHERS), **ends: int) -> Isr:
    """Broker 1 leads, its log ends at 10; ``ends`` are the offsets that `them` and `others` have fetched."""
    leader = Isr(
        US,
        led_by(US, US, THEM, OTHERS, isr=isr),
        log_end=10,
        high_watermark=0,
        min_isr=1,
        max_lag_ms=1000,
        alive=RACKS,
        now_ms=0,
    )
    for name, end in ends.items():
        leader.fetched(THEM if name == "them" else OTHERS, end, 10, 0, log_start=2)
    return leader


def chosen(isr: Isr, rack: str, offset: int = 5, **racks: str) -> int | None:
    known = {**RACKS, **{{"us": US, "them": THEM, "others": OTHERS}[name]: at for name, at in racks.items()}}
    brokers = {one: replace(broker_record(one), rack=at or None) for one, at in known.items()}
    return select(isr, brokers, rack, offset)


def test_the_replica_in_the_consumers_rack() -> None:
    isr = leading(them=10, others=10)
    assert [chosen(isr, rack) for rack in ("a", "b", "c", "d")] == [None, THEM, OTHERS, None]


def test_a_leader_in_the_rack_is_read_itself() -> None:
    assert chosen(leading(them=10), "b", us="b") is None


def test_of_several_the_one_with_most_records() -> None:
    assert chosen(leading(them=8, others=9), "b", others="b") == OTHERS
    assert chosen(leading(them=9, others=8), "b", others="b") == THEM


@pytest.mark.parametrize(("offset", "expected"), [(1, None), (2, THEM), (8, THEM), (9, None)])
def test_only_one_that_has_the_offset(offset: int, expected: int | None) -> None:
    assert chosen(leading(them=8), "b", offset) == expected


def test_only_one_that_is_in_sync_and_alive() -> None:
    assert chosen(leading(isr=(US, OTHERS), them=10), "b") is None
    assert chosen(leading(), "b") is None, "it has not fetched yet"
    isr = leading(them=10)
    assert select(isr, {US: replace(broker_record(US), rack="a")}, "b", 5) is None


def test_without_racks_the_leader_is_read() -> None:
    assert chosen(leading(them=10), "b", them="") is None
