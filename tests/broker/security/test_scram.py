"""The server's side of SCRAM: the RFC's example, our own client, and clients that do not know the password."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from millstream_broker.coordination.entities import Entity
from millstream_broker.security.invented_credentials import InventedCredentials
from millstream_broker.security.mechanisms.scram import MAX_BYTES, ScramAuthenticator, ScramExchange
from millstream_broker.security.scram_credentials import ScramCredential, ScramCredentials
from millstream_harness.in_process import connected, running
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.scram import ScramClient
from millstream_kafka.protocol import (
    alter_user_scram_credentials,
    describe_client_quotas,
    describe_user_scram_credentials,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.scram_mechanism import MIN_ITERATIONS, ScramMechanism

SHA_256, SHA_512 = ScramMechanism
SECRET = b"secret of the cluster"


def credential(
    mechanism: ScramMechanism, password: str, salt: bytes = b"salt", iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    return ScramCredential.of_salted_password(mechanism, salt, salted, iterations)


class Tree:
    """Coordination, of which only the configuration of users matters."""

    def __init__(self, **users: Mapping[str, str]) -> None:
        self.entity_configs = {Entity(user=user): config for user, config in users.items()}
        self.on_entities: list[object] = []


def credentials(**users: Mapping[str, str]) -> ScramCredentials:
    return ScramCredentials(cast(Any, Tree(**users)))


class Clock:
    """Seconds since 1970."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def rotated(
    salt: bytes = b"salt", until: str = "1800000060000", iterations: int = MIN_ITERATIONS
) -> tuple[ScramCredentials, Clock]:
    """A user whose password was replaced."""
    clock, former = Clock(), credential(SHA_512, "old", salt, iterations).as_text()
    config = {
        SHA_512.label: credential(SHA_512, "new").as_text(),
        f"{SHA_512.label}.previous": f"{former},until={until}",
    }
    return ScramCredentials(cast(Any, Tree(alice=config)), clock), clock


def users_with(mechanism: ScramMechanism, **passwords: str) -> ScramCredentials:
    return credentials(
        **{user: {mechanism.label: credential(mechanism, of).as_text()} for user, of in passwords.items()}
    )


