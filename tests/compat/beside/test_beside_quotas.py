"""Quotas beside Apache Kafka: which entities and values both take, and what they describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream_harness.beside import Beside
from millstream_kafka.protocol import alter_client_quotas, describe_client_quotas

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

Names = dict[str, str | None]
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
KINDS = ("user", "client-id", "ip")
KEYS = (
    *("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"),
    *("connection_creation_rate", "SCRAM-SHA-256", "nonsense"),
)
PRESENT: list[Names] = [
    {"user": "alice"},
    {"user": None},
    {"user": "alice", "client-id": "app 1"},
    {"user": "alice", "client-id": None},
    {"user": None, "client-id": None},
    {"client-id": "app 1"},
    {"client-id": "<default>"},
    {"client-id": None},
]
OF_IPS: list[Names] = [{"ip": "10.0.0.1"}, {"ip": "::1"}, {"ip": None}]


def entity(names: Names) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]


def alter(
    beside: Beside,
    names: Names,
    *,
    validate_only: bool = False,
    but: dict[str, str] | None = None,
    **values: float | None,
) -> None:
    """Set values on both, or remove those that are None, and compare the responses."""
    ops = [
        {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
        for key, value in values.items()
    ]
    entries = [{"entity": entity(names), "ops": ops}]
    beside.same(alter_client_quotas.API, [1], entries=entries, validate_only=validate_only, but=but)


def described(answer: Any) -> dict[frozenset[tuple[str, str | None]], dict[str, float]]:
    return {
        frozenset((each["entity_type"], each["entity_name"]) for each in entry["entity"]): {
            each["key"]: each["value"] for each in entry["values"]
        }
        for entry in answer["entries"]
    }


def same_quotas(beside: Beside, components: list[dict[str, Any]], *, strict: bool) -> int:
    """Compare what both describe; returns the number of entities."""
    ours, kafka = beside.ask(describe_client_quotas.API, [1], components=components, strict=strict)[0]
    assert described(ours) == described(kafka)
    return len(ours["entries"])


@pytest.fixture
def present(beside: Beside) -> Iterator[None]:
    """Quotas of every kind of entity, until the test ends."""
    for number, names in enumerate(PRESENT, 1):
        alter(beside, names, producer_byte_rate=1e9 * number, request_percentage=1e6 + number / 8)
    for names in OF_IPS:
        alter(beside, names, connection_creation_rate=1000)
    count = len(PRESENT) + len(OF_IPS)
    beside.until(lambda answer: len(answer["entries"]) == count, describe_client_quotas.API, 1)
    yield
    for names in PRESENT:
        alter(beside, names, producer_byte_rate=None, request_percentage=None)
    for names in OF_IPS:
        alter(beside, names, connection_creation_rate=None)
    beside.until(lambda answer: not answer["entries"], describe_client_quotas.API, 1)


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("strict", [False, True])
def test_filters(beside: Beside, strict: bool) -> None:
    choices = [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind in KINDS
        for match_type, match in (
            *((EXACT, name) for name in ("alice", "app 1", "<default>", "10.0.0.1", "::1", "none")),
            *((DEFAULT, None), (SPECIFIED, None)),
        )
    ]
    found = same_quotas(beside, [], strict=strict)
    for first in choices:
        found += same_quotas(beside, [first], strict=strict)
        for second in choices:
            if {first["entity_type"], second["entity_type"]} == {"user", "client-id"}:
                found += same_quotas(beside, [first, second], strict=strict)
    assert found > 20


@pytest.mark.parametrize(
    "components",
    [
        [("", EXACT, "alice")],
        [("group", EXACT, "alice")],
        [("user", EXACT, None)],
        [("user", DEFAULT, "alice")],
        [("user", SPECIFIED, "alice")],
        [("user", 3, None)],
        [("user", EXACT, "alice"), ("user", SPECIFIED, None)],
        [("ip", EXACT, "10.0.0.1"), ("user", SPECIFIED, None)],
        [("client-id", EXACT, "10.0.0.1"), ("ip", SPECIFIED, None)],
    ],
)
def test_impossible_filters(beside: Beside, components: list[tuple[str, int, str | None]]) -> None:
    filters = [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind, match_type, match in components
    ]
    beside.same(describe_client_quotas.API, components=filters)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "names", [{"user": "bob"}, {"client-id": "app"}, {"user": None, "client-id": "a"}, {"ip": None}]
)
def test_values(beside: Beside, names: Names, key: str) -> None:
    for value in (1.0, 0.5, 1.5, 0.0, -1.0, 1.0000001, 2.0**31, 2.0**31 - 1, 2.0**63, 1e300, None):
        alter(beside, names, validate_only=True, **{key: value})


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"user": ""},
        {"client-id": ""},
        {"group": "g"},
        {"user": "bob", "group": "g"},
    ],
)
def test_impossible_entities(beside: Beside, names: Names) -> None:
    alter(beside, names, producer_byte_rate=1.0)


@pytest.mark.parametrize("names", [{"ip": "10.0.0.1", "user": "bob"}, {"ip": None, "client-id": None}])
def test_an_address_with_a_user_or_client(beside: Beside, names: Names) -> None:
    alter(beside, names, but={"error_message": "Kafka's lacks a space."}, producer_byte_rate=1.0)


def test_an_address_that_is_none(beside: Beside) -> None:
    entries = [{"entity": entity({"ip": "not an address"}), "ops": []}]
    beside.same(alter_client_quotas.API, entries=entries, but={"error_message": "Ours takes no host names."})


def test_a_quota_that_is_not_there_can_be_removed(beside: Beside) -> None:
    alter(beside, {"user": "carol"}, producer_byte_rate=None, nonsense=None)


def test_a_wrong_value_changes_nothing_of_its_entity(beside: Beside) -> None:
    alter(beside, {"user": "carol"}, producer_byte_rate=5.0, consumer_byte_rate=0.0)
    assert same_quotas(beside, [], strict=False) == 0


def test_a_second_alteration_of_an_entity_is_refused(beside: Beside) -> None:
    twice = [
        {"entity": entity({"user": "dora"}), "ops": [{"key": "producer_byte_rate", "value": value}]}
        for value in (5.0, 7.0)
    ]
    beside.same(
        alter_client_quotas.API,
        [1],
        entries=twice,
        validate_only=True,
        but={"error_message": "Kafka's names a Java object."},
    )
    again = [{"key": "producer_byte_rate", "value": value} for value in (5.0, 7.0)]
    beside.same(
        alter_client_quotas.API,
        [1],
        entries=[{"entity": entity({"user": "dora"}), "ops": again}],
        validate_only=True,
        but={"error_message": "Kafka's names a Java object."},
    )
