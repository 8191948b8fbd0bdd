"""Hostile contents in requests that change users, quotas and access rules.

Each part gets an error of its own, and what a broker stores it can read again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from millstream_broker.broker import Broker
from millstream_harness.in_process import connected, running
from millstream_kafka.protocol import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    describe_user_scram_credentials,
)
from millstream_kafka.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from millstream_kafka.protocol.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream_kafka.protocol.create_acls import AclCreation, CreateAclsRequest
from millstream_kafka.protocol.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from millstream_kafka.protocol.errors import ErrorCode

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
NAMES = {
    "NUL": "a\0b",
    "line": "a\r\nSCRAM-SHA-512=salt=eA==",
    "path": "../../brokers/ids/0",
    "dots": "..",
    "default": "<default>",
    "percent": "%2e%2e%00%",
    "encoded": "%:a",
    "space": " ",
    "beyond": "\U0010ffff\ufff0\ue000",
    "sasl": "a,r=b=2Cc",
    "wildcard": "*",
    "long": "x" * 2_000,
    "too long": "\u20ac" * 10_000,
    "longest": "\0" * 32_767,
}
NUMBERS = (-(2**31), -1, 0, 2**31 - 1)
OF_A_RULE = (-128, -1, 0, 1, 5, 17, 127)
FINE, FAILED = int(ErrorCode.NONE), int(ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, CONFIG) as broker:
        yield broker
        before = stored(broker)
    async with running(tmp_path, CONFIG) as broker:
        assert stored(broker) == before, "it reads all of it again"


def stored(broker: Broker) -> tuple[Any, ...]:
    return dict(broker.coordination.entity_configs), dict(broker.coordination.acls.rules)


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


async def ask(broker: Broker, api: Any, request: Any) -> Any:
    async with connected(broker) as client:
        return await client.call(api, api.versions[-1], request)


def refused(codes: Sequence[int]) -> list[int]:
    assert FAILED not in codes
    return [code for code in codes if code != FINE]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_names(broker: Broker, name: str) -> None:
    salted = b"s" * 64
    users = AlterUserScramCredentialsRequest([], [ScramCredentialUpsertion(name, 2, 4096, b"salt", salted)])
    of_users = await ask(broker, alter_user_scram_credentials.API, users)
    entity = [QuotaEntity("user", name), QuotaEntity("client-id", name)]
    quotas = AlterClientQuotasRequest(
        [QuotaAlteration(entity, [QuotaOperation("request_percentage", 1.0, False)])]
    )
    of_quotas = await ask(broker, alter_client_quotas.API, quotas)
    rules = CreateAclsRequest(
        [
            AclCreation(kind, name, pattern, f"User:{name[:32762]}", name, 3, 3)
            for kind in (2, 3, 5)
            for pattern in (3, 4)
        ]
    )
    of_rules = await ask(broker, create_acls.API, rules)
    is_long = len(name) > 4096
    assert bool(refused([one.error_code for one in of_users.results])) == is_long
    assert bool(refused([one.error_code for one in of_quotas.entries])) == is_long
    assert refused([one.error_code for one in of_rules.results]) == []
    found = await ask(broker, describe_user_scram_credentials.API, DescribeUserScramCredentialsRequest(None))
    assert [one.user for one in found.results] == ([] if is_long else [name])


@pytest.mark.parametrize("number", NUMBERS)
async def test_numbers_of_users(broker: Broker, number: int) -> None:
    deletions = [ScramCredentialDeletion(f"d{kind}", kind) for kind in OF_A_RULE]
    upsertions = [
        ScramCredentialUpsertion("iterations", 2, number, b"s", b"p"),
        ScramCredentialUpsertion(
            "previous", 2, 4096, b"s", b"p", b"q", -(2**63) if number < 0 else 2**63 - 1
        ),
        ScramCredentialUpsertion("no salt", 2, 4096, b"", b"p"),
        ScramCredentialUpsertion("salt", 2, 4096, b"s" * 1_000_000, b"p"),
        *(ScramCredentialUpsertion(f"u{kind}", kind, 4096, b"s", b"p") for kind in OF_A_RULE if kind != 1),
        *(ScramCredentialUpsertion("twice", 2, 4096, b"s", b"p") for _ in range(5_000)),
    ]
    request = AlterUserScramCredentialsRequest(deletions, upsertions)
    answer = await ask(broker, alter_user_scram_credentials.API, request)
    assert len(refused([one.error_code for one in answer.results])) == len(answer.results) == 18
    found = await ask(broker, describe_user_scram_credentials.API, DescribeUserScramCredentialsRequest(None))
    assert found.results == []


@pytest.mark.parametrize("number", OF_A_RULE)
async def test_numbers_of_rules(broker: Broker, number: int) -> None:
    rules = [
        AclCreation(number, "a", 3, "User:a", "*", 3, 3),
        AclCreation(2, "a", number, "User:a", "*", 3, 3),
        AclCreation(2, "a", 3, "User:a", "*", number, 3),
        AclCreation(2, "a", 3, "User:a", "*", 3, number),
    ]
    answer = await ask(broker, create_acls.API, CreateAclsRequest(rules * 1_000))
    codes = [one.error_code for one in answer.results]
    assert codes == codes[:4] * 1_000
    allowed = {5: (True, False, True, False)}.get(number, (False,) * 4)
    assert tuple(code == FINE for code in codes[:4]) == allowed
    refused(codes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0, -1.0, 1e308, 5e-324])
async def test_values_of_quotas(broker: Broker, value: float) -> None:
    keys = (
        "producer_byte_rate",
        "connection_creation_rate",
        "SCRAM-SHA-512",
        "",
        "x" * 32_767,
        "request_percentage",
    )
    user = QuotaEntity("user", "a")
    quotas = [
        *(
            QuotaAlteration([QuotaEntity("user", key[:9] or "none")], [QuotaOperation(key, value, False)])
            for key in keys
        ),
        QuotaAlteration([user], [QuotaOperation("producer_byte_rate", 1.0, False)] * 3),
        QuotaAlteration([], []),
        QuotaAlteration([QuotaEntity("ip", "::ffff:127.0.0.1"), user], []),
        *(QuotaAlteration([QuotaEntity("user", "again")], []) for _ in range(5_000)),
    ]
    answer = await ask(broker, alter_client_quotas.API, AlterClientQuotasRequest(quotas))
    codes = [one.error_code for one in answer.entries]
    assert len(codes) == len(keys) + 4
    is_fine = 0 < value < float("inf")
    invalid = int(ErrorCode.INVALID_REQUEST)
    assert codes == [*[invalid] * 5, FINE if is_fine else invalid, *[invalid] * 4]
    configs = broker.coordination.entity_configs.values()
    assert list(configs) == ([{"request_percentage": repr(value)}] if is_fine else [])
