"""TLS and SASL of the client, against servers without either, or with unreadable responses; no Kafka is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.protocol import encode_response_header
from millstream_harness.secured_kafka import Authority
from millstream_harness.serving import serving
from millstream_kafka.client import (
    OAUTHBEARER,
    AuthenticationFailed,
    ClusterClient,
    ConnectFailed,
    Credential,
    CredentialsMissing,
    Sasl,
    Security,
    SecurityFailed,
    Tls,
    TlsFailed,
    cluster,
)
from millstream_kafka.client.connection import MAX_BEFORE_LOGIN
from millstream_kafka.client.sasl import MIN_SESSION_MS
from millstream_kafka.client.security import MAX_FILE_BYTES, CredentialsError
from millstream_kafka.protocol import api_versions, metadata, sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.header import decode_request_header


@asynccontextmanager
async def a_server() -> AsyncIterator[tuple[str, list[int]]]:
    """Its address, and an entry for each accepted connection; it has no TLS."""
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(1)
        writer.write(b"this is not TLS\n" * 10)
        await reader.read(1)

    async with serving(serve) as port:
        yield f"127.0.0.1:{port}", taken


@asynccontextmanager
async def a_broker_that_logs_in(**answer: Any) -> AsyncIterator[str]:
    """The address of a broker that responds to PLAIN with these fields, and reports that address as its own.

    ``pad``: additional bytes in its response; ``mechanisms``: it serves these instead.
    """
    pad, mechanisms = answer.pop("pad", 0), answer.pop("mechanisms", None)
    address = ""

    def answered(key: int) -> tuple[Api[Any, Any], Any]:
        if key == api_versions.API.key:
            served = [
                api_versions.ApiVersion(api.key, *api.versions)
                for api in (api_versions.API, metadata.API, sasl_handshake.API, sasl_authenticate.API)
            ]
            return api_versions.API, api_versions.ApiVersionsResponse(0, served)
        if key == sasl_handshake.API.key:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if mechanisms else 0
            return sasl_handshake.API, sasl_handshake.SaslHandshakeResponse(code, mechanisms or ["PLAIN"])
        if key == sasl_authenticate.API.key:
            fields = {"error_code": 0, "error_message": None, "auth_bytes": bytes(pad), **answer}
            return sasl_authenticate.API, sasl_authenticate.SaslAuthenticateResponse(**fields)
        host, _, port = address.rpartition(":")
        brokers = [metadata.MetadataResponseBroker(1, host, int(port))]
        topics = [metadata.MetadataResponseTopic(name=letter * 25_000) for letter in "abcd"]
        return metadata.API, metadata.MetadataResponse(brokers=brokers, topics=topics)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            header, _ = decode_request_header(frame)
            api, response = answered(header.api_key)
            flexible = api.has_flexible_response_header(header.api_version)
            body = encode_response_header(header.correlation_id, flexible)
            body += api.encode_response(header.api_version, response)
            writer.write(len(body).to_bytes(4) + body)
            await writer.drain()

    async with serving(serve) as port:
        address = f"127.0.0.1:{port}"
        yield address


LOGIN = Sasl("PLAIN", Credential("", "", value="me"), Credential("", "", value="open sesame"))


def value(text: str) -> Credential:
    return Credential("sources[0].sasl.password", "its value", value=text)


def file(path: Path) -> Credential:
    return Credential("sources[0].tls.key", f"key {path.name} of Secret s", path)


async def test_who_is_refused_does_not_try_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REFUSED_S", 3600.0)
    async with a_server() as (address, taken), ClusterClient(address, security=Security(Tls())) as client:
        for _ in range(5):
            with pytest.raises(TlsFailed, match="the listener may have no TLS"):
                await client.metadata([])
        assert len(taken) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            {"session_lifetime_ms": MIN_SESSION_MS - 1},
            r"the broker ends sessions after 9999 ms, .*: raise connections.max.reauth.ms there to 10000 or more$",
        ),
        ({"session_lifetime_ms": 1}, "ends sessions after 1 ms"),
        (
            {"error_code": 58, "error_message": "no\nERROR forged \x1b[31m" + "x" * 10_000},
            r"refused user name or password: no ERROR forged  \[31mx{179}$",
        ),
        ({"mechanisms": ["GSS\nAPI", "x" * 10_000]}, r"it serves GSS API, x{191}$"),
    ],
)
async def test_a_broker_that_makes_no_login_of_use_is_refused_in_one_line(
    answer: dict[str, Any], why: str
) -> None:
    async with (
        a_broker_that_logs_in(**answer) as address,
        ClusterClient(address, security=Security(sasl=LOGIN)) as client,
    ):
        with pytest.raises(AuthenticationFailed, match=why) as refusal:
            await client.metadata([])
        assert str(refusal.value).isprintable()


async def test_before_the_login_answers_are_small() -> None:
    """Until then anybody may be at the other end; afterwards responses may be as large as ever."""
    for pad, lifetime_ms in ((0, 0), (60_000, MIN_SESSION_MS)):
        async with (
            a_broker_that_logs_in(pad=pad, session_lifetime_ms=lifetime_ms) as address,
            ClusterClient(address, security=Security(sasl=LOGIN)) as client,
        ):
            topics = (await client.metadata([])).topics
            assert sum(len(topic.name or "") for topic in topics) == 100_000
    async with (
        a_broker_that_logs_in(pad=MAX_BEFORE_LOGIN) as address,
        ClusterClient(address, security=Security(sasl=LOGIN)) as client,
    ):
        client.retry_timeout = 0.0  # one attempt
        with pytest.raises(ConnectFailed, match=f"a response of 65.* bytes: 4 to {MAX_BEFORE_LOGIN} are"):
            await client.metadata([])


async def test_a_missing_credential_sends_nothing(tmp_path: Path) -> None:
    login = Sasl("PLAIN", value("me"), file(tmp_path / "password"))
    async with (
        a_server() as (address, taken),
        ClusterClient(address, security=Security(sasl=login)) as client,
    ):
        with pytest.raises(CredentialsMissing, match="key password of Secret s does not exist: create it"):
            await client.metadata([])
        assert taken == []


def test_what_a_credential_may_not_be(tmp_path: Path) -> None:
    for content, why in (
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a\0b", "contains a NUL character"),
        (b"\xff", "is not UTF-8 text"),
        (b"x" * (MAX_FILE_BYTES + 1), f"is larger than {MAX_FILE_BYTES} bytes"),
    ):
        path = tmp_path / "password"
        path.write_bytes(content)
        with pytest.raises(CredentialsError, match=f"key password of Secret s {why}"):
            file(path).text()
    path.write_bytes(b"open sesame\r\n")
    assert file(path).text() == "open sesame"
    with pytest.raises(CredentialsError, match="cannot be read: Is a directory"):
        file(tmp_path).text()


@pytest.mark.process
def test_a_key_with_a_password_is_refused_and_nothing_asks_for_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("client")
    key = tmp_path / "client.key"
    locked = tmp_path / "locked.key"
    authority.openssl("pkcs8", "-topk8", "-in", key.name, "-out", locked.name, "-passout", "pass:secret")
    certificate = Credential("sources[0].tls.certificate", "key crt of Secret s", tmp_path / "client.crt")
    with pytest.raises(CredentialsError, match=r"is encrypted: store the private key without a password"):
        Tls(certificate=certificate, key=file(locked)).context()
    Tls(certificate=certificate, key=file(key)).context()


TOKEN = "eyJ.eyJz.x-_~+/9="


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            {"error_code": 58, "error_message": '{"status":"invalid_token"}'},
            r'OAUTHBEARER: the broker refused the token: {"status":"invalid_token"}$',
        ),
        ({"pad": 3}, r"OAUTHBEARER: the broker's answer was refused: it refused the token: "),
        (
            {"session_lifetime_ms": MIN_SESSION_MS - 1},
            r"raise connections.max.reauth.ms there to 10000 or more, or get a token that lasts longer$",
        ),
    ],
)
async def test_refused_token_says_why(answer: dict[str, Any], why: str) -> None:
    login = Sasl(OAUTHBEARER, None, value(TOKEN))
    async with (
        a_broker_that_logs_in(**answer) as address,
        ClusterClient(address, security=Security(sasl=login)) as client,
    ):
        with pytest.raises(AuthenticationFailed, match=why) as refusal:
            await client.metadata([])
        assert TOKEN not in str(refusal.value)


def test_token_is_one_word_of_a_token() -> None:
    assert Sasl(OAUTHBEARER, None, value(f"{TOKEN}\n")).login().password == TOKEN
    for wrong in ("two words", "a\x01b", "{}", "a\nb"):
        with pytest.raises(
            CredentialsError, match="its value is not a token: write it in one line"
        ) as raised:
            Sasl(OAUTHBEARER, None, value(wrong)).login()
        assert wrong not in str(raised.value)


def test_nothing_secret_is_shown() -> None:
    security = Security(sasl=Sasl("PLAIN", value("me"), value("open sesame")))
    assert "sesame" not in repr(security)
    assert "sesame" not in repr(security.load())
    assert issubclass(TlsFailed, SecurityFailed)
