"""The rules of a Lease: two candidates never act at once, whatever the order of requests and losses."""

from __future__ import annotations

import inspect
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_operator.kubernetes.client import KubeError
from millstream_operator.manager.election import DURATION_S, RENEW_DEADLINE_S, Election
from millstream_operator.manager.leadership import Leadership, LeaseName, boot_time

pytestmark = pytest.mark.process

WALL = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)


class Server:
    """The API server with one Lease; a change must name its version."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None

    def write(self, version: str | None, spec: dict[str, Any]) -> bool:
        there = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if there != version:
            return False
        before = self.lease["spec"] if self.lease else {}
        self.lease = {
            "metadata": {"resourceVersion": str(int(version or 0) + 1)},
            "spec": {**before, **spec},
        }
        return True


def look(server: Server, one: Election, now: float) -> bool:
    """Read the Lease and write it if allowed; returns whether it was written."""
    lease = server.lease
    one.see(lease, now)
    if not one.may_write(now):
        return False
    if server.write(lease["metadata"]["resourceVersion"] if lease else None, one.renewal(WALL)):
        one.see(server.lease, now)
        one.written(now)
        return True
    return False


def test_the_first_one_gets_it_and_the_second_waits_for_its_end() -> None:
    server, first, second = Server(), Election("a"), Election("b")
    assert look(server, first, 0.0)
    assert not look(server, second, 1.0)
    assert look(server, first, 5.0)
    assert not look(server, second, 15.0), "a renewal begins the wait anew, when it is seen"
    assert not look(server, second, 29.9)
    assert look(server, second, 30.0)
    assert first.lost(30.0)
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 1


def test_a_lease_that_was_given_back_is_free_at_once() -> None:
    server, first, second = Server(), Election("a"), Election("b")
    look(server, first, 0.0)
    assert server.lease is not None
    server.write(server.lease["metadata"]["resourceVersion"], first.release(WALL))
    assert look(server, second, 0.1)


def test_the_same_candidate_begun_anew_need_not_wait() -> None:
    server = Server()
    look(server, Election("a"), 0.0)
    assert look(server, Election("a"), 0.1)
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 0


def test_of_two_that_have_read_the_same_lease_one_gets_it() -> None:
    server, first, second = Server(), Election("a"), Election("b")
    for one in (first, second):
        one.see(None, 0.0)
    assert server.write(None, first.renewal(WALL))
    assert not server.write(None, second.renewal(WALL))


def test_a_lease_that_is_gone_protects_nobody() -> None:
    server, first = Server(), Election("a")
    look(server, first, 0.0)
    first.see(None, 1.0)
    assert first.lost(1.0)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 8.0), st.booleans()), min_size=1, max_size=60),
    st.dictionaries(st.sampled_from("abc"), st.floats(-1e6, 1e6)),
)
def test_no_two_act_at_once(steps: list[tuple[str, float, bool]], offsets: dict[str, float]) -> None:
    """Any order of candidates; responses may get lost, and clocks are independent."""
    server, now = Server(), 0.0
    candidates = {name: Election(name) for name in "abc"}
    ends: dict[str, float] = {}  # the end of each one's time to act, by the true clock
    for name, passed, lost in steps:
        now += passed
        one, own = candidates[name], now + offsets.get(name, 0.0)
        before = one.valid_until
        if look(server, one, own) and not lost:
            ends[name] = now + RENEW_DEADLINE_S
        else:
            one.valid_until = before
        acting = [who for who, end in ends.items() if now < end]
        assert len(acting) <= 1, f"{acting} at {now}"
    assert RENEW_DEADLINE_S < DURATION_S


class SlowServer:
    """An API server whose responses take time on its own clock."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.waits = 100.0, seconds, 0
        self.lease: dict[str, Any] | None = None
        self.one: Leadership | None = None
        self.acted: list[bool] = []

    def clock(self) -> float:
        return self.now

    def limited(self, seconds: float) -> SlowServer:
        return self

    def get(self, *_: str) -> dict[str, Any] | None:
        self._answer()
        return self.lease

    def create(self, lease: dict[str, Any], manager: str) -> dict[str, Any]:
        return self.merge({"metadata": {**lease["metadata"], "resourceVersion": "0"}}, lease)

    def merge(self, live: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        version = str(int(live["metadata"]["resourceVersion"]) + 1)
        self.lease = {"metadata": {**live["metadata"], "resourceVersion": version}, "spec": change["spec"]}
        return self.lease

    def is_set(self) -> bool:
        return self.waits >= 9

    def wait(self, seconds: float) -> None:
        self.waits += 1
        self.now += seconds
        self._look()

    def _answer(self) -> None:
        self.now += self.seconds
        self._look()

    def _look(self) -> None:
        if self.one is not None and self.one.acquired.is_set():
            self.acted.append(self.one.acts())


@pytest.mark.parametrize("seconds", [0.01, 1.4, 2.4])
def test_a_slow_api_server_costs_the_holder_nothing(seconds: float) -> None:
    server = SlowServer(seconds)
    lost: list[bool] = []
    name = LeaseName("ns", "lease")
    server.one = Leadership(server, name, "a", lambda: lost.append(True), server.clock)  # type: ignore[arg-type]
    server.one._ending = server  # type: ignore[assignment]
    server.one._contend()
    assert len(server.acted) > 20
    assert all(server.acted)
    assert lost == []


def test_the_lease_ends_while_the_machine_is_suspended() -> None:
    server = SlowServer(0.01)
    one = Leadership(server, LeaseName("ns", "lease"), "a", clock=server.clock)  # type: ignore[arg-type]
    assert one._round()
    one.check()
    server.now += DURATION_S  # suspended
    with pytest.raises(KubeError, match="does not hold the Lease"):
        one.check()
    assert inspect.signature(Leadership).parameters["clock"].default is boot_time


def test_the_clock_of_leases_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_MONOTONIC: 10.0, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC): 3610.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    assert boot_time() == 3610.0
