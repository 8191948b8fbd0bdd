"""Altered and described quotas, as a broker stores them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_broker.security.quotas.requests import changed, entity_of
from millstream_harness.in_process import connected, running
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import alter_client_quotas, describe_client_quotas
from millstream_kafka.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaOperation,
)
from millstream_kafka.protocol.describe_client_quotas import DescribeClientQuotasRequest, QuotaEntity
from millstream_kafka.protocol.errors import ApiError, ErrorCode

ALICE = [QuotaEntity("user", "alice")]


async def altered(
    client: Connection, *alterations: QuotaAlteration, validate_only: bool = False
) -> list[QuotaAlterationResult]:
    request = AlterClientQuotasRequest(list(alterations), validate_only)
    return (await client.call(alter_client_quotas.API, 1, request)).entries


async def described(client: Connection) -> list[tuple[list[tuple[str, str | None]], dict[str, float]]]:
    answer = await client.call(describe_client_quotas.API, 1, DescribeClientQuotasRequest())
    assert not answer.error_code
    return [
        (
            [(one.entity_type, one.entity_name) for one in entry.entity],
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or ()
    ]


def test_an_entity_may_have_any_name_and_the_default_is_none_of_them() -> None:
    assert entity_of({"user": None, "client-id": "<default>"}) == Entity(DEFAULT, "<default>")


@pytest.mark.parametrize("address", ["localhost", "10.0.0.256", "10.0.0.01", "0:0:0:0:0:0:0:1", "::FFFF"])
def test_an_address_has_one_form(address: str) -> None:
    with pytest.raises(ApiError) as refused:
        entity_of({"ip": address})
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert address in refused.value.message


def test_a_change_leaves_credentials() -> None:
    stored = {"SCRAM-SHA-256": "salt", "producer_byte_rate": "5"}
    assert changed(stored, {"producer_byte_rate": None, "consumer_byte_rate": "7"}) == {
        "SCRAM-SHA-256": "salt",
        "consumer_byte_rate": "7",
    }


async def test_quotas_outlive_the_broker(tmp_path: Path) -> None:
    ops = [QuotaOperation("producer_byte_rate", 1024.0), QuotaOperation("request_percentage", 12.5)]
    async with running(tmp_path) as broker, connected(broker) as client:
        (answer,) = await altered(client, QuotaAlteration(ALICE, ops))
        assert (answer.error_code, answer.error_message) == (0, None)
        await altered(client, QuotaAlteration([QuotaEntity("client-id", None)], ops[:1]))
        assert broker.coordination.entity_configs[Entity("alice")] == {
            "producer_byte_rate": "1024",
            "request_percentage": "12.5",
        }
    async with running(tmp_path) as broker, connected(broker) as client:
        assert await described(client) == [
            ([("client-id", None)], {"producer_byte_rate": 1024.0}),
            ([("user", "alice")], {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
        ]
        await altered(client, QuotaAlteration(ALICE, [QuotaOperation(op.key, remove=True) for op in ops]))
        assert await described(client) == [([("client-id", None)], {"producer_byte_rate": 1024.0})]


async def test_an_entity_changes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    good, bad = QuotaOperation("producer_byte_rate", 1024.0), QuotaOperation("consumer_byte_rate", 0.0)
    async with running(tmp_path) as broker, connected(broker) as client:
        (answer,) = await altered(client, QuotaAlteration(ALICE, [good, bad]))
        assert answer.error_message == "Quota consumer_byte_rate must be greater than 0"
        (answer,) = await altered(client, QuotaAlteration(ALICE, [good]), QuotaAlteration(ALICE, [good]))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        await altered(client, QuotaAlteration(ALICE, [good]), validate_only=True)
        assert await described(client) == []


async def test_a_stored_value_that_cannot_be_read_is_not_described(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await broker.coordination.change_entity(
            Entity("alice"), lambda _: {"producer_byte_rate": "much", "consumer_byte_rate": "5"}
        )
        assert await described(client) == [([("user", "alice")], {"consumer_byte_rate": 5.0})]
