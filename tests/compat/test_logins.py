"""Real clients log in over TLS by each mechanism, with the authorizer on: see `millstream_harness.logins`.

Each client writes, and reads back what it wrote, with the rights that this needs and no others. It reports a wrong
credential, an authority that it does not trust, and a right that it lacks by its own error, without hanging; the
broker's log names the listener and the mistake. While its sessions end every three seconds, it keeps writing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream_broker.network import connection_lines
from millstream_harness.go_programs import built
from millstream_harness.java import ROOT, java_command
from millstream_harness.logins import FORBIDDEN, LOGINS, VALUES, LoginBroker, login_broker
from millstream_harness.node_programs import installed
from millstream_harness.tools import require

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parent / "logins"
FAILURES = ("wrong-credential", "untrusted-ca", "forbidden-topic", "forbidden-group")
WITHOUT_TOKENS = [login for login in LOGINS if login != "token"]
SCENARIOS = ("round-trip", *FAILURES, "session")


@dataclass(frozen=True)
class Client:
    """A client program, and the errors that its users see."""

    name: str
    command: Callable[[], Sequence[str]]
    errors: Mapping[str, str]
    """A pattern for each of FAILURES; SCENARIO:LOGIN for one way to log in."""
    logs: Sequence[str] = ()
    """Patterns of what the client logs where its error does not name the reason."""
    authenticates_again: bool = True
    """Whether it has KIP-368. Otherwise it opens another connection when its session has ended."""
    logins: Sequence[str] = tuple(LOGINS)
    keeps_sessions: bool = True
    """Whether it writes on when its session has ended."""

    def scenarios(self, login: str) -> Sequence[str]:
        with_sessions = self.keeps_sessions and LOGINS[login]
        return SCENARIOS if with_sessions else SCENARIOS[:-1]

    def __str__(self) -> str:
        return self.name

    def error(self, login: str, scenario: str) -> str:
        return self.errors.get(f"{scenario}:{login}") or self.errors[scenario]


def python(name: str) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, str(FOLDER / "clients.py"), name]


def java() -> Sequence[str]:
    return java_command(str(FOLDER / "Logins.java"))


def go(name: str) -> Callable[[], Sequence[str]]:
    return lambda: [str(built(FOLDER / "go", ROOT / ".cache" / "compat-logins")), name]


def kafkajs() -> Sequence[str]:
    folder = Path(__file__).parent / "node"
    return [installed(folder), str(folder / "logins.js")]


def kcat() -> Sequence[str]:
    require("kcat")
    return [sys.executable, str(FOLDER / "commands.py")]


GO_TLS = {
    # The broker closes after its alert, so the client may fail to send its first request, before it has read the alert.
    "wrong-credential:certificate": ".*(tls: unknown certificate authority|broken pipe|connection reset by peer)",
    "untrusted-ca": ".*tls: failed to verify certificate: x509: certificate signed by unknown authority",
}
PYTHON_RIGHTS = {
    "forbidden-topic": r"TopicAuthorizationFailedError: \[Error 29\] .*: forbidden",
    "forbidden-group": r"GroupAuthorizationFailedError: \[Error 30\] .*: forbidden",
}
REASONS = (
    r"SaslAuthenticationFailed.*Authentication failed: Invalid username or password",
    r"SaslAuthenticationFailed.*invalid credentials with SASL mechanism SCRAM-SHA-256",
    r"SaslAuthenticationFailed.*invalid credentials with SASL mechanism SCRAM-SHA-512",
    r"certificate verify failed: self-signed certificate in certificate chain",
)
CLIENTS = [
    Client(
        "confluent-kafka",
        python("confluent-kafka"),
        {
            "wrong-credential": ".*code=_AUTHENTICATION.*SASL authentication error: .*(failed|invalid_token).*",
            "wrong-credential:certificate": ".*tlsv1 alert unknown ca.*",
            "untrusted-ca": ".*code=_SSL.*broker certificate could not be verified, verify that ssl.ca.location .*",
            "forbidden-topic": ".*code=TOPIC_AUTHORIZATION_FAILED.*",
            "forbidden-group": ".*code=GROUP_AUTHORIZATION_FAILED.*",
        },
    ),
    Client(
        "kafka-python",
        python("kafka-python"),
        {**dict.fromkeys(FAILURES, "KafkaTimeoutError: .*Unable to bootstrap.*"), **PYTHON_RIGHTS},
        # Of a response and a close that arrive together it may see the close alone.
        ("SaslAuthenticationFailedError: .*(failed|invalid_token)", REASONS[-1]),
    ),
    Client(
        "aiokafka",
        python("aiokafka"),
        {
            **dict.fromkeys(FAILURES, "KafkaConnectionError: .*Unable to bootstrap.*"),
            **PYTHON_RIGHTS,
            "wrong-credential:token": "UnknownTopicOrPartitionError.*",  # it takes a refused token for a login
        },
        REASONS,
        authenticates_again=False,
    ),
    Client(
        "java",
        java,
        {
            "wrong-credential": ".*SaslAuthenticationException: .*(failed|invalid_token).*",
            "wrong-credential:certificate": ".*SslAuthenticationException: .*",
            "untrusted-ca": ".*SslAuthenticationException: SSL handshake failed",
            "forbidden-topic": r".*TopicAuthorizationException: Not authorized to access topics: \[forbidden\]",
            "forbidden-group": ".*GroupAuthorizationException: Not authorized to access group: forbidden",
        },
    ),
    Client(
        "franz-go",
        go("franz-go"),
        {
            "wrong-credential": "SASL_AUTHENTICATION_FAILED: .*",
            "wrong-credential:token": "unexpected data in oauth response",
            "forbidden-topic": "TOPIC_AUTHORIZATION_FAILED: .*",
            "forbidden-group": ".*GROUP_AUTHORIZATION_FAILED: .*",
            **GO_TLS,
        },
    ),
    Client(
        "kafka-go",
        go("kafka-go"),
        {
            "wrong-credential": r"\[58\] SASL Authentication Failed: .*",
            "forbidden-topic": r"\[3\] Unknown Topic Or Partition: .*",  # it requests the metadata of all topics
            "forbidden-group": r"\[30\] Group Authorization Failed: .*",
            **GO_TLS,
        },
        authenticates_again=False,
        logins=WITHOUT_TOKENS,
    ),
    Client(
        "sarama",
        go("sarama"),
        {
            "wrong-credential": ".*kafka server: SASL Authentication failed: .*",
            "forbidden-topic": "kafka server: The client is not authorized to access this topic",
            "forbidden-group": "kafka server: The client is not authorized to access this group",
            **GO_TLS,
        },
    ),
    Client(
        "kafkajs",
        kafkajs,
        {
            "wrong-credential": "KafkaJSSASLAuthenticationError: SASL .* authentication failed: .*",
            "wrong-credential:certificate": ".*(tlsv1 alert unknown ca|EPIPE|ECONNRESET|Closed connection).*",
            "wrong-credential:token": ".*Closed connection",  # it takes a refused token for a login
            "untrusted-ca": ".*Connection error: self-signed certificate in certificate chain",
            "forbidden-topic": r".*Not authorized to access topics: \[Topic authorization failed\]",
            "forbidden-group": "KafkaJSGroupCoordinatorNotFound: Failed to find group coordinator",
        },
    ),
    Client(
        "kcat",
        kcat,
        {
            "wrong-credential": ".*SASL authentication error: Authentication failed: .*",
            "wrong-credential:certificate": ".*tlsv1 alert unknown ca.*",
            # librdkafka's own words, or OpenSSL's if it asks for the verdict too early
            "untrusted-ca": ".*certificate (could not be verified, verify that ssl.ca|verify failed).*",
            "forbidden-topic": ".*Broker: Topic authorization failed.*",
            "forbidden-group": ".*Group authorization failed.*",
        },
        # It ends with its connection. By SCRAM, librdkafka 2.0.2 of Debian 12 repeats a part of the nonce.
        logins=("plain", "certificate"),
        keeps_sessions=False,
    ),
]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginBroker]:
    """All clients share it and an address, so its log is not limited: no client shall hide another's mistake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_lines, "BURST", 100_000)
        with login_broker(tmp_path_factory.mktemp("logins")) as broker:
            yield broker


