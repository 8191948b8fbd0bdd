"""What clients without credentials do. Each attack opens a connection of its own, and returns what came back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import shutil
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from millstream_kafka.client.scram import ScramClient
from millstream_kafka.protocol import api_versions, sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.api_versions import ApiVersionsRequest
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest

from ..secured import ADMIN
from .lab import MALLORY, REGULAR, Lab
from .messages import any_frame, frame, mutated

SOURCES = [f"127.0.0.{number}" for number in range(2, 32)]
"""Addresses of attackers; the others have 127.0.0.1."""
WAIT_S = 3.0
"""How long an attacker waits for an answer."""
MOST_RECEIVED = 1 << 20
MECHANISMS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "MILLSTREAM-BROKER",
    "GSSAPI",
    "",
    "x" * 3000,
)
LOGIN = {sasl_handshake.API.key, sasl_authenticate.API.key, api_versions.API.key}


class Outcome(NamedTuple):
    """Of one attack: how it ended, in a word, and all that the broker sent, decrypted if need be."""

    end: str
    received: bytes = b""
    is_served: bool = False
    """Whether the broker did something that needs a credential."""


class Target(NamedTuple):
    listener: str
    port: int


class Wire:
    """One connection of an attacker."""

    def __init__(self, drawn: random.Random, target: Target) -> None:
        self.drawn = drawn
        self.target = target
        self.received = bytearray()
        self._loop = asyncio.get_running_loop()
        self.socket = socket.socket()
        self.socket.setblocking(False)

    async def __aenter__(self) -> Wire:
        self.socket.bind((self.drawn.choice(SOURCES), 0))
        await asyncio.wait_for(self._loop.sock_connect(self.socket, ("127.0.0.1", self.target.port)), WAIT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.drawn.random() < 0.3:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.socket, data), WAIT_S)

    async def receive(self, wait_s: float = WAIT_S) -> bytes:
        """Empty at the end. Raises TimeoutError."""
        found = await asyncio.wait_for(self._loop.sock_recv(self.socket, 65536), wait_s)
        if len(self.received) < MOST_RECEIVED:
            self.received += found
        return found

    async def to_the_end(self, wait_s: float = WAIT_S) -> str:
        """How it ends."""
        try:
            async with asyncio.timeout(wait_s):
                while await self.receive(wait_s):
                    pass
        except TimeoutError:
            return "left open"
        except OSError:
            return "reset"
        return "closed"


class Tls:
    """TLS over a wire, whose records may be changed on their way."""

    def __init__(self, wire: Wire, context: ssl.SSLContext) -> None:
        self.wire = wire
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.decrypted = bytearray()

    async def shake(self, change: Callable[[bytes], bytes] = bytes) -> None:
        """Raises OSError (TLS, too), TimeoutError."""
        while True:
            try:
                self.tls.do_handshake()
                await self.wire.send(change(self.outgoing.read()))
                return
            except ssl.SSLWantReadError:
                if data := self.outgoing.read():
                    await self.wire.send(change(data))
                found = await self.wire.receive()
                if not found:
                    raise ConnectionResetError from None
                self.incoming.write(found)

    async def send(self, data: bytes, change: Callable[[bytes], bytes] = bytes) -> None:
        self.tls.write(data)
        await self.wire.send(change(self.outgoing.read()))

    async def receive(self) -> bytes:
        """Raises OSError, TimeoutError."""
        while True:
            try:
                found = self.tls.read(65536)
                self.decrypted += found
                return found
            except ssl.SSLWantReadError:
                data = await self.wire.receive()
                if not data:
                    return b""
                self.incoming.write(data)


def context(newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """An attacker trusts anybody."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    found.maximum_version = newest
    return found


