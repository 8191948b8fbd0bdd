"""Quotas of users who log in by SCRAM over TLS, beside Apache Kafka: which one applies, and the times that it sets.

Each test has users of its own, who have used nothing before. So the first throttle time follows from the size of a
request and the quota alone, and is the same to the millisecond. Later ones also depend on how far the present window of
a second has come: they differ by `WINDOW_MS` at most.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from millstream_harness.beside import Beside
from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import unique
from millstream_harness.secured_kafka import SCRAM_MODULE
from millstream_harness.wire import Wire, fetch_request, produce_request
from millstream_kafka.admin.access import ScramCredential
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client.scram import ScramClient
from millstream_kafka.protocol import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_topics,
    describe_client_quotas,
    fetch,
    list_groups,
    produce,
    sasl_authenticate,
    sasl_handshake,
)
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import Struct
from millstream_kafka.scram_mechanism import ScramMechanism

pytestmark = [pytest.mark.soak, pytest.mark.once]

MECHANISM = ScramMechanism.SCRAM_SHA_512
PASSWORD = "open sesame"
WINDOW_MS = 1000
TOPIC = "limited"
BATCH = build_batch([Record(None, bytes(10_000), 1_700_000_000_000)])
CONFIG = {
    "sasl.enabled.mechanisms": MECHANISM.label,
    f"listener.name.secure.{MECHANISM.label.lower()}.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    # The records are years old: they must not be deleted in the middle of a test.
    "log.retention.check.interval.ms": "86400000",
}
KAFKA_CONFIG = CONFIG | {"log.initial.task.delay.ms": "86400000"}
Names = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Peers:
    beside: Beside
    """Both by their open listeners, for whoever administers them."""
    secure: Sequence[str]
    """Their listeners with TLS and SCRAM."""
    context: ssl.SSLContext

    def add(self, user: str) -> str:
        """Add a user; returns its name."""
        credential = ScramCredential.of_password(user, MECHANISM, PASSWORD)
        upsertion = {
            "name": user,
            "mechanism": MECHANISM.value,
            "iterations": credential.iterations,
            "salt": credential.salt,
            "salted_password": credential.salted_password,
        }
        self.beside.same(alter_user_scram_credentials.API, [0], upsertions=[upsertion])
        return user

    def call(
        self, user: str, client_id: str, api: Api[Any, Any], version: int, request: Struct
    ) -> tuple[Any, Any]:
        """Both responses; each on a connection of its own, as an earlier one is not read for a while."""
        answers = []
        for address in self.secure:
            with LoggedIn(address, user, client_id, self.context) as wire:
                answers.append(wire.call(api, version, request))
        return answers[0], answers[1]

    def write(self, user: str, client_id: str) -> tuple[int, int]:
        """The throttle times of one Produce request."""
        ours, kafka = self.call(user, client_id, produce.API, 9, produce_request(TOPIC, BATCH))
        return ours.throttle_time_ms, kafka.throttle_time_ms


class LoggedIn(Wire):
    """A connection with TLS, of a user."""

    def __init__(
        self, address: str, user: str, client_id: str, context: ssl.SSLContext, source: str = ""
    ) -> None:
        super().__init__(address, client_id, source)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest(MECHANISM.label))
        exchange = ScramClient(MECHANISM.label, user, PASSWORD)
        exchange.verify(self._token(exchange.final(self._token(exchange.first()))))

    def _token(self, value: bytes) -> bytes:
        answer = self.call(sasl_authenticate.API, 2, sasl_authenticate.SaslAuthenticateRequest(value))
        assert answer.error_code == 0, answer
        return bytes(answer.auth_bytes)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    if is_before(4):
        pytest.skip("ours behaves as Kafka 4: of 3.9, only clients and tools are tried")
    folder = tmp_path_factory.mktemp("quotas")
    authority = Authority()
    keys = tls_keys(authority.issue().write(folder / "broker.pem"))
    own = {
        **CONFIG,
        **keys,
        "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
    }
    with (
        InProcessBroker(folder / "ours", own) as ours,
        KafkaProcess(folder / "kafka", {**KAFKA_CONFIG, **keys}, listeners={"SECURE": "SASL_SSL"}) as kafka,
    ):
        (record,) = ours.on_loop.broker.replicas.metadata.state.brokers.values()
        ports = {listener.name: listener.port for listener in record.listeners}
        beside = Beside(ours.bootstrap, kafka.bootstrap)
        beside.create(TOPIC)
        for peer in beside.peers:
            for _ in range(4):
                assert peer.wire.produce(TOPIC, BATCH, acks=-1).error_code == 0
        yield Peers(
            beside, (f"127.0.0.1:{ports['SECURE']}", kafka.addresses["SECURE"]), authority.client_context()
        )
        beside.close()


@pytest.fixture
def quotas(peers: Peers) -> Iterator[Quotas]:
    made = Quotas(peers.beside)
    yield made
    made.remove()


class Quotas:
    """Those of one test."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._set: list[tuple[Names, str]] = []

    def set(self, key: str, quotas: Sequence[tuple[Names, float]]) -> None:
        """Kafka applies them in order, so that all others apply once it describes the last."""
        last: Names = {"ip": "192.0.2.1"} if "ip" in quotas[0][0] else {"client-id": "last"}
        for names, value in (*quotas, (last, 1e9)):
            self._alter(names, {"key": key, "value": value, "remove": False})
            self._set.append((names, key))
        self._await(len(self._set))

    def remove(self) -> None:
        for names, key in self._set:
            self._alter(names, {"key": key, "value": 0.0, "remove": True})
        self._await(0)

    def _alter(self, names: Names, operation: Mapping[str, Any]) -> None:
        entity = [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]
        entries = [{"entity": entity, "ops": [operation]}]
        self._beside.same(alter_client_quotas.API, [1], entries=entries)

    def _await(self, count: int) -> None:
        self._beside.until(lambda answer: len(answer["entries"]) == count, describe_client_quotas.API, 1)