@dataclass(frozen=True)
class Played:
    client: Client
    results: Mapping[str, str]
    client_log: str
    """Its standard error."""
    log: str
    """What the broker logged meanwhile."""
    audited: Sequence[Mapping[str, str]]
    """Its audit log."""

    def result(self, login: str, scenario: str) -> str:
        return self.results.get(f"{login}:{scenario}", "it was not played")


@pytest.fixture(scope="module")
def plays(secured: LoginBroker) -> dict[str, Played | BaseException]:
    """What each client has played, or why it could not: each plays once."""
    return {}


@pytest.fixture
def played(
    secured: LoginBroker, plays: dict[str, Played | BaseException], request: pytest.FixtureRequest
) -> Played:
    client: Client = request.param
    if client.name not in plays:
        try:
            plays[client.name] = play(secured, client)
        except (AssertionError, pytest.skip.Exception, pytest.fail.Exception) as error:
            plays[client.name] = error
    outcome = plays[client.name]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def play(secured: LoginBroker, client: Client) -> Played:
    command = client.command()
    begun, audited = len(secured.broker.said()), len(secured.audited())
    steps = [
        secured.step(client.name, login, each) for login in client.logins for each in client.scenarios(login)
    ]
    results, client_log = secured.play(command, steps)
    events = [json.loads(line) for line in secured.audited()[audited:].splitlines()]
    return Played(client, results, client_log, secured.broker.said()[begun:], events)


