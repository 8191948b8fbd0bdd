"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677).

    client-first-message    n,,n=USER,r=NONCE
    server-first-message    r=NONCE+OURS,s=SALT,i=ITERATIONS
    client-final-message    c=biws,r=NONCE+OURS,p=PROOF
    server-final-message    v=SIGNATURE

As in Kafka, there is neither SASLprep nor channel binding. A user without a credential gets a salt, too, always the
same, and fails at the proof like a wrong password: nobody learns which users there are (`invented_credentials`). Only
the client runs the expensive function; a server computes three HMACs. Delegation tokens (the extension `tokenauth`) do
not exist here.

A message has MAX_BYTES at most: until the client's proof arrives, or its time is over, a server keeps parts of the
first one. If the credential is replaced or deleted meanwhile, the proof fails.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Bytes
from millstream_kafka.scram_mechanism import ScramMechanism

from ..authentication import Identity, Step
from ..credential_file import CredentialFile
from ..invented_credentials import InventedCredentials
from ..scram_credentials import ScramCredential, ScramCredentials

MAX_BYTES = 8192
"""Longest message: the longest name that a user can have takes half of it."""
_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_EXTENSIONS = r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*)"
_NONCE = r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?"
_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authorized>{_NAME}))?,)(?P<bare>n=(?P<user>{_NAME}),{_NONCE}{_EXTENSIONS})"
)
_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),{_NONCE}{_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_TOKEN = "tokenauth=true"


class ScramAuthenticator:
    """One of the two mechanisms, for all connections."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: ScramCredentials,
        secret: bytes,
        file: CredentialFile | None = None,
    ) -> None:
        """`secret` is the cluster's: all its brokers give a user that does not exist the same salt. Users of the
        `file` are known by it alone."""
        self._mechanism = mechanism
        self._credentials = credentials
        self._file = file
        self._invented = InventedCredentials(mechanism, credentials, secret)

    def begin(self) -> ScramExchange:
        return ScramExchange(self._mechanism, self._of, self._invented)

    def _of(self, user: str) -> tuple[ScramCredential, ...]:
        """The credentials of a user, which share salt and iterations."""
        if self._file is not None and (found := self._file.of(user, self._mechanism)):
            return found
        return self._credentials.valid(user, self._mechanism)


class ScramExchange:
    """One exchange with a client."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: Callable[[str], tuple[ScramCredential, ...]],
        invented: InventedCredentials,
        nonce: str = "",
    ) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._invented = invented
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._user = ""
        self._header = self._signed = b""
        """What the client's proof covers, except for its last message; empty until the first one."""
        self._known: tuple[ScramCredential, ...] = ()
        """The user's credentials; an invented one if there are none."""

    def guesses(self, auth_bytes: Bytes) -> str:
        return self._user if self._signed else ""

    async def step(self, auth_bytes: Bytes) -> Step:
        if len(auth_bytes) > MAX_BYTES:
            raise self._failed()
        try:
            message = str(auth_bytes, "utf-8")
        except UnicodeDecodeError:
            raise self._failed() from None
        return self._final(message) if self._signed else self._first(message)

    def _first(self, message: str) -> Step:
        found = _FIRST.fullmatch(message)
        if found is None or _TOKEN in found["extensions"].lower().split(","):
            raise self._failed()
        self._user = _plain(found["user"])
        if found["authorized"] is not None and _plain(found["authorized"]) != self._user:
            raise ApiError(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        self._known = self._credentials(self._user) or (self._invented.of(self._user),)
        credential = self._known[0]
        self._header = found["gs2"].encode()
        self._nonce = found["nonce"] + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._signed = f"{found['bare']},{answer},".encode()
        return Step(answer.encode())

    def _final(self, message: str) -> Step:
        mechanism, found = self._mechanism, _FINAL.fullmatch(message)
        if found is None or not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise self._failed()
        if _decoded(found["channel"]) not in (self._header, b"n,,"):
            raise self._failed()
        signed = self._signed + found["without_proof"].encode()
        present, proof = self._credentials(self._user), _decoded(found["proof"])
        if len(proof) != mechanism.size:
            raise self._failed()
        right = [credential for credential in self._known if self._is_proof(proof, signed, credential)]
        server_signature = mechanism.hmac((right or self._known)[0].server_key, signed)
        # an invented credential is not present, nor one that was just removed
        if not any(credential in present for credential in right):
            raise self._failed()
        answer = f"v={base64.b64encode(server_signature).decode()}"
        return Step(answer.encode(), Identity(f"User:{self._user}"))

    def _is_proof(self, proof: bytes, signed: bytes, credential: ScramCredential) -> bool:
        signature = self._mechanism.hmac(credential.stored_key, signed)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        return hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key)

    def _failed(self) -> ApiError:
        """Kafka's text, the same for every failure."""
        return ApiError(
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            f" {self._mechanism.label}",
        )


def _plain(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
