"""Detects at once that another broker's process has ended, without waiting for its session to expire.

A watched broker has an idle connection open. When a process ends, its kernel closes its connections and refuses new
ones. So an incarnation of a broker has ended when

- the connection to it broke, and
- every address of its listener for brokers refuses a new one: the address of the broken connection, and all addresses
  of its host name now.

Nothing less is proof: neither silence nor an unreachable host, nor a refusal by an incarnation that was never reached,
because it may not listen yet. Even a proof may be wrong: a firewall can refuse connections to a live broker. So the
reaction must be as safe as the end of a session (`Coordination.process_ended`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from millstream_kafka.client.errors import BrokerError
from millstream_process import supervision

from ..coordination import BrokerRecord
from ..security.mechanisms.inter_broker import InterBroker

CONNECT_S = 5.0
PROBE_S = 1.0
PAUSE_S, MAX_PAUSE_S = 0.01, 1.0

Address = tuple[int, Any]
"""An address family, and an address as its sockets take it."""

log = logging.getLogger(__name__)


class Watches:
    """Watches incarnations of brokers. Calls `ended` on the loop, once for each whose process has ended."""

    def __init__(self, peers: InterBroker, ended: Callable[[BrokerRecord], None]) -> None:
        self._peers = peers
        self._ended = ended
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}

    def watch(self, brokers: Iterable[BrokerRecord]) -> None:
        """Watch these incarnations from now on, and no others."""
        wanted = {(broker.broker_id, broker.epoch): broker for broker in brokers}
        for key in self._tasks.keys() - wanted.keys():
            self._tasks.pop(key).cancel()
        for key in wanted.keys() - self._tasks.keys():
            self._tasks[key] = supervision.keep("watch of a broker", partial(self._watch, wanted[key]))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self.watch(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, broker: BrokerRecord) -> None:
        reached: Address | None = None
        host, port, pause = "", 0, PAUSE_S
        while True:
            try:
                connection = await self._peers.connect(
                    broker, f"watch-{self._peers.broker_id}", timeout_s=CONNECT_S
                )
            except BrokerError as error:
                if reached is not None and await is_refused(host, port, reached):
                    break
                log.debug("broker %d cannot be watched yet: %s", broker.broker_id, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_S)
                continue
            host, port, pause = connection.host, connection.port, PAUSE_S
            try:
                reached = connection.address or reached
                await connection.closed()
            finally:
                await connection.close()
            await asyncio.sleep(pause)  # a process that ends may close its connections before its listener
        log.info(
            "the process of broker %d has ended: %s:%d refuses connections", broker.broker_id, host, port
        )
        self._ended(broker)


async def is_refused(host: str, port: int, reached: Address) -> bool:
    """Whether connections are refused by the reached address and by every address of the host."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = {reached, *((int(family), address) for family, _, _, _, address in found)}
    return all(await asyncio.gather(*map(_refuses, addresses)))


async def _refuses(address: Address) -> bool:
    family, socket_address = address
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            async with asyncio.timeout(PROBE_S):
                await asyncio.get_running_loop().sock_connect(probe, socket_address)
        except ConnectionRefusedError:
            return True
        except OSError:  # a timeout is an OSError, too
            return False
    return False
