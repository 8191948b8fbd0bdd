"""Rates of new connections: of a broker, its listeners, and addresses."""

from __future__ import annotations

from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_broker.security.quotas.connection_rates import BROKER, UNLIMITED, ConnectionRates
from millstream_broker.security.quotas.quotas import Quotas
from millstream_broker.security.quotas.rates import Windows


def rates(protected: str | None = None, *, of_ip: str | None = None, **limits: int) -> ConnectionRates:
    quotas = Quotas(Windows(), Windows())
    if of_ip is not None:
        quotas.update(Entity(ip=DEFAULT), {"connection_creation_rate": of_ip})

    def limit_of(listener: str | None) -> int:
        return limits.get("broker" if listener is BROKER else listener, UNLIMITED)

    return ConnectionRates(quotas, Windows(), limit_of, protected)


def waits(some: ConnectionRates, listener: str, count: int) -> int:
    """Open connections; returns the time that the last one waits."""
    for _ in range(count - 1):
        assert some.wait_ms(listener, 0) == 0
    return some.wait_ms(listener, 0)


def test_without_limits_nothing_is_measured() -> None:
    some = rates()
    assert waits(some, "L", 1000) == 0
    assert some.refused_ms("L", "10.0.0.1", 0) == 0
    assert not some._listeners
    assert not len(some._addresses)


def test_a_limit_may_be_set_while_a_connection_waits() -> None:
    some = rates(of_ip="1", L=1)
    for _ in range(10):
        some.wait_ms("L", 0)
        assert some.refused_ms("L", "10.0.0.1", 0) == 0
    some.wait_ms("L", 0)
    some._limit_of = lambda listener: 1  # from now on, the broker has one, too
    assert some.refused_ms("L", "10.0.0.1", 0) > 0


def test_ten_seconds_worth_passes_and_the_next_waits_for_a_second_at_most() -> None:
    assert waits(rates(L=5), "L", 50) == 0
    assert waits(rates(L=5), "L", 51) == 200
    some = rates(L=1)
    assert waits(some, "L", 11) == 1000
    assert some.wait_ms("L", 0) == 1000


def test_the_rate_of_the_broker_is_that_of_all_its_listeners() -> None:
    some = rates(broker=5)
    assert waits(some, "L", 30) == 0
    assert waits(some, "M", 21) == 200


def test_the_listener_for_brokers_does_not_wait_for_clients() -> None:
    some = rates("INTERNAL", broker=1)
    assert waits(some, "L", 11) == 1000
    assert some.wait_ms("INTERNAL", 0) == 0
    assert waits(rates("INTERNAL", INTERNAL=5), "INTERNAL", 51) == 200


def test_a_connection_beyond_the_rate_of_its_address_does_not_count() -> None:
    some = rates(of_ip="1", L=2)
    for _ in range(10):
        assert some.wait_ms("L", 0) == 0
        assert some.refused_ms("L", "10.0.0.1", 0) == 0
    for _ in range(50):
        assert some.wait_ms("L", 0) == 0
        assert some.refused_ms("L", "10.0.0.1", 0) == 1000
    assert some.wait_ms("L", 0) == 0
    assert some.refused_ms("L", "10.0.0.2", 0) == 0
    assert some.refused_ms("L", "10.0.0.1", 20_000) == 0
