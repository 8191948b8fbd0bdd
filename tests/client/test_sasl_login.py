"""Logins on our own sockets: the messages of SCRAM. Logins at real listeners are in `test_secured_command`."""

from __future__ import annotations

import pytest

from millstream.sasl_login import scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_scram_sends_what_the_rfc_says() -> None:
    """The example of RFC 7677."""
    messages = scram("user", "pencil", "sha256", NONCE)
    assert next(messages) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = messages.send(SERVER_FIRST)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        messages.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([b"x"], "its reply is no SCRAM message"),
        ([b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "its reply is no SCRAM message"),
        ([SERVER_FIRST.replace(b"4096", b"4000000000")], "its reply is no SCRAM message"),
        (
            [SERVER_FIRST, b"v=AAAA"],
            "it does not know the password: it is not the broker that it claims to be",
        ),
        ([SERVER_FIRST, b"e=other-error"], "its reply is no SCRAM message"),
        ([b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="], "its reply is no SCRAM message"),
    ],
    ids=["no message", "another nonce", "endless", "impostor", "error", "the last first"],
)
def test_a_server_that_is_none_is_refused(replies: list[bytes], said: str) -> None:
    messages = scram("user", "pencil", "sha256", NONCE)
    next(messages)
    *earlier, last = replies
    for reply in earlier:
        messages.send(reply)
    with pytest.raises(ValueError, match=f"^{said}$"):
        messages.send(last)
