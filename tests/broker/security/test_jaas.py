"""JAAS configuration of PLAIN's users, and the mechanism."""

from __future__ import annotations

import pytest

from millstream_broker.config.jaas import JaasError, parse_jaas
from millstream_broker.security.mechanisms.plain import PlainAuthenticator
from millstream_kafka.protocol.errors import ApiError, ErrorCode

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('M required user_alice="a secret";', {"user_alice": "a secret"}),
        ("M required;", {}),
        (" M\n REQUIRED\n a=b\n c='d e' ; ", {"a": "b", "c": "d e"}),
        (r'M required a="q\"q;=" b="\\n\n";', {"a": 'q"q;=', "b": "\\n\n"}),
        ('M required "user_a b"="x";', {"user_a b": "x"}),
        ("M sufficient /* users */ a=b // the end\n;", {"a": "b"}),
        ('M optional user_ü@x="ü" a = "1";', {"user_ü@x": "ü", "a": "1"}),
    ],
)
def test_options_are_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == ("M", options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "M required",
        'M always a="hidden";',
        'M required a="hidden"',
        'M required a="hidden;',
        "M required hidden;",
        'M required a="hidden"; N required;',
        'M required a="hidden" trailing;',
    ],
)
def test_anything_else_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(JaasError) as refused:
        parse_jaas(text)
    assert "hidden" not in str(refused.value)


def test_a_module_shows_no_values() -> None:
    assert repr(parse_jaas(f'{MODULE} required user_alice="hidden";')) == f"LoginModule({MODULE})"


USERS = f'{MODULE} required user_alice="right" user_ü="ü";'


async def test_users_log_in_by_their_passwords() -> None:
    for message, user in ((b"\0alice\0right", "alice"), ("ü\0ü\0ü".encode(), "ü")):
        step = await PlainAuthenticator(lambda: USERS).begin().step(message)
        assert step.identity is not None
        assert (step.auth_bytes, step.identity.principal) == (b"", f"User:{user}")


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0alice\0right ",
        b"\0nobody\0right",
        b"\0nobody\0",
        b"\0\0right",
        b"\0alice\0right\0",
        b"bob\0alice\0right",
        b"alice",
        b"\0alice\0\xff",
        b"\0alice\0" + b"x" * 500_000,
    ],
)
@pytest.mark.parametrize("users", [USERS, f"{MODULE} required;"])
async def test_anything_else_fails(message: bytes, users: str) -> None:
    with pytest.raises(ApiError) as failed:
        await PlainAuthenticator(lambda: users).begin().step(message)
    assert failed.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "right" not in str(failed.value)


async def test_users_are_those_of_the_moment() -> None:
    users: str | None = None
    plain = PlainAuthenticator(lambda: users)
    with pytest.raises(ApiError):
        await plain.step(b"\0alice\0right")
    users = USERS
    assert (await plain.step(b"\0alice\0right")).identity is not None
