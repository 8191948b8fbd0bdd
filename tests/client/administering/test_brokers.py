"""Requests to single brokers, with the logins that librdkafka's settings name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.administering.brokers import call, run_at
from millstream.errors import Failed
from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_kafka.admin.access import ScramCredential
from millstream_kafka.client import ClusterClient, UnsupportedApi
from millstream_kafka.protocol import list_transactions
from millstream_kafka.protocol.list_transactions import ListTransactionsRequest
from millstream_kafka.scram_mechanism import ScramMechanism
from millstream_operator.kafka.admin import KafkaAdmin

USER, PASSWORD = "ann", "ann-secret"
SCRAM: dict[str, Any] = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as found:
        admin = KafkaAdmin(found.bootstrap)
        credential = ScramCredential.of_password(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD)
        admin.change_scram_users([credential], [])
        admin.close()
        yield found


def listed(address: str, config: dict[str, Any], *, since: int = 0, broker: int = 1) -> int:
    """The error of a ListTransactions request."""
    host, _, port = address.rpartition(":")

    async def work(client: ClusterClient) -> int:
        request = ListTransactionsRequest()
        return (await call(client, broker, list_transactions.API, request, since=since)).error_code

    return run_at({1: (host, int(port))}, config, work)


def test_broker_answers_after_a_scram_login(guarded: Guarded) -> None:
    assert listed(guarded.login, SCRAM) == 0
    assert listed(guarded.login, SCRAM | {"sasl.mechanism": "scram-sha-512"}) == 0
    assert listed(guarded.bootstrap, {}) == 0


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            SCRAM | {"sasl.password": "wrong"},
            "cannot be used (SCRAM-SHA-512: the broker refused user name or password: ",
        ),
        (
            SCRAM | {"sasl.mechanism": "PLAIN"},
            "cannot be used (PLAIN: the broker does not serve this mechanism: it serves SCRAM-SHA-512)",
        ),
        (
            SCRAM | {"sasl.mechanism": "GSSAPI"},
            "does not answer (this command cannot log in with sasl.mechanism=GSSAPI, only with PLAIN,"
            " SCRAM-SHA-256, SCRAM-SHA-512)",
        ),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/nowhere"},
            "does not answer (ssl.ca.location: there is no /nowhere; name a file in PEM format)",
        ),
    ],
    ids=["password", "mechanism", "unknown mechanism", "no authority"],
)
def test_error_names_the_broker_and_no_secret(guarded: Guarded, config: dict[str, Any], why: str) -> None:
    with pytest.raises(Failed) as raised:
        listed(guarded.login, config)
    assert str(raised.value).startswith(f"broker 1 at {guarded.login} {why}")
    assert str(raised.value).endswith(": see what millstream doctor says")
    assert not [secret for secret in (PASSWORD, "wrong") if secret in str(raised.value)]


def test_broker_that_does_not_run_is_named(guarded: Guarded) -> None:
    with pytest.raises(Failed, match="broker 7 is not running: start it"):
        listed(guarded.bootstrap, {}, broker=7)


def test_version_that_a_filter_needs_is_checked(guarded: Guarded) -> None:
    assert listed(guarded.bootstrap, {}, since=2) == 0
    with pytest.raises(UnsupportedApi, match="does not serve ListTransactions in version 3"):
        listed(guarded.bootstrap, {}, since=3)
