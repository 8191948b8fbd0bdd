"""The state machine of SASL: each order of a connection's first four requests, at ours and at Apache Kafka.

Both get the same frames. What each answers is compared field by field, and when it closes the connection.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
import pytest

from millstream_broker.config.sasl_keys import UNSECURED
from millstream_harness.beside import plain
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_kafka.client.scram import ScramClient
from millstream_kafka.protocol import (
    alter_user_scram_credentials,
    api_versions,
    list_groups,
    metadata,
    sasl_authenticate,
    sasl_handshake,
)
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.header import RequestHeader, encode_request_header

pytestmark = [pytest.mark.soak, pytest.mark.once]

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLOSED, UNREADABLE = "closed", "unreadable"
CORRELATION_ID = 7
LIFETIME_MS = 3_600_000


def settings(listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener}"
    return {
        f"{prefix}.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="a secret" user_bob="b";',
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required;",
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
        **{
            f"{prefix}.{name.lower()}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
            for name in MECHANISMS[1:]
        },
    }


CONFIG = {
    "sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
    **settings("clear"),
    **settings("short"),
    "listener.name.short.connections.max.reauth.ms": str(LIFETIME_MS),
    "connection.failed.authentication.delay.ms": "10",
}
LISTENERS = {"CLEAR": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT"}


@dataclass
class Peers:
    """Ports of both brokers, by listener."""

    ours: dict[str, int]
    kafka: dict[str, int]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    if is_before(4):
        pytest.skip("ours behaves as Kafka 4: of 3.9, only clients and tools are tried")
    folder = tmp_path_factory.mktemp("sasl")
    users = [f"{name}=[name=alice,password=a secret]" for name in MECHANISMS[1:]]
    protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
    own = {
        **CONFIG,
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in protocols),
        "listener.security.protocol.map": ",".join(f"{name}:{of}" for name, of in protocols.items()),
    }
    with (
        InProcessBroker(folder / "ours", own) as ours,
        KafkaProcess(folder / "kafka", CONFIG, listeners=LISTENERS, users=users) as kafka,
    ):
        broker = ours.on_loop.broker
        (record,) = broker.replicas.metadata.state.brokers.values()
        ports = {listener.name: listener.port for listener in record.listeners}
        add_alice(ports["PLAINTEXT"])
        yield Peers(ports, {name: int(at.rpartition(":")[2]) for name, at in kafka.addresses.items()})


def add_alice(port: int) -> None:
    with Client(port) as client:
        for number, digest in ((1, "sha256"), (2, "sha512")):
            salted = hashlib.pbkdf2_hmac(digest, b"a secret", b"salt", 4096)
            upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
                "alice", number, 4096, b"salt", salted
            )
            request = alter_user_scram_credentials.AlterUserScramCredentialsRequest([], [upsertion])
            frame = Frame("alter", alter_user_scram_credentials.API, 0, request)
            assert client.send(frame)["results"][0]["error_code"] == 0


@dataclass(frozen=True, eq=False)
class Frame:
    """A request, or bytes that are none."""

    name: str
    api: Api[Any, Any] | None
    version: int
    request: Any

    def __repr__(self) -> str:
        return self.name

    def encoded(self) -> bytes:
        if self.api is None:
            return bytes(self.request)
        head = encode_request_header(RequestHeader(self.api.key, self.version, CORRELATION_ID, "test"))
        return head + self.api.encode_request(self.version, self.request)


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: Frame) -> Any:
        """The response, decoded, or `CLOSED`."""
        data = frame.encoded()
        try:
            self.socket.sendall(struct.pack(">i", len(data)) + data)
            body = self._read(struct.unpack(">i", self._read(4))[0])
        except (EOFError, ConnectionError):
            return CLOSED
        if frame.api is None or frame.name.startswith("bare"):
            return body
        assert struct.unpack_from(">i", body) == (CORRELATION_ID,)
        if frame.version > frame.api.versions[1]:
            return plain(frame.api.decode_response(0, body, 4), frame.api, 0)
        start = 5 if frame.api.has_flexible_response_header(frame.version) else 4
        return plain(frame.api.decode_response(frame.version, body, start), frame.api, frame.version)

    def is_closed(self) -> bool:
        """Whether the connection ends, without another byte; waits a second at most."""
        self.socket.settimeout(1.0)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (part := self.socket.recv(size - len(data))):
                raise EOFError
            data += part
        return data


def handshake(mechanism: str, version: int = 1) -> Frame:
    request = sasl_handshake.SaslHandshakeRequest(mechanism)
    return Frame(f"handshake {mechanism} v{version}", sasl_handshake.API, version, request)


def token(value: bytes, version: int = 2) -> Frame:
    request = sasl_authenticate.SaslAuthenticateRequest(value)
    return Frame(f"token {value!r} v{version}", sasl_authenticate.API, version, request)


def bare(value: bytes) -> Frame:
    return Frame(f"bare {value!r}", None, 0, value)


VERSIONS = Frame("versions", api_versions.API, 3, api_versions.ApiVersionsRequest("test", "1"))
UNNAMED = Frame("versions without a name", api_versions.API, 3, api_versions.ApiVersionsRequest("", ""))
UNKNOWN = Frame("versions 99", None, 0, struct.pack(">hhih", 18, 99, CORRELATION_ID, -1) + b"\0")
METADATA = Frame("metadata", metadata.API, 9, metadata.MetadataRequest([]))
GROUPS = Frame("groups", list_groups.API, 4, list_groups.ListGroupsRequest())
PLAIN, SCRAM, OTHER = handshake("PLAIN"), handshake("SCRAM-SHA-256"), handshake("GSSAPI")
RIGHT, WRONG = token(b"\0alice\0a secret"), token(b"\0alice\0wrong")
GARBAGE = bare(b"\x60\x82garbage that is no request")


def answers(port: int, frames: Sequence[Frame]) -> list[Any]:
    with Client(port) as client:
        found: list[Any] = []
        for frame in frames:
            found.append(normal(client.send(frame)))
            if found[-1] == CLOSED:
                return found
        return found


def normal(answer: Any) -> Any:
    """Without what must differ: which APIs there are, brokers and ports."""
    if isinstance(answer, dict):
        answer = {
            key: value for key, value in answer.items() if key not in ("api_keys", "brokers", "cluster_id")
        }
        if "mechanisms" in answer:
            answer["mechanisms"] = sorted(answer["mechanisms"])
        for key in list(answer):
            if "feature" in key:
                del answer[key]
    if isinstance(answer, bytes) and answer[4:6] == b"\0\x23":  # UNSUPPORTED_VERSION, with different lists
        return answer[:6]
    return answer


def same(peers: Peers, *frames: Frame, listener: str = "CLEAR") -> list[Any]:
    ours, kafka = answers(peers.ours[listener], frames), answers(peers.kafka[listener], frames)
    assert ours == kafka, f"{frames}"
    return ours


FIRST = (VERSIONS, PLAIN, SCRAM, RIGHT, METADATA)


def orders() -> Iterator[tuple[Frame, ...]]:
    """All orders of four, without those that begin as a shorter one that has ended."""
    yield from itertools.product(FIRST, repeat=4)


def test_every_order_of_the_first_four_requests(peers: Peers) -> None:
    ended: set[tuple[Frame, ...]] = set()
    problems = []
    for frames in orders():
        if any(frames[:count] in ended for count in range(1, 4)):
            continue
        ours = answers(peers.ours["CLEAR"], frames)
        kafka = answers(peers.kafka["CLEAR"], frames)
        if ours != kafka:
            problems.append(f"{frames}: ours {ours}, Kafka's {kafka}")
        if CLOSED in kafka:
            ended.add(frames[: len(kafka)])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "frames",
    [
        (UNKNOWN, VERSIONS, PLAIN, RIGHT, METADATA),
        (UNKNOWN, UNKNOWN, PLAIN, RIGHT),
        (UNNAMED, VERSIONS, PLAIN, RIGHT),
        (UNNAMED, PLAIN, RIGHT, GROUPS),
        (VERSIONS, UNKNOWN),
        (OTHER, PLAIN),
        (VERSIONS, OTHER, PLAIN),
        (handshake(""), PLAIN),
        (handshake("plain"), PLAIN),
        (PLAIN, WRONG, RIGHT),
        (PLAIN, GROUPS, RIGHT),
        (PLAIN, UNKNOWN, RIGHT),
        (PLAIN, token(b""), RIGHT),
        (PLAIN, token(b"\0\0"), RIGHT),
        (PLAIN, token(b"\0alice\0"), RIGHT),
        (PLAIN, token(b"\0a\0b\0c"), RIGHT),
        (PLAIN, token(b"\0a\0b\0c\0d\0e"), RIGHT),
        (PLAIN, token(b"bob\0alice\0a secret"), RIGHT),
        (PLAIN, token(b"bob\0alice\0wrong"), RIGHT),
        (PLAIN, token(b"alice\0alice\0a secret"), METADATA),
        (PLAIN, token(b"\0nobody\0x"), RIGHT),
        (PLAIN, token(b"\0\xff\0\xff"), RIGHT),
        (PLAIN, token(b"\0alice\0a secret", 0), GROUPS),
        (PLAIN, token(b"\0alice\0a secret", 1), GROUPS),
        (PLAIN, RIGHT, PLAIN, GROUPS, RIGHT, GROUPS),
        (PLAIN, RIGHT, OTHER, GROUPS),
        (PLAIN, RIGHT, VERSIONS, VERSIONS),
        (SCRAM, token(b""), RIGHT),
        (SCRAM, token(b"garbage"), RIGHT),
        (SCRAM, token(b"n,,n=alice"), RIGHT),
        (SCRAM, token(b"n,a=bob,n=alice,r=abc"), RIGHT),
        (SCRAM, token(b"n,,n=alice,r=abc,tokenauth=true"), RIGHT),
        (GARBAGE, PLAIN),
        (VERSIONS, GARBAGE, PLAIN),
        (PLAIN, GARBAGE, RIGHT),
        (PLAIN, RIGHT, GARBAGE),
        (handshake("PLAIN", 0), bare(b"\0alice\0a secret"), GROUPS),
        (handshake("PLAIN", 0), bare(b"\0bob\0b"), GROUPS),
        (handshake("PLAIN", 0), bare(b"\0alice\0wrong"), GROUPS),
        (handshake("PLAIN", 0), bare(b""), GROUPS),
        (handshake("PLAIN", 0), RIGHT, GROUPS),
        (handshake("GSSAPI", 0), PLAIN),
        (VERSIONS, handshake("SCRAM-SHA-512", 0), bare(b"n"), GROUPS),
    ],
    ids=repr,
)
def test_other_beginnings(peers: Peers, frames: tuple[Frame, ...]) -> None:
    same(peers, *frames)


def scram(client: Client, mechanism: str, password: str, *, is_bare: bool = False) -> tuple[Any, Any]:
    """The answers to both messages, without what is random."""
    exchange = ScramClient(mechanism, "alice", password)
    make = bare if is_bare else token
    first = client.send(make(exchange.first()))
    last = client.send(make(exchange.final(first if is_bare else first["auth_bytes"])))
    if is_bare:
        return None, last if last == CLOSED else exchange.verify(last)
    if not last["error_code"]:
        exchange.verify(last["auth_bytes"])
    return {**first, "auth_bytes": b""}, {**last, "auth_bytes": b""}


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
@pytest.mark.parametrize("password", ["a secret", "wrong"])
@pytest.mark.parametrize("version", [0, 1])
def test_scram(peers: Peers, listener: str, mechanism: str, password: str, version: int) -> None:
    found = []
    for ports in (peers.ours, peers.kafka):
        with Client(ports[listener]) as client:
            client.send(handshake(mechanism, version))
            both = scram(client, mechanism, password, is_bare=version == 0)
            found.append((*both, normal(client.send(GROUPS))))
    assert found[0] == found[1]
    if password == "a secret" and version:
        assert found[0][1]["session_lifetime_ms"] == (LIFETIME_MS if listener == "SHORT" else 0)
        assert found[0][2] != CLOSED


BOB = token(b"\0bob\0b")


@pytest.mark.parametrize(
    "frames",
    [
        (PLAIN, RIGHT, GROUPS, PLAIN, RIGHT, GROUPS),
        (PLAIN, RIGHT, PLAIN, GROUPS),
        (PLAIN, RIGHT, PLAIN, RIGHT, PLAIN, GROUPS),  # a second one within a second
        (PLAIN, RIGHT, PLAIN, BOB, GROUPS),
        (PLAIN, RIGHT, PLAIN, WRONG, GROUPS),
        (PLAIN, RIGHT, SCRAM, RIGHT, GROUPS),
        (PLAIN, RIGHT, SCRAM, GROUPS),
        (PLAIN, RIGHT, OTHER, GROUPS),
        (PLAIN, RIGHT, RIGHT, GROUPS),
        (PLAIN, RIGHT, PLAIN, VERSIONS),
        (PLAIN, RIGHT, handshake("PLAIN", 0), bare(b"\0alice\0a secret"), GROUPS),
    ],
    ids=repr,
)
def test_authenticating_again(peers: Peers, frames: tuple[Frame, ...]) -> None:
    same(peers, *frames, listener="SHORT")


OAUTH = handshake("OAUTHBEARER")
NOW = int(time.time())


def bearer(authorized: str = "", **claims: Any) -> Frame:
    claims = {"sub": "alice", "iat": NOW, "exp": NOW + 600, **claims}
    value = jwt.encode({name: of for name, of in claims.items() if of is not None}, None, "none")
    return token(f"n,{authorized},\x01auth=Bearer {value}\x01\x01".encode())


ACKNOWLEDGED = token(b"\x01")


@pytest.mark.parametrize(
    "frames",
    [
        (OAUTH, bearer(exp=NOW - 600), ACKNOWLEDGED, GROUPS),
        (OAUTH, bearer(sub=None), ACKNOWLEDGED, GROUPS),
        (OAUTH, bearer(exp=NOW - 600), token(b"garbage"), GROUPS),
        (OAUTH, bearer(exp=NOW - 600), GROUPS),
        (OAUTH, bearer("a=bob"), GROUPS),
        (OAUTH, ACKNOWLEDGED, GROUPS),
        (OAUTH, token(b""), GROUPS),
        (OAUTH, token(b"n,,\x01auth=Bearer a.b.c\x01\x01"), ACKNOWLEDGED, GROUPS),
    ],
    ids=range(8),
)
def test_tokens(peers: Peers, frames: tuple[Frame, ...]) -> None:
    same(peers, *frames)


def test_a_session_ends_with_its_token(peers: Peers) -> None:
    lifetimes = []
    for ports in (peers.ours, peers.kafka):
        with Client(ports["CLEAR"]) as client:
            client.send(OAUTH)
            answer = client.send(bearer())
            assert (answer["error_code"], answer["auth_bytes"]) == (0, b"")
            lifetimes.append(answer["session_lifetime_ms"])
            assert client.send(GROUPS) != CLOSED
    assert all(0 < lifetime <= 600_000 for lifetime in lifetimes)
    assert abs(lifetimes[0] - lifetimes[1]) < 60_000