async def test_the_example_of_the_rfc() -> None:
    """RFC 7677, section 3."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credentials(user={SHA_256.label: credential(SHA_256, "pencil", salt).as_text()})
    exchange = ScramExchange(
        SHA_256,
        lambda user: (known.of(user)[SHA_256],),
        InventedCredentials(SHA_256, known, SECRET),
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    first = await exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first.auth_bytes == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = await exchange.step(b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert final.auth_bytes == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert final.identity is not None
    assert final.identity.principal == "User:user"


async def log_in(known: ScramCredentials, mechanism: ScramMechanism, user: str, password: str) -> str:
    """The principal; the client verifies the server, too."""
    client = ScramClient(mechanism.label, user, password)
    exchange = ScramAuthenticator(mechanism, known, SECRET).begin()
    first = await exchange.step(client.first())
    final = await exchange.step(client.final(first.auth_bytes))
    client.verify(final.auth_bytes)
    assert final.identity is not None
    return final.identity.principal


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "Jürgen"])
async def test_users_log_in_by_their_passwords(mechanism: ScramMechanism, user: str) -> None:
    known = users_with(mechanism, **{user: "pass=word,ü"})
    assert await log_in(known, mechanism, user, "pass=word,ü") == f"User:{user}"


async def test_a_former_password_is_valid_until_its_end() -> None:
    known, clock = rotated()
    for password in ("new", "old"):
        assert await log_in(known, SHA_512, "alice", password) == "User:alice"
    with pytest.raises(ApiError):
        await log_in(known, SHA_512, "alice", "another")
    clock.now += 60
    assert await log_in(known, SHA_512, "alice", "new") == "User:alice"
    with pytest.raises(ApiError):
        await log_in(known, SHA_512, "alice", "old")


@pytest.mark.parametrize(
    "wrong",
    [
        {"salt": b"another"},
        {"iterations": 5000},
        {"until": ""},
        {"until": "never"},
        {"until": "-1"},
        {"until": "٣" * 20},
    ],
    ids=lambda wrong: "-".join(
        f"{key}:{value!r}".encode("unicode_escape").decode() for key, value in wrong.items()
    ),
)
async def test_a_former_password_with_an_unusable_entry_does_not_count(wrong: dict[str, Any]) -> None:
    known, _ = rotated(**wrong)
    assert await log_in(known, SHA_512, "alice", "new") == "User:alice"
    with pytest.raises(ApiError):
        await log_in(known, SHA_512, "alice", "old")


@pytest.mark.parametrize("user", ["alice", "nobody"])
async def test_a_wrong_password_and_an_unknown_user_fail_alike(user: str) -> None:
    known = users_with(SHA_256, alice="right")
    client = ScramClient(SHA_256.label, user, "wrong")
    salts = []
    for _ in range(2):
        exchange = ScramAuthenticator(SHA_256, known, SECRET).begin()
        first = await exchange.step(client.first())
        salts.append(first.auth_bytes.split(b",")[1:])
        with pytest.raises(ApiError) as failed:
            await exchange.step(client.final(first.auth_bytes))
        assert failed.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert failed.value.message == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            " SCRAM-SHA-256"
        )
    assert salts[0] == salts[1], "a salt that changes shows that the user does not exist"
    assert salts[0][1] == b"i=4096"


async def test_a_credential_of_the_other_mechanism_does_not_count() -> None:
    known = users_with(SHA_512, alice="right")
    with pytest.raises(ApiError):
        await log_in(known, SHA_256, "alice", "right")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=al=3ice,r=abc",
        b"n,,n=alice,r=",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,,n=alice,r=abc,x=1,tokenauth=TRUE",
        b"n,,n=" + b"a" * 100_000 + b",r=" + b"=2C" * 100_000 + b"\0",
    ],
)
async def test_other_first_messages_fail(first: bytes) -> None:
    with pytest.raises(ApiError) as failed:
        await ScramAuthenticator(SHA_256, users_with(SHA_256, alice="x"), SECRET).begin().step(first)
    assert failed.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b",r=", b",r=x"),
        (b",p=", b",x=1,p="),
        (b",p=", b",p=AA=="),
        (b",p=", b",p=%"),
    ],
)
async def test_altered_final_messages_fail(old: bytes, new: bytes) -> None:
    client = ScramClient(SHA_256.label, "alice", "right")
    exchange = ScramAuthenticator(SHA_256, users_with(SHA_256, alice="right"), SECRET).begin()
    final = client.final((await exchange.step(client.first())).auth_bytes)
    with pytest.raises(ApiError):
        await exchange.step(final.replace(old, new, 1))


async def test_the_header_that_is_signed_must_be_the_one_that_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proof itself is right: only what it says about channel binding differs."""
    client = ScramClient(SHA_256.label, "alice", "right")
    exchange = ScramAuthenticator(SHA_256, users_with(SHA_256, alice="right"), SECRET).begin()
    first = await exchange.step(client.first())
    monkeypatch.setattr("millstream_kafka.client.scram._GS2_HEADER", "y,,")
    with pytest.raises(ApiError):
        await exchange.step(client.final(first.auth_bytes))


@pytest.mark.parametrize("now", [{}, {SHA_256.label: credential(SHA_256, "another").as_text()}])
async def test_a_credential_that_changes_before_the_proof_no_longer_counts(now: Mapping[str, str]) -> None:
    stored = {SHA_256.label: credential(SHA_256, "secret").as_text()}
    tree = Tree(alice=stored)
    known = ScramCredentials(cast(Any, tree))
    client = ScramClient(SHA_256.label, "alice", "secret")
    exchange = ScramAuthenticator(SHA_256, known, SECRET).begin()
    first = await exchange.step(client.first())
    tree.entity_configs[Entity(user="alice")] = now
    with pytest.raises(ApiError, match="invalid credentials"):
        await exchange.step(client.final(first.auth_bytes))


async def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    known = users_with(SHA_256, alice="secret")
    longest = b"n,,n=alice,r=" + b"x" * MAX_BYTES
    assert (await ScramAuthenticator(SHA_256, known, SECRET).begin().step(longest[:MAX_BYTES])).auth_bytes
    with pytest.raises(ApiError, match="invalid credentials"):
        await ScramAuthenticator(SHA_256, known, SECRET).begin().step(longest)


async def test_a_proof_counts_once() -> None:
    """Another exchange has another nonce."""
    known = users_with(SHA_256, alice="right")
    client = ScramClient(SHA_256.label, "alice", "right")
    first = await ScramAuthenticator(SHA_256, known, SECRET).begin().step(client.first())
    final = client.final(first.auth_bytes)
    replayed = ScramAuthenticator(SHA_256, known, SECRET).begin()
    await replayed.step(client.first())
    with pytest.raises(ApiError):
        await replayed.step(final)


