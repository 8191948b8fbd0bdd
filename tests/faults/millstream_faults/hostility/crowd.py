"""Thousands of connections that have not logged in: what they cost a broker in memory.

    make faults FAULTS="crowd --connections 10000"

For each listener (PLAIN text, SASL, SASL over TLS) and each behaviour, it opens that many connections from several
addresses of this machine, keeps them for a while, and closes them. The table has the broker's memory before, at most
and afterwards. Meanwhile another client must be served. It ends with 1 if a connection costs more than MOST_EACH, or
if nobody else was served.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import resource
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest

from ..options import add_out, parsed
from ..secured import Secured
from .messages import frame
from .samples import MB, Usage, usage
from .unauthenticated import Target, Tls, Wire, context, hello

LISTENERS = {"PLAIN": "PLAINTEXT", "CLEAR": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"}
AT_ONCE = 200
"""Connections that are opened at the same time."""
HOLD_S = 8.0
OPENING_S = 140.0
"""Limit for the opening: a busy machine makes some hundred TLS handshakes a second."""
SETTLE_S = 3.0
SAMPLE_S = 0.25
SPARE_DESCRIPTORS = 500
SMALL = 16 * 1024
FIRST = 8000
"""Bytes of a first message of SCRAM, nearly the longest."""
MOST_EACH = 96 * 1024
"""Most memory for a connection before it has logged in, on average."""
SLACK = 64 * MB


async def nothing(wire: Wire, drawn: random.Random) -> None:
    """Connects, and that is all."""


async def slowly(wire: Wire, drawn: random.Random) -> None:
    """The beginning of a request or of a handshake, a byte at a time."""
    data = (
        hello(_CONTEXT)
        if wire.target.listener == "SECURE"
        else struct.pack(">i", 1000) + drawn.randbytes(100)
    )
    for byte in data[:20]:
        await wire.send(bytes([byte]))
        await asyncio.sleep(2.0)


async def rubbish(wire: Wire, drawn: random.Random) -> None:
    await wire.send(drawn.randbytes(300))


async def much(wire: Wire, drawn: random.Random) -> None:
    """As much of a request as a broker keeps of one: all but its last byte."""
    await wire.send(struct.pack(">i", SMALL) + b"\0" * (SMALL - 1))


async def half_a_login(wire: Wire, drawn: random.Random) -> None:
    """The first message of SCRAM, with a long name."""
    await wire.send(login())


async def handshake(wire: Wire, drawn: random.Random) -> None:
    """TLS, and nothing else."""
    await Tls(wire, _CONTEXT).shake()


async def half_a_login_over_tls(wire: Wire, drawn: random.Random) -> None:
    tls = Tls(wire, _CONTEXT)
    await tls.shake()
    await tls.send(login())


def login() -> bytes:
    first = b"n,,n=" + b"u" * (FIRST // 2) + b",r=" + b"n" * (FIRST // 2)
    return frame(sasl_handshake.API, 1, SaslHandshakeRequest("SCRAM-SHA-512")) + frame(
        sasl_authenticate.API, 1, SaslAuthenticateRequest(first)
    )


Behaviour = Callable[[Wire, random.Random], Awaitable[None]]
BEHAVIOURS: Mapping[str, Mapping[str, Behaviour]] = {
    "PLAIN": {"nothing": nothing, "slowly": slowly, "rubbish": rubbish, "much": much},
    "CLEAR": {
        "nothing": nothing,
        "slowly": slowly,
        "rubbish": rubbish,
        "much": much,
        "half a login": half_a_login,
    },
    "SECURE": {
        "nothing": nothing,
        "slowly": slowly,
        "rubbish": rubbish,
        "handshake": handshake,
        "half a login": half_a_login_over_tls,
    },
}
_CONTEXT: ssl.SSLContext = context()


class Crowd:
    """Connections of one kind to one listener."""

    def __init__(
        self, broker: BrokerProcess, target: Target, behave: Behaviour, count: int, seed: int
    ) -> None:
        self.broker = broker
        self.target = target
        self.behave = behave
        self.count = count
        self.drawn = random.Random(seed)
        self.samples: list[Usage] = []
        self.served = self.unserved = 0
        self._places = asyncio.Semaphore(AT_ONCE)
        self._opened = 0
        self._are_open, self._is_over = asyncio.Event(), asyncio.Event()

    async def gather(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Open all, hold them, close them; `ask` is another client's request meanwhile."""
        self._sample()
        watching = asyncio.create_task(self._watch(ask))
        connections = [asyncio.create_task(self._connect()) for _ in range(self.count)]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._are_open.wait(), OPENING_S)
        await asyncio.sleep(HOLD_S)
        self._is_over.set()
        await asyncio.gather(*connections, return_exceptions=True)
        watching.cancel()
        await asyncio.sleep(SETTLE_S)
        self._sample()

    async def _connect(self) -> None:
        async with contextlib.AsyncExitStack() as open_until:
            async with self._places:
                try:
                    wire = await open_until.enter_async_context(Wire(self.drawn, self.target))
                    behaving = asyncio.ensure_future(self.behave(wire, self.drawn))
                    await asyncio.wait([behaving], timeout=0.0 if self.behave is slowly else 30.0)
                except (OSError, TimeoutError):
                    return
                finally:
                    self._opened += 1
                    if self._opened == self.count:
                        self._are_open.set()
            await self._is_over.wait()
            behaving.cancel()
            await asyncio.gather(behaving, return_exceptions=True)

    async def _watch(self, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            self._sample()
            try:
                await ask()
                self.served += 1
            except (BrokerError, TimeoutError):
                self.unserved += 1
            await asyncio.sleep(SAMPLE_S)

    def _sample(self) -> None:
        assert self.broker.process is not None
        self.samples.append(usage(self.broker.process.pid, time.monotonic()))

    def row(self) -> tuple[str, list[str]]:
        """A line of the table, and what is wrong."""
        before, after = self.samples[0], self.samples[-1]
        most = max(each.memory for each in self.samples)
        opened = max(each.descriptors for each in self.samples) - before.descriptors
        text = (
            f"{opened:6} at once   memory {before.memory // MB:4} MB before, {most // MB:4} at most,"
            f" {after.memory // MB:4} afterwards   others: {self.served} requests served, {self.unserved} not"
        )
        wrong = []
        if most - before.memory > self.count * MOST_EACH + SLACK:
            wrong.append(
                f"{(most - before.memory) // self.count} bytes for each connection: at most {MOST_EACH}"
            )
        if self.unserved > self.served:
            wrong.append("others were not served")
        return text, wrong


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make faults FAULTS="crowd', description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="how many (10000)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the rubbish; a new one each time"
    )
    parser.add_argument("--listeners", default=",".join(LISTENERS), help="only these: 'CLEAR,SECURE'")
    add_out(parser)
    return parsed(parser, given)