LEVELS = 8


def levels(user: str, client: str) -> list[Names]:
    """Kafka's order of precedence, the strongest first."""
    return [
        {"user": user, "client-id": client},
        {"user": user, "client-id": None},
        {"user": user},
        {"user": None, "client-id": client},
        {"user": None, "client-id": None},
        {"user": None},
        {"client-id": client},
        {"client-id": None},
    ]


@pytest.mark.parametrize("strongest", range(LEVELS))
def test_the_strongest_quota_that_there_is_applies(peers: Peers, quotas: Quotas, strongest: int) -> None:
    user, client = peers.add(unique("user")), unique("client")
    rates = [100.0 * (number + 1) for number in range(LEVELS)]
    present = list(zip(levels(user, client), rates, strict=True))[strongest:]
    quotas.set("producer_byte_rate", present)
    ours, kafka = peers.write(user, client)
    assert ours == kafka > 0
    later_ours, later_kafka = peers.write(user, client)
    assert later_kafka > kafka
    assert abs(later_ours - later_kafka) <= WINDOW_MS


@pytest.mark.parametrize("level", range(LEVELS))
def test_clients_share_a_quota_as_in_kafka(peers: Peers, quotas: Quotas, level: int) -> None:
    """A user's own one is shared by all its clients, that of a client id by all users without a quota."""
    user, other = peers.add(unique("user")), peers.add(unique("other"))
    client, second = unique("client"), unique("second")
    quotas.set("producer_byte_rate", [(levels(user, client)[level], 500.0)])
    first = peers.write(user, client)
    assert first[0] == first[1] > 0
    for ours, kafka in (peers.write(user, second), peers.write(other, client)):
        assert abs(ours - kafka) <= WINDOW_MS
        assert (ours > 0) == (kafka > 0)
        assert (ours > first[0] + 2 * WINDOW_MS) == (kafka > first[1] + 2 * WINDOW_MS)


