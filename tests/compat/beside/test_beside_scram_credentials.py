"""SCRAM credentials of users: what Kafka accepts, refuses and shows."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.beside import Beside
from millstream_kafka.protocol import alter_user_scram_credentials as alter
from millstream_kafka.protocol import describe_user_scram_credentials as describe

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

SHA_256, SHA_512 = 1, 2


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt of twenty bytes",
        "salted_password": b"p" * 32,
    }


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def stored(beside: Beside, user: str, mechanism: int = SHA_256) -> None:
    beside.same(alter.API, upsertions=[upsertion(user, mechanism)])
    beside.until(
        lambda answer: any(
            info["mechanism"] == mechanism for info in answer["results"][0]["credential_infos"]
        ),
        describe.API,
        0,
        users=[{"name": user}],
    )


def test_users_are_described(beside: Beside) -> None:
    stored(beside, "described")
    stored(beside, "described", SHA_512)
    stored(beside, "ü=,/ *")
    beside.same(describe.API, users=[{"name": "described"}])
    beside.same(
        describe.API, users=[{"name": "described"}, {"name": "ü=,/ *"}, {"name": "nobody"}, {"name": ""}]
    )
    beside.same(describe.API, users=[{"name": "described"}, {"name": "described"}])
    beside.same(describe.API, users=[{"name": "nobody"}, {"name": "nobody"}])


@pytest.mark.parametrize(
    "wrong",
    [
        [upsertion("")],
        [upsertion("w", 0)],
        [upsertion("w", 3)],
        [upsertion("w", SHA_256, 4095)],
        [upsertion("w", SHA_256, 16_385)],
        [upsertion("w", SHA_512, 4095)],
        [upsertion("w"), upsertion("w")],
        [upsertion("w"), upsertion("w", SHA_512)],
        [upsertion("w", 0), upsertion("w")],
        [upsertion("w", SHA_256, 1), upsertion("w", 9)],
        [upsertion("w"), upsertion("w"), upsertion("w")],
    ],
)
def test_unusable_credentials_are_refused_and_others_stored(
    beside: Beside, wrong: list[dict[str, Any]]
) -> None:
    beside.same(alter.API, upsertions=[*wrong, upsertion("good")])
    beside.same(describe.API, users=[{"name": "w"}])


def test_deletions(beside: Beside) -> None:
    stored(beside, "gone", SHA_512)
    beside.same(alter.API, deletions=[deletion("gone")])
    beside.same(alter.API, deletions=[deletion(""), deletion("gone", 7), deletion("nobody")])
    beside.same(alter.API, deletions=[deletion("gone", SHA_512), deletion("gone", SHA_512)])
    beside.same(alter.API, deletions=[deletion("gone", SHA_512)], upsertions=[upsertion("gone")])
    beside.same(alter.API, deletions=[deletion("gone", SHA_512)])
    beside.until(lambda answer: answer["results"][0]["error_code"], describe.API, 0, users=[{"name": "gone"}])
    beside.same(describe.API, users=[{"name": "gone"}])