async def crowds(broker: BrokerProcess, ports: Mapping[str, int], wanted: argparse.Namespace) -> list[str]:
    """Prints the table; returns what is wrong."""
    found = []

    async def ask() -> None:
        connection = await Connection.open("127.0.0.1", ports["PLAIN"], "another", timeout=10.0)
        await connection.close()

    for listener in wanted.listeners.split(","):
        for name, behave in BEHAVIOURS[listener].items():
            target = Target(listener, ports[listener])
            crowd = Crowd(broker, target, behave, wanted.connections, wanted.seed)
            await crowd.gather(ask)
            text, wrong = crowd.row()
            print(f"{listener:7} {name:13} {text}", flush=True)
            found += [f"{listener}, {name}: {each}" for each in wrong]
    return found


def main(given: list[str]) -> int:
    wanted = arguments(given)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted.connections + SPARE_DESCRIPTORS:
        most = min(hard, wanted.connections + SPARE_DESCRIPTORS) if hard != resource.RLIM_INFINITY else soft
        print(
            f"faults: --connections {wanted.connections}: this process may have {soft} file descriptors; at most"
            f" {most - SPARE_DESCRIPTORS} connections, or raise the limit (ulimit -n)",
            file=sys.stderr,
        )
        return 2
    out = (wanted.out or Path(tempfile.mkdtemp(prefix="millstream-crowd-"))).resolve()
    secured = Secured(out / "secured", [1])
    ports = {name: fixed_port() for name in LISTENERS}
    config = {
        "broker.id": "1",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
        "inter.broker.listener.name": "PLAIN",
        **secured.config(1, "CLEAR", "SECURE"),
    }
    with BrokerProcess(out / "broker", config) as broker:
        wrong = asyncio.run(crowds(broker, ports, wanted))
        if (traces := broker.said().count("Traceback")) > 0:
            wrong.append(f"{traces} stack traces in {broker.output}")
    print("\n".join([f"violations: {len(wrong)}", *wrong]))
    return 1 if wrong else 0
