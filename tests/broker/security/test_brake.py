"""Guessing passwords is slow, and only for those who guess."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream_broker.security import brake as module
from millstream_broker.security.authentication import Authentication
from millstream_broker.security.brake import (
    FORGET_S,
    FREE,
    FREE_OF_ADDRESS,
    LONGEST_NAME,
    LONGEST_S,
    MOST_KNOWN,
    MOST_WAIT_S,
    OF_ADDRESS_S,
    Brake,
    brake_key,
)
from millstream_broker.security.mechanisms.plain import PlainAuthenticator
from millstream_kafka.protocol.errors import ApiError

KEY = ("10.0.0.1", "alice")
USERS = 'Module required user_alice="right" user_bob="other";'


def guess(brake: Brake, now: float, times: int = 1) -> None:
    for _ in range(times):
        assert brake.wait_s(KEY, now) == 0
        brake.failed(KEY, now)


def test_a_few_mistakes_cost_nothing() -> None:
    brake = Brake()
    guess(brake, 0.0, FREE)
    assert brake.wait_s(KEY, 0.0) == 0


def test_later_guesses_take_turns_that_get_longer() -> None:
    brake, now, waited = Brake(), 0.0, []
    guess(brake, now, FREE)
    for _ in range(10):
        wait = brake.wait_s(KEY, now)
        assert wait is not None
        waited.append(round(wait, 3))
        now += wait
        brake.failed(KEY, now)
    assert waited == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert waited[-1] == LONGEST_S


def test_guesses_at_the_same_time_take_turns_and_most_of_them_fail() -> None:
    brake = Brake()
    for _ in range(FREE + 10):
        brake.failed(KEY, 0.0)
    waits = [brake.wait_s(KEY, 0.0) for _ in range(1000)]
    verified = [wait for wait in waits if wait is not None]
    assert len(verified) == MOST_WAIT_S / LONGEST_S + 1
    assert verified == sorted(set(verified))


@pytest.mark.parametrize("other", [("10.0.0.2", "alice"), ("10.0.0.1", "bob")])
def test_others_do_not_wait(other: tuple[str, str]) -> None:
    brake = Brake()
    for _ in range(100):
        brake.failed(KEY, 0.0)
    assert brake.wait_s(other, 0.0) == 0


@pytest.mark.parametrize("end", [lambda brake: brake.succeeded(KEY), lambda brake: None])
def test_it_ends_with_a_success_or_with_time(end: Callable[[Brake], None]) -> None:
    brake = Brake()
    for _ in range(FREE + 5):
        brake.failed(KEY, 0.0)
    brake.wait_s(KEY, 0.0)
    assert brake.wait_s(KEY, 0.0) != 0
    end(brake)
    assert brake.wait_s(KEY, FORGET_S + 1) == 0


def test_it_remembers_a_limited_number() -> None:
    brake = Brake()
    for number in range(MOST_KNOWN + 100):
        brake.failed(("10.0.0.1", str(number)), 0.0)
        brake.failed((str(number), "alice"), 0.0)
        brake.succeeded(("10.0.0.2", str(number)))
    known = brake._failures, brake._of_addresses, brake._succeeded
    assert [len(each) for each in known] == [MOST_KNOWN] * 3


def test_guesses_of_many_users_from_one_address_take_turns() -> None:
    brake, now = Brake(), 0.0
    for number in range(FREE_OF_ADDRESS):
        assert brake.wait_s(("10.0.0.1", str(number)), now) == 0
        brake.failed(("10.0.0.1", str(number)), now)
    waits = [brake.wait_s(("10.0.0.1", f"of-{number}"), now) for number in range(1000)]
    verified = [wait for wait in waits if wait is not None]
    assert len(verified) == MOST_WAIT_S / OF_ADDRESS_S + 1
    assert brake.wait_s(("10.0.0.2", "1"), now) == 0
    assert brake.wait_s(("10.0.0.1", "late"), FORGET_S + 1) == 0


def test_users_who_have_logged_in_from_an_address_share_it_with_whoever_guesses() -> None:
    brake = Brake()
    brake.succeeded(KEY)
    for number in range(1000):
        brake.failed(("10.0.0.1", str(number)), 0.0)
        brake.wait_s(("10.0.0.1", str(number)), 0.0)
    assert brake.wait_s(KEY, 0.0) == 0
    assert brake.wait_s(("10.0.0.1", "bob"), 0.0) is None
    brake.succeeded(("10.0.0.1", "1"))
    assert brake.wait_s(("10.0.0.1", "bob"), 0.0) is None, "one good password of theirs does not end it"


def test_other_users_cannot_make_it_forget_one() -> None:
    """A flood of invented names fills its memory no faster than failures are forgotten."""
    brake, now = Brake(), 0.0
    for _ in range(FREE + 1):
        brake.failed(KEY, now)
    number = 0
    while now < FORGET_S:
        key = ("10.0.0.1", str(number := number + 1))
        wait = brake.wait_s(key, now)
        assert wait is not None
        now += wait
        brake.failed(key, now)
    assert KEY in brake._failures


def test_addresses_of_one_network_count_as_one() -> None:
    brake = Brake()
    for number in range(FREE + 1):
        brake.failed(brake_key(f"2001:db8:0:1::{number:x}", "alice"), 0.0)
    assert brake_key("2001:db8:0:1:ffff::1%eth0", "alice") == ("2001:db8:0:1::/64", "alice")
    brake.wait_s(brake_key("2001:db8:0:1::a", "alice"), 0.0)
    assert brake.wait_s(brake_key("2001:db8:0:1:ffff::1", "alice"), 0.0) != 0
    assert brake.wait_s(brake_key("2001:db8:0:2::1", "alice"), 0.0) == 0


async def test_guesses_of_clients_are_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAIT_S", -1.0)
    brake, mechanism = Brake(), PlainAuthenticator(lambda: USERS)

    async def attempt(message: bytes) -> str:
        authentication = Authentication(
            "CLEAR", "10.0.0.1", {"PLAIN": mechanism}, is_required=True, brake=brake
        )
        authentication.begin("PLAIN")
        try:
            await authentication.step(message)
        except ApiError as error:
            return error.message or ""
        return authentication.session.principal

    for _ in range(FREE):
        assert await attempt(b"\0alice\0wrong") == "Authentication failed: Invalid username or password"
    assert await attempt(b"\0alice\0right") == "Authentication failed: too many failures"
    assert await attempt(b"\0bob\0other") == "User:bob"


def test_long_names_take_little_memory() -> None:
    name = "u" * 500_000
    key = brake_key("10.0.0.1", name)
    assert len(key[1]) < LONGEST_NAME
    assert key != brake_key("10.0.0.1", name + "v")
    assert brake_key("10.0.0.1", "alice") == ("10.0.0.1", "alice")


async def test_a_failure_of_a_long_name_is_kept_short() -> None:
    brake = Brake()
    authentication = Authentication(
        "CLEAR", "10.0.0.1", {"PLAIN": PlainAuthenticator(lambda: USERS)}, is_required=True, brake=brake
    )
    authentication.begin("PLAIN")
    with pytest.raises(ApiError):
        await authentication.step(b"\0" + b"u" * 500_000 + b"\0wrong")
    assert [len(user) for _, user in brake._failures] == [64]