@pytest.mark.parametrize(
    "text", ["hidden", "salt=hidden,stored_key=AA==,server_key=AA==,iterations=4096", "iterations=hidden"]
)
async def test_an_unreadable_credential_is_reported_once_without_its_value(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = credentials(alice={SHA_256.label: text})
    assert known.of("alice") == known.of("alice") == {}
    assert caplog.text.count("ignoring the SCRAM-SHA-256 credential of user 'alice'") == 1
    assert "hidden" not in caplog.text


def test_a_credential_shows_no_secret() -> None:
    shown = repr(credential(SHA_256, "password"))
    assert shown == "ScramCredential(iterations=4096)"


# The APIs


def upsertion(user: str, mechanism: int = SHA_256, **more: Any) -> Any:
    fields = {"iterations": MIN_ITERATIONS, "salt": b"salt", "salted_password": b"salted", **more}
    return alter_user_scram_credentials.ScramCredentialUpsertion(user, mechanism, **fields)


async def alter(client: Connection, upsertions: Any = (), deletions: Any = ()) -> list[tuple[str, ErrorCode]]:
    request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        [alter_user_scram_credentials.ScramCredentialDeletion(*one) for one in deletions], list(upsertions)
    )
    answer = await client.call(alter_user_scram_credentials.API, 0, request)
    return [(one.user, ErrorCode.of(one.error_code)) for one in answer.results]


async def described(client: Connection) -> dict[str, list[tuple[int, int]]]:
    request = describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None)
    answer = await client.call(describe_user_scram_credentials.API, 0, request)
    return {
        one.user: [(info.mechanism, info.iterations) for info in one.credential_infos]
        for one in answer.results
    }


async def test_a_former_password_ends_with_the_next_change(tmp_path: Path) -> None:
    former = {"previous_salted_password": b"old", "previous_valid_ms": 60_000}
    async with running(tmp_path) as broker, connected(broker) as client:

        async def stored() -> set[str]:
            return {*broker.coordination.entity_configs.get(Entity(user="u"), {})}

        with_former = {SHA_512.label, f"{SHA_512.label}.previous"}
        for change, expected in (
            ([upsertion("u", SHA_512, **former)], with_former),
            ([upsertion("u", SHA_512)], {SHA_512.label}),
            ([upsertion("u", SHA_512, **former)], with_former),
        ):
            assert await alter(client, change) == [("u", ErrorCode.NONE)]
            assert await stored() == expected
            assert await described(client) == {"u": [(SHA_512, MIN_ITERATIONS)]}
        assert await alter(client, [], [("u", SHA_512)]) == [("u", ErrorCode.NONE)]
        assert await stored() == set()


async def test_users_are_stored_and_deleted_independently_and_survive_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(tmp_path) as broker, connected(broker) as client:
        rate = {"producer_byte_rate": "1"}
        await broker.coordination.change_entity(Entity(user="alice"), lambda stored: rate)
        assert await alter(client, [upsertion("alice"), upsertion("bob", SHA_512, iterations=5000)]) == [
            ("alice", ErrorCode.NONE),
            ("bob", ErrorCode.NONE),
        ]
        assert await alter(
            client,
            [upsertion("twice"), upsertion("twice", SHA_512), upsertion("alice", SHA_512)],
            [("bob", SHA_512), ("nobody", SHA_256)],
        ) == [
            ("bob", ErrorCode.NONE),
            ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
            ("twice", ErrorCode.DUPLICATE_RESOURCE),
            ("alice", ErrorCode.NONE),
        ]
        both = {"alice": [(1, 4096), (2, 4096)]}
        assert await described(client) == both
        shown = await client.call(
            describe_client_quotas.API, 1, describe_client_quotas.DescribeClientQuotasRequest([], False)
        )
        assert [value.key for entry in shown.entries or () for value in entry.values] == [*rate]
    async with running(tmp_path) as broker, connected(broker) as client:
        assert await described(client) == both
        assert broker.coordination.entity_configs[Entity(user="alice")]["producer_byte_rate"] == "1"
        assert await alter(client, [], [("alice", SHA_256)]) == [("alice", ErrorCode.NONE)]
        assert await described(client) == {"alice": [(2, 4096)]}
    assert base64.b64encode(b"salt").decode() not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("u", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("u", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("u", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("u", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("u", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("u", salted_password=bytes(1025)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("u" * 5000), ErrorCode.INVALID_REQUEST),
        (upsertion("u", previous_salted_password=b"old"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (
            upsertion("u", previous_salted_password=b"old", previous_valid_ms=86_400_001),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
        (
            upsertion("u", previous_salted_password=bytes(1025), previous_valid_ms=1),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
    ],
)
async def test_unusable_credentials_are_refused(tmp_path: Path, wrong: Any, code: ErrorCode) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        assert await alter(client, [wrong, upsertion("good")]) == [
            (wrong.name, code),
            ("good", ErrorCode.NONE),
        ]
        assert (await described(client)).keys() == {"good"}
