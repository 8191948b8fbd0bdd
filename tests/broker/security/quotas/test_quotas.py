"""The quotas of a broker: what they take from coordination, what they record, and what they forget."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_broker.security.quotas import keys, sensors
from millstream_broker.security.quotas.limits import SensorKey
from millstream_broker.security.quotas.mutations import Mutations
from millstream_broker.security.quotas.quotas import LONGEST_NAME, Quotas
from millstream_broker.security.quotas.rates import Windows
from millstream_broker.security.quotas.sensors import Sensors
from millstream_broker.security.session import ClientSession, PeerBroker
from millstream_kafka.protocol.errors import ApiError, ErrorCode

ALICE = ClientSession("User:alice", None, "L", "10.0.0.1")
BOB = ClientSession("User:bob", None, "L", "10.0.0.1")


def quotas(**of_alice: str) -> Quotas:
    quotas = Quotas(Windows(), Windows())
    assert not quotas.update(Entity("alice"), of_alice)
    return quotas


def test_without_a_quota_nothing_is_active() -> None:
    quotas = Quotas(Windows(), Windows())
    assert not quotas.is_active
    quotas.update(Entity("alice"), {"SCRAM-SHA-256": "salt=...", "producer_byte_rate": "10"})
    assert quotas.is_active
    quotas.update(Entity("alice"), {"SCRAM-SHA-256": "salt=..."})
    assert not quotas.is_active
    quotas.update(Entity(ip=DEFAULT), {"connection_creation_rate": "10"})
    assert not quotas.is_active
    assert quotas.connections.of_ip("10.0.0.1") == 10


def test_kinds_are_counted_apart_and_have_levels_of_their_own() -> None:
    some = quotas(producer_byte_rate="100")
    some.update(Entity(client_id="app"), {"consumer_byte_rate": "50"})
    assert some.fetch.record(ALICE, "app", 501, 0) == 20
    assert some.produce.record(ALICE, "app", 1000, 0) == 0
    assert some.produce.record(ALICE, "other", 100, 0) == 1000
    assert some.produce.record(BOB, "app", 10**9, 0) == 0


def test_byte_throttle_times_are_not_capped_and_those_of_requests_are() -> None:
    some = quotas(producer_byte_rate="10", request_percentage="1")
    assert some.produce.record(ALICE, None, 1200, 0) == 110_000
    assert some.request.record(ALICE, None, 1200, 0) == 1000


def test_use_taken_back_does_not_count() -> None:
    some = quotas(consumer_byte_rate="10")
    assert some.fetch.record(ALICE, None, 1000, 0) > 0
    some.fetch.take_back(ALICE, None, 1000, 0)
    assert some.fetch.record(ALICE, None, 100, 0) == 0
    assert some.fetch.most(ALICE, None) == 100
    assert some.fetch.most(BOB, None) is None


def test_a_changed_limit_applies_to_what_was_used_before() -> None:
    some = quotas(producer_byte_rate="100")
    assert some.produce.record(ALICE, None, 1000, 0) == 0
    some.update(Entity("alice"), {"producer_byte_rate": "10"})
    assert some.produce.record(ALICE, None, 0, 0) == 90_000


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "", "ten"])
def test_a_bad_stored_value_is_left_out_and_reported(value: str) -> None:
    some = Quotas(Windows(), Windows())
    (problem,) = some.update(Entity("alice"), {"producer_byte_rate": value, "consumer_byte_rate": "5"})
    assert problem.startswith("producer_byte_rate=")
    assert some.produce.record(ALICE, None, 10**9, 0) == 0
    assert some.fetch.most(ALICE, None) == 50


def test_a_strict_mutation_is_refused_while_tokens_are_owed() -> None:
    some = quotas(controller_mutation_rate="1")
    request = Mutations(some, ALICE, None, 0, is_strict=True)
    request.record(31, 0)  # of eleven tokens
    assert request.throttle_ms(0) == 0
    with pytest.raises(ApiError) as refused:
        request.record(1, 0)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert request.throttle_ms(0) == 20_000
    assert request.throttle_ms(500) == 19_500
    Mutations(some, ALICE, None, 20_000, is_strict=True).record(1, 20_000)


def test_a_lenient_mutation_passes_and_is_throttled() -> None:
    some = quotas(controller_mutation_rate="1")
    request = Mutations(some, ALICE, None, 0, is_strict=False)
    request.record(31, 0)
    request.record(1, 0)
    assert request.throttle_ms(0) == 21_000


def test_brokers_have_no_quota_for_mutations() -> None:
    some = Quotas(Windows(), Windows())
    some.update(Entity(DEFAULT), {"controller_mutation_rate": "1"})
    peer = ClientSession("Broker:1", PeerBroker(1, 1), "L", "10.0.0.1")
    request = Mutations(some, peer, None, 0, is_strict=True)
    request.record(1000, 0)
    request.record(1000, 0)
    assert request.throttle_ms(0) == 0


def test_unused_sensors_are_forgotten_and_their_number_is_bounded() -> None:
    found = Sensors[SensorKey, list[int]](list, most=3)
    first, second, third, fourth = (SensorKey(name) for name in "abcd")
    for now, key in enumerate((first, second, third)):
        found.get(key, now)
    found.get(first, 10)
    found.get(fourth, 11)  # the second is the longest unused
    assert [key for key, _ in found] == [third, first, fourth]
    found.expire(10 + sensors.UNUSED_MS)
    assert [key for key, _ in found] == [fourth]


def test_long_client_ids_are_not_remembered_as_a_whole() -> None:
    some = Quotas(Windows(), Windows())
    some.update(Entity(client_id=DEFAULT), {"producer_byte_rate": "100"})
    for last in "ab":
        some.produce.record(ALICE, "x" * 30_000 + last, 600, 0)
    (use,) = some.uses(0)
    assert (len(use.client_id), use.rate) == (LONGEST_NAME, 120)


def test_uses_are_those_of_clients_with_a_limit() -> None:
    some = quotas(producer_byte_rate="100", controller_mutation_rate="1")
    some.produce.record(ALICE, "app", 1100, 0)
    some.produce.record(BOB, "app", 1100, 0)
    Mutations(some, ALICE, "app", 0, is_strict=True).record(1, 0)
    produced, mutated = some.uses(0)
    assert produced == ("producer_byte_rate", "alice", "", 100, 110, 1, 1000)
    assert mutated[:4] == ("controller_mutation_rate", "alice", "", 1)
    some.update(Entity("alice"), {})
    assert not list(some.uses(0))
    assert not len(some.produce.sensors)


@dataclass
class Wrong:
    key: str
    value: float
    message: str
    of_ip: bool = False


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong("x", 1, "Invalid configuration key x"),
        Wrong(keys.CONNECTION, 1, "Invalid configuration key connection_creation_rate"),
        Wrong(keys.PRODUCE, 1, "Invalid configuration key producer_byte_rate", of_ip=True),
        Wrong(keys.PRODUCE, 0, "Quota producer_byte_rate must be greater than 0"),
        Wrong(keys.REQUEST, float("nan"), "Quota request_percentage must be greater than 0"),
        Wrong(keys.REQUEST, float("inf"), "Quota request_percentage must be a finite number"),
        Wrong(keys.FETCH, 1.5, "consumer_byte_rate cannot be a fractional value."),
        Wrong(keys.FETCH, 1e300, "Proposed value for consumer_byte_rate is too large for a LONG."),
        Wrong(
            keys.CONNECTION,
            2.0**31,
            "Proposed value for connection_creation_rate is too large for an INT.",
            True,
        ),
    ],
)
def test_an_impossible_value_is_refused(wrong: Wrong) -> None:
    with pytest.raises(ApiError) as refused:
        keys.check(wrong.key, wrong.value, of_ip=wrong.of_ip)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, wrong.message)


def test_values_are_stored_as_kafka_with_zookeeper_wrote_them() -> None:
    assert keys.check(keys.PRODUCE, 1024.0, of_ip=False) == "1024"
    assert keys.check(keys.PRODUCE, 2.0**63, of_ip=False) == str(2**63 - 1)
    assert keys.check(keys.REQUEST, 12.5, of_ip=False) == "12.5"
    assert keys.check(keys.CONNECTION, 5, of_ip=True) == "5"
