"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): clients send a signed token (JWT) of an identity provider.

    n,[a=NAME],^Aauth=Bearer TOKEN^A^A           (^A is the byte 1)

A token must be signed by a key of the provider, with an asymmetric algorithm. It must have `exp`, `iat`, the claim that
names the principal, and, where they are configured, the expected issuer and one of the expected audiences. If it has
the claim of scopes, this names each once; as in Kafka, scopes give no rights. The session ends with the token. A
refused token is answered as Kafka answers it: by a JSON object, and by the failure after the client has acknowledged
that.

Unsigned tokens are accepted only on a listener whose `sasl.server.callback.handler.class` names Kafka's handler for
them. No message has a token, or a part of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jwt

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Bytes

from ..authentication import Identity, Step, loop_time
from .json_web_keys import JsonWebKeys, Jwk

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_NAME = 1024
"""Longest name of a principal."""
LATEST_S = 2**53
"""The latest end of a token, since the epoch: a response can still tell the milliseconds until then."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Characters of JSON that no UTF-8 text has."""
_NAME = r"(?:[^=,\0\x01]|=2C|=3D)+"
_INITIAL = re.compile(
    rf"n,(?:a=(?P<authorized>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[-_.~+/A-Za-z0-9]+=*)", re.IGNORECASE)
_REFUSED = b'{"status":"invalid_token"}'
_ACKNOWLEDGED = b"\x01"


class InvalidToken(Exception):
    """The token is refused; the message says why, without the token."""


class Expected(NamedTuple):
    """What a listener requires of tokens."""

    issuer: str | None
    audiences: list[str]
    clock_skew_s: float
    principal_claim: str
    scope_claim: str = "scope"


class Token(NamedTuple):
    """An accepted token."""

    principal: str
    expires_at: float
    """Seconds since the epoch."""


def verified(token: str, key: Jwk, expected: Expected) -> Token:
    """The token, verified by this key. Raises InvalidToken."""
    try:
        algorithm = jwt.get_unverified_header(token).get("alg")
        if algorithm not in ALGORITHMS or key.get("alg", algorithm) != algorithm:
            raise InvalidToken("it is signed by an algorithm that is not accepted")
        claims = jwt.decode(
            token,
            jwt.PyJWK(dict(key), algorithm),
            [algorithm],
            audience=expected.audiences or None,
            issuer=expected.issuer,
            leeway=expected.clock_skew_s,
            options={"require": ["exp", "iat"], "verify_aud": bool(expected.audiences), "verify_sub": False},
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise InvalidToken(type(error).__name__) from None
    return _token(claims, expected)


def unsigned(token: str, expected: Expected) -> Token:
    """A token of an unsecured listener. Raises InvalidToken."""
    try:
        if jwt.get_unverified_header(token).get("alg") != "none" or not token.endswith("."):
            raise InvalidToken("it is not an unsigned token")
        claims = jwt.decode(
            token,
            options={"verify_signature": False, "verify_exp": True, "require": ["exp"], "verify_sub": False},
            leeway=expected.clock_skew_s,
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise InvalidToken(type(error).__name__) from None
    return _token(claims, expected)


def _token(claims: Mapping[str, Any], expected: Expected) -> Token:
    name, expires_at = claims.get(expected.principal_claim), claims.get("exp")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or _SURROGATE.search(name):
        raise InvalidToken(f"its claim {expected.principal_claim} names no principal")
    scopes = claims.get(expected.scope_claim)
    listed = [] if scopes is None else scopes if isinstance(scopes, list) else [scopes]
    if not all(isinstance(scope, str) and scope.strip() for scope in listed) or len(set(listed)) < len(
        listed
    ):
        raise InvalidToken(f"its claim {expected.scope_claim} names no scopes")
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        raise InvalidToken("its claim exp is no number")
    if not 0 < expires_at < LATEST_S:
        raise InvalidToken("its claim exp is no time")
    return Token(name, float(expires_at))


T = TypeVar("T")

_threads = ThreadPoolExecutor(2, "oauthbearer")
"""Of their own: tokens of clients that nobody knows must not delay reads of the disk for others."""


def _in_thread(function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(_threads, function, *arguments)


Verify = Callable[[str], Any]
"""Returns an awaitable `Token`; raises InvalidToken."""


class OAuthBearerAuthenticator:
    """The mechanism, for all connections of a listener."""

    def __init__(self, keys: JsonWebKeys | None, expected: Expected) -> None:
        """Without `keys`, the listener accepts unsigned tokens, and no others."""
        self._keys = keys
        self._expected = expected

    def begin(self) -> OAuthBearerExchange:
        return OAuthBearerExchange(self.verify)

    async def verify(self, token: str) -> Token:
        """Raises InvalidToken. Reads and verifies in a thread."""
        if self._keys is None:
            return await _in_thread(unsigned, token, self._expected)
        try:
            key_id = (await _in_thread(jwt.get_unverified_header, token)).get("kid")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise InvalidToken("it is no JSON web token") from None
        if (key := await self._keys.find(key_id)) is None:
            raise InvalidToken("its key is not among those of the provider")
        return await _in_thread(verified, token, key, self._expected)


class OAuthBearerExchange:
    """One exchange with a client."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._is_refused = False

    def guesses(self, auth_bytes: Bytes) -> str:
        return ""

    async def step(self, auth_bytes: Bytes) -> Step:
        if self._is_refused and bytes(auth_bytes) == _ACKNOWLEDGED:
            raise _failed(_REFUSED.decode())
        try:
            found = _INITIAL.fullmatch(str(auth_bytes, "utf-8"))
        except UnicodeDecodeError:
            found = None
        bearer = None if found is None else _BEARER.fullmatch(_pairs(found["pairs"]).get("auth", ""))
        if found is None or bearer is None:
            raise _failed(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
            )
        try:
            token: Token = await self._verify(bearer["token"])
        except InvalidToken as error:
            self._is_refused = True
            return Step(_REFUSED, problem=f"the token is refused: {error}")
        authorized = (found["authorized"] or "").replace("=2C", ",").replace("=3D", "=")
        if authorized not in ("", token.principal):
            raise _failed(
                f"Authentication failed: Client requested an authorization id ({authorized}) that is different from"
                f" the token's principal name ({token.principal})"
            )
        return Step(b"", Identity(f"User:{token.principal}", expires_at=loop_time(token.expires_at)))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in text.split("\x01") if pair)


def _failed(message: str) -> ApiError:
    return ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
