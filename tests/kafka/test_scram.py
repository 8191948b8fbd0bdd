"""SCRAM's messages: the example of RFC 7677, and untrustworthy servers."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from millstream_kafka.client.scram import MAX_ITERATIONS, ScramClient, ScramError

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()


def client(password: str = "pencil") -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", password, NONCE)


def test_the_example_of_the_rfc() -> None:
    scram = client()
    assert scram.first() == f"n,,n=user,r={NONCE}".encode()
    assert scram.final(SERVER_FIRST) == (
        f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_names_are_escaped() -> None:
    assert ScramClient("SCRAM-SHA-512", "a=b,c", "", "x").first() == b"n,,n=a=3Db=2Cc,r=x"


def test_each_exchange_has_a_nonce_of_its_own() -> None:
    assert ScramClient("SCRAM-SHA-256", "u", "p").first() != ScramClient("SCRAM-SHA-256", "u", "p").first()


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    """It stored nothing: it accepts any proof, and signs with a guessed password."""
    scram, said = client("pencil"), SERVER_FIRST
    final = scram.final(said).decode()
    salted = hashlib.pbkdf2_hmac("sha256", b"pen", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    message = f"n=user,r={NONCE},{said.decode()},{final.rpartition(',p=')[0]}".encode()
    signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    with pytest.raises(ScramError, match="does not prove"):
        scram.verify(b"v=" + base64.b64encode(signature))


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "nonce"),
        (f"r={SERVER_NONCE},s=,i=4096".encode(), "salt"),
        (f"r={SERVER_NONCE},s=***,i=4096".encode(), "not one of SCRAM"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1".encode(), "iterations"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i={MAX_ITERATIONS + 1}".encode(), "iterations"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i={'9' * 5000}".encode(), "iterations"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=-1".encode(), "iterations"),
        (b"m=x,r=1", "extension"),
        (b"\xff", "UTF-8"),
        (b"", "not one of SCRAM"),
    ],
)
def test_what_a_server_may_not_send(server: bytes, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        client().final(server)


@pytest.mark.parametrize(
    "server",
    [b"v=", b"v=AAAA", b"e=invalid-proof", b"x=1", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95H4="],
)
def test_what_a_server_may_not_end_with(server: bytes) -> None:
    scram = client()
    scram.final(SERVER_FIRST)
    with pytest.raises(ScramError):
        scram.verify(server)


def test_the_text_of_a_server_becomes_one_short_line() -> None:
    scram = client()
    scram.final(SERVER_FIRST)
    with pytest.raises(ScramError) as refusal:
        scram.verify(b"e=other\nERROR " + b"x" * 60_000)
    assert str(refusal.value) == "it refused the proof: other ERROR " + "x" * 188


def test_no_server_keeps_the_client_busy_for_long() -> None:
    assert MAX_ITERATIONS == 100_000


def test_the_end_without_the_rest_proves_nothing() -> None:
    with pytest.raises(ScramError):
        client().verify(b"v=")
