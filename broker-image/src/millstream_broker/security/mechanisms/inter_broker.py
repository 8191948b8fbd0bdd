"""Authentication between the brokers of a cluster.

Clients are not authenticated, so requests that only brokers may send are served only on connections that have
authenticated as a broker's. The cluster has a secret, which its first broker stores in ZooKeeper (`/cluster/secret`).
The proof is an exchange in SASL's frames (KIP-43, KIP-152), with a mechanism of our own, and only on the listener for
brokers:

    SaslHandshake      MILLSTREAM-BROKER
    SaslAuthenticate   nothing                                -> challenge: 32 random bytes
    SaslAuthenticate   broker id (int32), broker epoch (int64),
                       HMAC-SHA256(secret, challenge + id of the receiving broker + the twelve bytes before)

The secret itself is never sent. A proof is valid for one connection to one broker: if a broker reaches another one
than intended, at a reassigned address, it is refused.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable, Mapping
from ssl import SSLContext

from millstream_kafka.client.connection import MAX_RESPONSE_BYTES, Connection
from millstream_kafka.client.errors import BrokerError, ConnectFailed
from millstream_kafka.protocol import sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest
from millstream_kafka.protocol.schema import Bytes

from ...coordination import BrokerRecord
from ..authentication import Identity, Step
from ..session import PeerBroker
from ..tls.listener_tls import ListenerTls

MECHANISM = "MILLSTREAM-BROKER"
CHALLENGE_BYTES = 32
_CLAIM = struct.Struct(">iq")
_ANSWERING = struct.Struct(">i")


def _proof(secret: bytes, challenge: bytes, answering: int, claim: bytes) -> bytes:
    return hmac.digest(secret, challenge + _ANSWERING.pack(answering) + claim, "sha256")


class BrokerAuthenticator:
    """The mechanism MILLSTREAM-BROKER, at the broker of that id."""

    def __init__(self, secret: bytes, broker_id: int) -> None:
        self._secret = secret
        self._broker_id = broker_id

    def begin(self) -> BrokerExchange:
        return BrokerExchange(self._secret, self._broker_id)


class BrokerExchange:
    """One exchange with a broker."""

    def __init__(self, secret: bytes, broker_id: int) -> None:
        self._secret = secret
        self._broker_id = broker_id
        self._challenge = b""
        """Empty until the client requests it."""

    def guesses(self, auth_bytes: Bytes) -> str:
        return ""

    async def step(self, auth_bytes: Bytes) -> Step:
        if not self._challenge:
            self._challenge = os.urandom(CHALLENGE_BYTES)
            return Step(self._challenge)
        claim, proof = bytes(auth_bytes[: _CLAIM.size]), bytes(auth_bytes[_CLAIM.size :])
        if not hmac.compare_digest(proof, _proof(self._secret, self._challenge, self._broker_id, claim)):
            raise ApiError(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"This is broker {self._broker_id}: the proof was not made for it by a broker of its cluster.",
            )
        peer = PeerBroker(*_CLAIM.unpack(claim))
        return Step(b"", Identity(peer.principal, peer))


class InterBroker:
    """Connects this broker to the others."""

    def __init__(
        self,
        broker_id: int,
        listener_name: str,
        secret: bytes,
        epoch: Callable[[], int],
        encrypted: Mapping[str, ListenerTls] | None = None,
    ) -> None:
        """`epoch` returns this broker's present one; `encrypted` has this broker's listeners with TLS."""
        self.broker_id = broker_id
        self.listener_name = listener_name
        self.secret = secret
        self.epoch = epoch
        self._encrypted = encrypted or {}

    async def connect(
        self,
        broker: BrokerRecord,
        client_id: str,
        *,
        timeout_s: float,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> Connection:
        """Open a connection, authenticated as this broker; raises BrokerError.

        While `inter.broker.listener.name` changes, one broker after the other, that broker may have another listener
        for brokers than this one: then this one tries the others.
        """
        refused: BrokerError | None = None
        for endpoint in broker.endpoints(self.listener_name):
            context = None
            if endpoint.is_encrypted and (context := self._context(endpoint.name)) is None:
                problem = "it has TLS, and this broker's listener for brokers has not"
                refused = refused or ConnectFailed(endpoint.host, endpoint.port, problem)
                continue
            connection = await Connection.open(
                endpoint.host,
                endpoint.port,
                client_id,
                timeout=timeout_s,
                max_response_bytes=max_response_bytes,
                ssl=context,
            )
            try:
                if await self._authenticate(connection, broker.broker_id):
                    return connection
            except BaseException:
                await connection.close()
                raise
            await connection.close()
            refused = refused or ConnectFailed(
                endpoint.host, endpoint.port, "this is not its listener for brokers"
            )
        assert refused is not None
        raise refused

    def _context(self, name: str) -> SSLContext | None:
        """The context for a listener of another broker: its namesake's, or that of the listener for brokers."""
        for each in (name, self.listener_name):
            if (tls := self._encrypted.get(each)) is not None and tls.client is not None:
                return tls.client
        return None

    async def _authenticate(self, connection: Connection, answering: int) -> bool:
        """False if the listener is not for brokers."""
        handshake = await connection.call(sasl_handshake.API, 1, SaslHandshakeRequest(MECHANISM))
        if handshake.error_code:
            return False
        challenge = await connection.call(sasl_authenticate.API, 2, SaslAuthenticateRequest(b""))
        claim = _CLAIM.pack(self.broker_id, self.epoch())
        proof = claim + _proof(self.secret, bytes(challenge.auth_bytes), answering, claim)
        verdict = await connection.call(sasl_authenticate.API, 2, SaslAuthenticateRequest(proof))
        if error := challenge.error_code or verdict.error_code:
            problem = (
                f"it refuses this broker's proof of belonging to its cluster: {ErrorCode.of(error).name}"
            )
            raise ConnectFailed(connection.host, connection.port, problem)
        return True