def cases(scenarios: Sequence[str]) -> list[object]:
    return [
        pytest.param(client, login, scenario, id=f"{client}-{login}-{scenario}")
        for client in CLIENTS
        for login in client.logins
        for scenario in client.scenarios(login)
        if scenario in scenarios
    ]


def stored(broker: LoginBroker, topic: str) -> list[str]:
    consumer = Consumer({"bootstrap.servers": broker.broker.bootstrap, "group.id": "none", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [(message.value() or b"").decode() for message in consumer.consume(len(VALUES), timeout=30)]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("played", "login", "scenario"), cases(["round-trip", "session"]), indirect=["played"]
)
def test_a_client_writes_and_reads(played: Played, secured: LoginBroker, login: str, scenario: str) -> None:
    assert played.result(login, scenario) == "ok"
    assert stored(secured, secured.step(played.client.name, login, scenario).topic) == VALUES


@pytest.mark.parametrize(("played", "login", "scenario"), cases(FAILURES), indirect=["played"])
def test_a_client_reports_what_is_wrong(played: Played, login: str, scenario: str) -> None:
    result = played.result(login, scenario)
    assert re.fullmatch(played.client.error(login, scenario), result), result


@pytest.mark.parametrize("played", CLIENTS, indirect=True, ids=str)
def test_a_client_logs_what_its_error_does_not_say(played: Played) -> None:
    for reason in played.client.logs:
        assert re.search(reason, played.client_log, re.IGNORECASE), reason


@pytest.mark.parametrize("played", CLIENTS, indirect=True, ids=str)
def test_the_brokers_log_names_the_listener_and_the_mistake(played: Played) -> None:
    refused = "on listener SECURE: authentication failed: "
    lines = {
        "plain": f"{refused}Authentication failed: Invalid username or password",
        "scram-256": f"{refused}.* invalid credentials with SASL mechanism SCRAM-SHA-256",
        "scram-512": f"{refused}.* invalid credentials with SASL mechanism SCRAM-SHA-512",
        "token": f"{refused}the token is refused: InvalidAudienceError",
        "certificate": "on listener MUTUAL: the TLS handshake failed: certificate verify failed: .*",
    }
    for login in played.client.logins:
        assert re.search(lines[login], played.log), login
    # aiokafka closes without an alert
    untrusted = "on listener SECURE: (the TLS handshake failed: .* alert |it ended the connection in the TLS handshake)"
    assert re.search(untrusted, played.log)


@pytest.mark.parametrize("played", CLIENTS, indirect=True, ids=str)
def test_the_audit_log_names_the_listener_and_the_missing_right(played: Played) -> None:
    denied = {
        (event["listener"], event["principal"], event["resource_type"], event["resource"])
        for event in played.audited
        if event["event"] == "denied"
    }
    # kafka-go requests the metadata of all topics, which leave out those without the right.
    kinds = ("Group",) if played.client.name == "kafka-go" else ("Group", "Topic")
    for login in played.client.logins:
        listener = "SECURE" if LOGINS[login] else "MUTUAL"
        for kind in kinds:
            assert (listener, f"User:{login}", kind, FORBIDDEN) in denied


KEEPING_SESSIONS = [client for client in CLIENTS if client.keeps_sessions]


@pytest.mark.parametrize("played", KEEPING_SESSIONS, indirect=True, ids=str)
def test_a_client_authenticates_again_or_connects_again(played: Played) -> None:
    expired = re.findall(r"on listener SHORT: \w+ after its session has expired", played.log)
    assert (not expired) == played.client.authenticates_again
