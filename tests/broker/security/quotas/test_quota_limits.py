"""Which quota applies to whom, and who is counted together."""

from __future__ import annotations

from itertools import combinations

import pytest

from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_broker.security.quotas.limits import Limits, SensorKey

LEVELS = (
    (Entity("alice", "app"), SensorKey("alice", "app")),
    (Entity("alice", DEFAULT), SensorKey("alice", "app")),
    (Entity("alice"), SensorKey("alice")),
    (Entity(DEFAULT, "app"), SensorKey("alice", "app")),
    (Entity(DEFAULT, DEFAULT), SensorKey("alice", "app")),
    (Entity(DEFAULT), SensorKey("alice")),
    (Entity(client_id="app"), SensorKey(None, "app")),
    (Entity(client_id=DEFAULT), SensorKey(None, "app")),
)
OTHERS = (
    Entity("bob", "app"),
    Entity("bob"),
    Entity("alice", "other"),
    Entity(DEFAULT, "other"),
    Entity(client_id="other"),
)


@pytest.mark.parametrize("number", range(len(LEVELS) + 1))
def test_the_first_level_that_has_a_value_applies(number: int) -> None:
    for levels in combinations(range(len(LEVELS)), number):
        limits = Limits()
        for other in OTHERS:
            limits.set(other, 1000.0)
        for level in levels:
            limits.set(LEVELS[level][0], level + 1.0)
        found = limits.of_client("alice", "app")
        if not levels:
            assert found is None
            continue
        assert found == (LEVELS[levels[0]][1], levels[0] + 1.0)
        assert limits.of_sensor(found[0]) == found[1]


def test_a_removed_value_leaves_the_next_level() -> None:
    limits = Limits()
    for level, (entity, _) in enumerate(LEVELS):
        limits.set(entity, level + 1.0)
    for level, (entity, _) in enumerate(LEVELS):
        found = limits.of_client("alice", "app")
        assert found is not None
        assert found[1] == level + 1.0
        limits.set(entity, None)
    assert limits.of_client("alice", "app") is None
    assert not limits


def test_a_client_without_an_id_has_the_default_of_clients() -> None:
    limits = Limits()
    limits.set(Entity(client_id=DEFAULT), 5.0)
    assert limits.of_client("alice", "") == (SensorKey(None, ""), 5.0)


def test_a_sensor_of_a_level_that_no_longer_applies_has_no_limit() -> None:
    limits = Limits()
    limits.set(Entity(client_id="app"), 5.0)
    limits.set(Entity("alice"), 7.0)
    assert limits.of_sensor(SensorKey("alice", "app")) is None
    assert limits.of_sensor(SensorKey(None, "app")) == 5.0
    assert limits.of_sensor(SensorKey("bob")) is None


def test_an_address_has_its_own_limit_or_the_default() -> None:
    limits = Limits()
    assert limits.of_ip("10.0.0.1") is None
    limits.set(Entity(ip=DEFAULT), 5.0)
    limits.set(Entity(ip="10.0.0.1"), 7.0)
    assert (limits.of_ip("10.0.0.1"), limits.of_ip("10.0.0.2")) == (7.0, 5.0)