@pytest.mark.parametrize("with_client", [False, True], ids=["user", "user and client id"])
def test_consumers(peers: Peers, quotas: Quotas, with_client: bool) -> None:
    user, client = peers.add(unique("user")), unique("client")
    names: Names = {"user": user, **({"client-id": client} if with_client else {})}
    quotas.set("consumer_byte_rate", [(names, 2500.0)])
    size = 2 * len(BATCH)
    found = [
        peers.call(user, client, fetch.API, 12, fetch_request(TOPIC, offset, max_bytes=size))
        for offset in (0, 2)
    ]
    for ours, kafka in found:
        assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= WINDOW_MS
        assert bool(ours.responses) == bool(kafka.responses)
    (_, first), (_, second) = found
    assert first.throttle_time_ms == 0 < second.throttle_time_ms


@pytest.mark.parametrize("with_client", [False, True], ids=["user", "user and client id"])
def test_requests(peers: Peers, quotas: Quotas, with_client: bool) -> None:
    user, client = peers.add(unique("user")), unique("client")
    names: Names = {"user": user, **({"client-id": client} if with_client else {})}
    quotas.set("request_percentage", [(names, 0.0001)])
    ours, kafka = peers.call(user, client, list_groups.API, 4, list_groups.ListGroupsRequest())
    assert ours.throttle_time_ms == kafka.throttle_time_ms == WINDOW_MS


@pytest.mark.parametrize("with_client", [False, True], ids=["user", "user and client id"])
def test_mutations(peers: Peers, quotas: Quotas, with_client: bool) -> None:
    user, client = peers.add(unique("user")), unique("client")
    names: Names = {"user": user, **({"client-id": client} if with_client else {})}
    quotas.set("controller_mutation_rate", [(names, 0.1)])

    def create(partitions: int) -> tuple[Any, Any]:
        topic = create_topics.CreatableTopic(unique("created"), partitions, 1)
        request = create_topics.CreateTopicsRequest([topic], 10_000)
        return peers.call(user, client, create_topics.API, 6, request)

    began = time.monotonic()
    ours, kafka = create(3)  # of 1.1 tokens
    assert ours.topics[0].error_code == kafka.topics[0].error_code == 0
    ours, kafka = create(1)
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert ours.topics[0].error_code == kafka.topics[0].error_code == refused
    elapsed_ms = int((time.monotonic() - began) * 1000) + 1
    assert 0 < kafka.throttle_time_ms <= 19_000
    assert abs(ours.throttle_time_ms - kafka.throttle_time_ms) <= elapsed_ms


def test_a_user_has_no_quota_for_connections(peers: Peers) -> None:
    """Addresses have: the rate of connections counts before a client has said who it is."""
    entity = [{"entity_type": "user", "entity_name": "alice"}]
    operations = [{"key": "connection_creation_rate", "value": 1.0, "remove": False}]
    entries = [{"entity": entity, "ops": operations}]
    answers = peers.beside.same(alter_client_quotas.API, [1], entries=entries)
    assert answers.kafka["entries"][0]["error_code"] == ErrorCode.INVALID_REQUEST


def test_connections_of_an_address(peers: Peers, quotas: Quotas) -> None:
    """As many as ten seconds' worth are served, and one more for each second that passes."""
    user, source = peers.add(unique("user")), "127.0.0.9"
    quotas.set("connection_creation_rate", [({"ip": source}, 1.0)])
    served = []
    for address in peers.secure:
        began, count = time.monotonic(), 0
        for _ in range(15):
            with (
                suppress(EOFError, ConnectionError, ssl.SSLError),
                LoggedIn(address, user, "client", peers.context, source),
            ):
                count += 1
        served.append((count, time.monotonic() - began))
    for count, seconds in served:
        assert 10 <= count <= 12 + seconds
