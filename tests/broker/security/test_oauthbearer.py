"""OAUTHBEARER: which tokens count, and how the provider's keys are kept."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import logging
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from millstream_broker.config.addresses import Addresses
from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.config.sasl_keys import UNSECURED
from millstream_broker.security.mechanisms import json_web_keys
from millstream_broker.security.mechanisms.json_web_keys import JsonWebKeys, Jwk, KeysUnavailable, read_keys
from millstream_broker.security.mechanisms.oauthbearer import Expected, OAuthBearerAuthenticator
from millstream_broker.security.mechanisms.provider_tls import provider_context
from millstream_harness.certificates import Authority
from millstream_harness.in_process import running
from millstream_kafka.protocol.errors import ApiError, ErrorCode

OURS = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
ELLIPTIC = ec.generate_private_key(ec.SECP256R1())
HOUR_S = 3600
EXPECTED = Expected("https://provider", ["millstream"], 30, "sub")
REFUSED = b'{"status":"invalid_token"}'


def jwk(key: Any, key_id: str) -> Jwk:
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}


KEYS = [jwk(OURS, "ours"), jwk(ELLIPTIC, "elliptic")]


def keys_of(*keys: Jwk) -> JsonWebKeys:
    return JsonWebKeys("test:", HOUR_S, lambda url: list(keys or KEYS))


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    base = {"sub": "alice", "iat": now, "exp": now + HOUR_S, "iss": "https://provider", "aud": "millstream"}
    return {name: value for name, value in {**base, **more}.items() if value is not None}


def signed(key: Any = OURS, key_id: str | None = "ours", algorithm: str = "RS256", **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm, {} if key_id is None else {"kid": key_id})


def initial(token: str, authorized: str = "") -> bytes:
    name = f"a={authorized}" if authorized else ""
    return f"n,{name},\x01auth=Bearer {token}\x01extension=ignored\x01\x01".encode()


async def log_in(token: str, keys: JsonWebKeys | None = None, expected: Expected = EXPECTED) -> Any:
    """The identity; None if the token is refused as a client has to acknowledge."""
    exchange = OAuthBearerAuthenticator(keys or keys_of(), expected).begin()
    answer, identity, problem = await exchange.step(initial(token))
    if identity is None:
        assert answer == REFUSED
        assert problem.startswith("the token is refused: ")
        assert token[:40] not in problem or len(token) < 40
        with pytest.raises(ApiError) as failed:
            await exchange.step(b"\x01")
        assert (failed.value.code, failed.value.message) == (
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            REFUSED.decode(),
        )
    return identity


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed(algorithm="RS512"),
        signed(algorithm="PS256"),
        signed(ELLIPTIC, "elliptic", "ES256"),
        signed(aud=["other", "millstream"]),
    ],
)
async def test_a_signed_token_is_accepted(token: str) -> None:
    identity = await log_in(token)
    assert identity.principal == "User:alice"


async def test_clocks_may_differ() -> None:
    expected = EXPECTED._replace(clock_skew_s=300)
    identity = await log_in(signed(exp=int(time.time()) - 10), expected=expected)
    assert identity.expires_at <= asyncio.get_running_loop().time(), "the session ends at once"


async def test_the_session_ends_with_the_token() -> None:
    identity = await log_in(signed())
    assert abs(identity.expires_at - asyncio.get_running_loop().time() - HOUR_S) < 60


async def test_another_claim_may_name_the_principal() -> None:
    expected = Expected(None, [], 30, "preferred_username")
    identity = await log_in(signed(preferred_username="bob", iss="any", aud="any"), expected=expected)
    assert identity.principal == "User:bob"


def public_pem() -> bytes:
    return OURS.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed_with_the_public_key() -> str:
    """The algorithm HS256, with the public key as its secret."""
    import hashlib
    import hmac

    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "kid": "ours"}, claims())
    )
    signature = hmac.digest(public_pem(), head + b"." + body, hashlib.sha256)
    return (head + b"." + body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


@pytest.mark.parametrize(
    "token",
    [
        signed(OTHER),
        signed(key_id="unknown"),
        signed(key_id=None),
        signed(ELLIPTIC, "ours", "ES256"),
        signed(ELLIPTIC, "elliptic", "ES256")[:-4] + "AAAA",
        jwt.encode(claims(), None, "none", {"kid": "ours"}),
        signed_with_the_public_key(),
        signed(exp=int(time.time()) - 60),
        signed(exp=None),
        signed(iat=None),
        signed(iat=int(time.time()) + 86_400),
        signed(nbf=int(time.time()) + 86_400),
        signed(iss="https://other"),
        signed(iss=None),
        signed(aud="other"),
        signed(aud=None),
        signed(sub=None),
        signed(sub=""),
        signed(sub=" "),
        signed(sub=7),
        signed(sub="x" * 2000),
        signed(sub="\ud800"),
        signed(exp=1e300),
        signed(exp=10**400),
        "a.b.c",
        "garbage",
        "..",
        "e30.e30.",
        base64.urlsafe_b64encode(b"[" * 100_000).decode().rstrip("=") + ".e30.e30",
    ],
)
async def test_any_other_token_is_refused(token: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert await log_in(token) is None
    assert token[:40] not in caplog.text or len(token) < 40


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\xff",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
    ],
)
async def test_other_messages_fail(message: bytes) -> None:
    with pytest.raises(ApiError) as failed:
        await OAuthBearerAuthenticator(keys_of(), EXPECTED).begin().step(message)
    assert failed.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_an_authorization_id_must_be_the_principal() -> None:
    mechanism = OAuthBearerAuthenticator(keys_of(), EXPECTED)
    assert (await mechanism.begin().step(initial(signed(), "alice"))).identity is not None
    with pytest.raises(ApiError, match="authorization id"):
        await mechanism.begin().step(initial(signed(), "bob"))


async def test_unsigned_tokens_count_only_where_no_keys_are_configured() -> None:
    unsigned = jwt.encode(claims(), None, "none")
    expected = Expected(None, [], 0, "sub")
    for token, is_accepted in ((unsigned, True), (signed(), False), (unsigned + "AAAA", False)):
        mechanism = OAuthBearerAuthenticator(None, expected)
        identity = (await mechanism.begin().step(initial(token))).identity
        assert (identity is not None) == is_accepted
    expired = jwt.encode(claims(exp=int(time.time()) - 60), None, "none")
    assert (await OAuthBearerAuthenticator(None, expected).begin().step(initial(expired))).identity is None


@pytest.mark.parametrize("scope", [None, "read", ["read", "write"], []])
async def test_scopes_are_named_once(scope: object) -> None:
    assert await log_in(signed(scope=scope)) is not None


@pytest.mark.parametrize(
    "scope", ["", " ", 7, ["read", "read"], ["read", ""], [7], [None], {"read": 1}, [[]]]
)
async def test_a_claim_of_something_else_than_scopes_is_refused(scope: object) -> None:
    assert await log_in(signed(scope=scope)) is None
    assert await log_in(signed(scp=scope), expected=EXPECTED._replace(scope_claim="scp")) is None


# Keys


async def test_new_keys_are_read_when_a_token_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_web_keys, "LEAST_BETWEEN_S", 0)
    served = [jwk(OTHER, "old")]
    keys = JsonWebKeys("test:", HOUR_S, lambda url: list(served))
    assert await log_in(signed(OTHER, "old"), keys) is not None
    assert await log_in(signed(), keys) is None
    served[:] = KEYS
    assert await log_in(signed(), keys) is not None
    assert await log_in(signed(OTHER, "old"), keys) is None


async def test_invented_key_ids_cause_no_further_requests() -> None:
    reads = 0

    def read(url: str) -> list[Jwk]:
        nonlocal reads
        reads += 1
        return KEYS

    keys = JsonWebKeys("test:", HOUR_S, read)
    await asyncio.gather(*(keys.find(f"invented {number}") for number in range(100)))
    for number in range(100):
        await keys.find(f"invented again {number}")
    assert reads == 1


async def test_the_last_keys_stay_in_use_while_there_are_no_new_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found: list[list[Jwk]] = [KEYS]

    def read(url: str) -> list[Jwk]:
        if not found:
            raise KeysUnavailable("test: the provider is down")
        return found.pop()

    keys = JsonWebKeys("test:", 0, read)
    for _ in range(5):
        assert await log_in(signed(), keys) is not None
        if keys._reading is not None:
            await keys._reading
    assert "cannot read the keys of OAUTHBEARER: test: the provider is down" in caplog.text


async def test_an_outage_of_the_provider_ends_with_the_next_attempt() -> None:
    answers: list[list[Jwk] | None] = [None, None, KEYS]
    tried: list[float] = []

    def read(url: str) -> list[Jwk]:
        tried.append(time.monotonic())
        if (found := answers.pop(0)) is None:
            raise KeysUnavailable("test: the provider is down")
        return found

    keys = JsonWebKeys("test:", HOUR_S, read, retry_s=0.0, longest_retry_s=0.0)
    assert await log_in(signed(), keys) is None
    assert await log_in(signed(), keys) is None
    assert await log_in(signed(), keys) is not None
    assert len(tried) == 3


async def test_attempts_during_an_outage_wait_for_their_pause() -> None:
    tried: list[str] = []

    def read(url: str) -> list[Jwk]:
        tried.append(url)
        raise KeysUnavailable("test: the provider is down")

    keys = JsonWebKeys("test:", HOUR_S, read, retry_s=60.0, longest_retry_s=60.0)
    for _ in range(5):
        assert await log_in(signed(), keys) is None
    assert len(tried) == 1


async def test_a_revoked_key_counts_no_more_although_nobody_has_logged_in_for_long() -> None:
    served = [*KEYS, jwk(OTHER, "revoked")]
    keys = JsonWebKeys("test:", HOUR_S, lambda url: list(served))
    assert await log_in(signed(OTHER, "revoked"), keys) is not None
    del served[-1]
    assert await log_in(signed(OTHER, "revoked"), keys) is not None, "within the interval"
    keys._read_at -= 3 * HOUR_S
    keys._due_at -= 3 * HOUR_S
    assert await log_in(signed(OTHER, "revoked"), keys) is None


@pytest.fixture
def https_provider(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of keys, and the certificate of the authority that vouches for it."""
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("provider").write(tmp_path / "provider.pem"))
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "keys").write_text(json.dumps({"keys": KEYS}))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/keys", tmp_path / "ca.pem"
        server.shutdown()
        thread.join()