class Unauthenticated:
    """Attacks on all listeners of a cluster; equal seeds give equal ones."""

    def __init__(self, lab: Lab, drawn: random.Random) -> None:
        self.lab = lab
        self.drawn = drawn
        self.recorded: dict[str, bytes] = {}
        """What a login sent in clear text, by listener: for replays."""
        self._contexts = [context(), context(ssl.TLSVersion.TLSv1_2)]

    def target(self, *listeners: str) -> Target:
        listener = self.drawn.choice(listeners)
        return Target(listener, self.drawn.choice(list(self.lab.cluster.ports.values()))[listener])

    async def attack(self) -> tuple[str, Outcome]:
        """One attack of any kind."""
        name = self.drawn.choice(list(_KINDS))
        try:
            return name, await asyncio.wait_for(_KINDS[name](self), 60.0)
        except (OSError, TimeoutError) as error:
            return name, Outcome(type(error).__name__)

    # Bytes

    async def nothing(self) -> Outcome:
        async with Wire(self.drawn, self.target("CLEAR", "SECURE", "MUTUAL", "BROKERS")) as wire:
            return Outcome(await wire.to_the_end(self.drawn.uniform(0.1, 15.0)), bytes(wire.received))

    async def rubbish(self) -> Outcome:
        """Also another protocol, or TLS where there is none, and none where there is."""
        drawn = self.drawn
        data = drawn.choice(
            (
                drawn.randbytes(drawn.choice((1, 4, 50, 3000))),
                b"GET / HTTP/1.1\r\n\r\n",
                b"SSH-2.0-x\r\n",
                hello(self._contexts[0]),
                any_frame(drawn)[1],
                b"\0" * 2000,
            )
        )
        async with Wire(drawn, self.target("CLEAR", "SECURE", "MUTUAL")) as wire:
            await wire.send(data)
            return Outcome(await wire.to_the_end(), bytes(wire.received))

    async def claims(self) -> Outcome:
        """A frame that claims another size than it has, or one that is too large."""
        size = self.drawn.choice((-1, 0, 1, 7, 8, 1 << 19, (1 << 19) + 1, 1 << 24, 0x7FFFFFFF, -0x80000000))
        data = struct.pack(">i", size) + self.drawn.randbytes(self.drawn.choice((0, 8, 4000)))
        async with Wire(self.drawn, self.target("CLEAR", "BROKERS")) as wire:
            await wire.send(data)
            return Outcome(await wire.to_the_end(), bytes(wire.received))

    async def slowly(self) -> Outcome:
        """A request or a handshake, byte by byte."""
        target = self.target("CLEAR", "SECURE", "MUTUAL")
        data = any_frame(self.drawn)[1] if target.listener == "CLEAR" else hello(self._contexts[0])
        async with Wire(self.drawn, target) as wire:
            for byte in data[:25]:
                await wire.send(bytes([byte]))
                await asyncio.sleep(self.drawn.uniform(0.1, 1.0))
            return Outcome(await wire.to_the_end(), bytes(wire.received))

    # TLS

    async def fuzzed_handshake(self) -> Outcome:
        async with Wire(self.drawn, self.target("SECURE", "MUTUAL")) as wire:
            tls = Tls(wire, self.drawn.choice(self._contexts))
            good = self.drawn.choice((0, 0, 1))

            def change(data: bytes) -> bytes:
                nonlocal good
                good -= 1
                return data if good >= 0 else mutated(self.drawn, data)

            with contextlib.suppress(OSError, TimeoutError):
                await tls.shake(change)
            return Outcome(await wire.to_the_end(), bytes(wire.received))

    async def fuzzed_records(self) -> Outcome:
        """A handshake, and then records that are changed, repeated or in another order."""
        drawn = self.drawn
        async with Wire(drawn, self.target("SECURE")) as wire:
            tls = Tls(wire, drawn.choice(self._contexts))
            await tls.shake()
            requests = [frame(api_versions.API, 3, ApiVersionsRequest()), any_frame(drawn)[1]]
            records = []
            for each in requests:
                tls.tls.write(each)
                records.append(tls.outgoing.read())
            match drawn.randrange(4):
                case 0:
                    records = [mutated(drawn, record) for record in records]
                case 1:
                    records.reverse()
                case 2:
                    records = [records[0], records[0]]
                case _:
                    records = [records[0][: len(records[0]) // 2], records[1]]
            await wire.send(b"".join(records))
            return Outcome(await wire.to_the_end(), bytes(wire.received))

    async def without_certificate(self) -> Outcome:
        """A listener that requires certificates; in TLS 1.3 a client learns of the refusal after its handshake."""
        async with Wire(self.drawn, self.target("MUTUAL")) as wire:
            tls = Tls(wire, self.drawn.choice(self._contexts))
            await tls.shake()
            await tls.send(frame(api_versions.API, 3, ApiVersionsRequest()))
            found = await tls.receive()
            return Outcome("answered" if found else "closed", bytes(tls.decrypted), bool(found))

    async def renegotiates(self) -> Outcome:
        """By the command openssl: R renegotiates (TLS 1.2), K updates keys (TLS 1.3)."""
        openssl = shutil.which("openssl")
        if openssl is None:
            return Outcome("no command openssl")
        version, letter = self.drawn.choice((("-tls1_2", "R"), ("-tls1_3", "K")))
        command = [openssl, "s_client", "-connect", f"127.0.0.1:{self.target('SECURE').port}", version]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            await asyncio.sleep(1.0)
            out, _ = await asyncio.wait_for(process.communicate(f"{letter}\n".encode() * 20), 10.0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return Outcome("renegotiated" if out.count(b"verify return") > 3 else "refused", out)

    # SASL

    async def any_order(self) -> Outcome:
        """Frames of a login and others, in any order and size."""
        drawn = self.drawn
        async with Wire(drawn, self.target("CLEAR", "BROKERS")) as wire:
            for _ in range(drawn.randint(1, 6)):
                await wire.send(self.sasl_frame())
                with contextlib.suppress(TimeoutError):
                    if not await wire.receive(drawn.choice((0.01, 0.3))):
                        break
            return Outcome(await wire.to_the_end(1.0), bytes(wire.received))

    def sasl_frame(self) -> bytes:
        drawn = self.drawn
        match drawn.randrange(6):
            case 0:
                return frame(api_versions.API, drawn.randint(0, 4), ApiVersionsRequest())
            case 1 | 2:
                return frame(
                    sasl_handshake.API, drawn.randint(0, 1), SaslHandshakeRequest(drawn.choice(MECHANISMS))
                )
            case 3:
                return frame(
                    sasl_authenticate.API, drawn.randint(0, 2), SaslAuthenticateRequest(self.token())
                )
            case 4:
                token = self.token()
                return struct.pack(">i", len(token)) + token
            case _:
                return any_frame(drawn)[1]

    def token(self) -> bytes:
        """Of any mechanism, wrong."""
        drawn = self.drawn
        user = drawn.choice((ADMIN, REGULAR, MALLORY, "nobody", "u" * drawn.choice((300, 20_000, 400_000))))
        token = drawn.choice(
            (
                f"\0{user}\0wrong".encode(),
                f"{ADMIN}\0{user}\0wrong".encode(),
                f"n,,n={user},r={drawn.randrange(1 << 60):x}".encode(),
                f"n,a={ADMIN},n={user},r=abc".encode(),
                f"n,,n={user},r=abc,tokenauth=true".encode(),
                f"c=biws,r=abc,p={base64.b64encode(drawn.randbytes(64)).decode()}".encode(),
                f"n,,\x01auth=Bearer {base64.b64encode(drawn.randbytes(60)).decode()}\x01\x01".encode(),
                b"\x01",
                b"",
                drawn.randbytes(44),
            )
        )
        return token if drawn.random() < 0.7 else mutated(drawn, token)

    async def wrong_password(self) -> Outcome:
        drawn = self.drawn
        mechanism = drawn.choice(MECHANISMS[1:3])
        client = ScramClient(mechanism, drawn.choice((ADMIN, REGULAR, MALLORY, "nobody")), "wrong")
        async with Wire(drawn, self.target("CLEAR")) as wire:
            await wire.send(frame(sasl_handshake.API, 1, SaslHandshakeRequest(mechanism)))
            await answer(wire)
            await wire.send(frame(sasl_authenticate.API, 1, SaslAuthenticateRequest(client.first())))
            found = sasl_authenticate.API.decode_response(1, await answer(wire), 4)
            final = client.final(bytes(found.auth_bytes))
            await wire.send(frame(sasl_authenticate.API, 1, SaslAuthenticateRequest(final)))
            found = sasl_authenticate.API.decode_response(1, await answer(wire, 15.0), 4)
            return Outcome(
                "accepted" if not found.error_code else "refused", bytes(wire.received), not found.error_code
            )

    async def replay(self) -> Outcome:
        """What a login of a user sent, again."""
        drawn = self.drawn
        if not self.recorded:
            await self.record()
        target = self.target("CLEAR")
        async with Wire(drawn, target) as wire:
            await wire.send(drawn.choice(list(self.recorded.values())))
            end = await wire.to_the_end()
            # A refusal has an error code; the last frame of a login that succeeds proves the server's knowledge.
            return Outcome(end, bytes(wire.received), b"v=" in wire.received)

    async def record(self) -> None:
        """Log in once as a user in clear text, and keep what the client sent."""
        mechanism = "SCRAM-SHA-512"
        client = ScramClient(mechanism, MALLORY, self.lab.passwords[MALLORY])
        async with Wire(self.drawn, self.target("CLEAR")) as wire:
            sent = [frame(sasl_handshake.API, 1, SaslHandshakeRequest(mechanism))]
            await wire.send(sent[-1])
            await answer(wire)
            sent.append(frame(sasl_authenticate.API, 1, SaslAuthenticateRequest(client.first())))
            await wire.send(sent[-1])
            found = sasl_authenticate.API.decode_response(1, await answer(wire), 4)
            sent.append(
                frame(
                    sasl_authenticate.API, 1, SaslAuthenticateRequest(client.final(bytes(found.auth_bytes)))
                )
            )
            await wire.send(sent[-1])
            found = sasl_authenticate.API.decode_response(1, await answer(wire), 4)
            client.verify(bytes(found.auth_bytes))
            self.recorded["CLEAR"] = b"".join(sent)


async def answer(wire: Wire, wait_s: float = WAIT_S) -> bytes:
    """One frame, without its size. Raises OSError, TimeoutError."""
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        found = await wire.receive(wait_s)
        if not found:
            raise ConnectionResetError("closed")
        data += found
    return bytes(data[4:])


def hello(of: ssl.SSLContext) -> bytes:
    """The first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        of.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


_KINDS: Mapping[str, Callable[[Unauthenticated], Awaitable[Outcome]]] = {
    "sends nothing": Unauthenticated.nothing,
    "rubbish": Unauthenticated.rubbish,
    "claims a size": Unauthenticated.claims,
    "slowly": Unauthenticated.slowly,
    "fuzzed handshake": Unauthenticated.fuzzed_handshake,
    "fuzzed records": Unauthenticated.fuzzed_records,
    "no certificate": Unauthenticated.without_certificate,
    "renegotiates": Unauthenticated.renegotiates,
    "SASL in any order": Unauthenticated.any_order,
    "wrong password": Unauthenticated.wrong_password,
    "replay": Unauthenticated.replay,
}