def with_options(options: str) -> str:
    return f"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {options};"


async def test_an_authority_of_ones_own_may_vouch_for_the_provider(
    https_provider: tuple[str, Path], tmp_path: Path
) -> None:
    url, authority = https_provider
    jaas = with_options(f'ssl.truststore.type="PEM" ssl.truststore.location="{authority}"')
    read = partial(read_keys, context_of=lambda: provider_context(jaas))
    assert await log_in(signed(), JsonWebKeys(url, HOUR_S, read)) is not None
    with pytest.raises(KeysUnavailable, match="certificate verify failed"):
        await asyncio.to_thread(read_keys, url)
    authority.write_text(Authority("Another").pem)
    with pytest.raises(KeysUnavailable, match="certificate verify failed"):
        await asyncio.to_thread(read, url)
    authority.unlink()
    with pytest.raises(KeysUnavailable, match=r"ssl\.truststore\.location=.*ca\.pem: cannot be read"):
        await asyncio.to_thread(read, url)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ('ssl.truststore.type="PEM"', "set ssl.truststore.location or ssl.truststore.certificates, too"),
        ('ssl.truststore.type="PAM" ssl.truststore.location="/x"', "must be one of: JKS, PKCS12, PEM"),
        ('ssl.truststore.type="PEM" ssl.truststore.location="/missing"', "/missing: cannot be read"),
        ('ssl.truststore.type="PEM" ssl.truststore.certificates="none"', "has no certificate"),
    ],
)
async def test_wrong_options_for_the_provider_are_named_at_the_start(
    tmp_path: Path, options: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        provider_context(with_options(options))
    of_tokens = "listener.name.clients.oauthbearer"
    config = {
        "listeners": "CLIENTS://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{of_tokens}.sasl.oauthbearer.jwks.endpoint.url": "https://provider/keys",
        f"{of_tokens}.sasl.jaas.config": with_options(options),
    }
    with pytest.raises(ConfigError, match=problem):
        async with running(tmp_path, config):
            pass


def test_options_of_others_leave_the_authorities_of_the_system() -> None:
    assert provider_context(None) is None
    assert provider_context(with_options('unsecuredLoginStringClaim_sub="a"')) is None


def test_keys_are_read_from_a_file_without_private_parts(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    private = {**RSAAlgorithm.to_jwk(OURS, as_dict=True), "kid": "ours"}
    path.write_text(json.dumps({"keys": [private, {"kty": "oct", "k": "AAAA", "kid": "shared"}, "garbage"]}))
    (key,) = read_keys(path.as_uri())
    assert key["kid"] == "ours"
    assert "d" not in key


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"keys": 7}', b"\xff", b"[" * 100_000])
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(KeysUnavailable, match=r"keys\.json"):
        read_keys(path.as_uri())
    with pytest.raises(KeysUnavailable, match="none"):
        read_keys((tmp_path / "none").as_uri())


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "keys").write_text(json.dumps({"keys": KEYS}))
    (tmp_path / "large").write_bytes(b" " * (json_web_keys.MAX_BYTES + 1))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_keys_are_read_from_a_url(provider: str) -> None:
    assert await log_in(signed(), JsonWebKeys(f"{provider}/keys", HOUR_S)) is not None
    with pytest.raises(KeysUnavailable, match="more than"):
        read_keys(f"{provider}/large")
    with pytest.raises(KeysUnavailable, match="404"):
        read_keys(f"{provider}/none")


class NoHttp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(b"not HTTP\r\n")


async def test_a_provider_that_does_not_speak_http_is_named() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), NoHttp) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(KeysUnavailable, match="not HTTP"):
            await asyncio.to_thread(read_keys, f"http://127.0.0.1:{server.server_address[1]}/keys")
        thread.join()


# Configuration


def test_a_listener_says_how_tokens_are_verified() -> None:
    given = {"listeners": "SASL_PLAINTEXT://h:3", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    prefix = "listener.name.sasl_plaintext.oauthbearer"
    url = {f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": "file:///keys.json"}
    unsecured = {f"{prefix}.sasl.server.callback.handler.class": UNSECURED}
    Addresses(BrokerConfig({**given, **url}))
    Addresses(BrokerConfig({**given, **unsecured}))
    for wrong in ({}, {**url, **unsecured}):
        with pytest.raises(ConfigError, match="only for tests without signatures"):
            Addresses(BrokerConfig({**given, **wrong}))
    with pytest.raises(ConfigError, match="expected https"):
        BrokerConfig({f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": "ftp://h/keys"})
