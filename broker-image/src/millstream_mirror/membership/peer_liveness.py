"""Notices when another worker's process has ended, long before its session in the group expires.

Each member puts the address of its HTTP server, this process's ``instance`` and its MirrorMaker (ownership.py) into its
JoinGroup metadata. Others keep a connection to it open, which the kernel closes when the process ends, even if it was
killed. Then they request the instance again: if nothing listens there any more, or another process does, that process
has ended.

Only a refusal counts, and only from an address that has responded with the right instance before. A worker that cannot
be reached (another network, a paused process, a lost machine) stays a member until its session expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream_kafka.client import parse_bootstrap
from millstream_process import supervision
from millstream_process.listening import is_wildcard

from .ownership import Owner

TIMEOUT_S = 1.0
PAUSE_S = 0.5
MOST_WATCHED = 8
"""Number of others that a worker watches: the next ones in the order of their member ids."""
MAX_ANSWER_BYTES = 1024
MAX_HOST, MAX_INSTANCE = 255, 64
"""Limits in characters."""

logger = logging.getLogger(__name__)


Host = Annotated[str, Meta(min_length=1, max_length=MAX_HOST)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Instance = Annotated[str, Meta(max_length=MAX_INSTANCE)]


class Peer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Raises ValueError for a field that no worker sends: every member of the group may send anything."""

    member_id: str
    host: Host
    port: Port
    instance: Instance

    def __post_init__(self) -> None:
        for text in (self.host, self.instance):
            if not (text.isascii() and text.isprintable()):
                raise ValueError("not where a worker listens")


class _Metadata(Struct, frozen=True, array_like=True):
    """A member's JoinGroup metadata."""

    host: Raw
    port: Raw
    instance: Raw
    owner: Raw | UnsetType = UNSET
    """Not in the metadata of older releases."""


class WorkerEndpoint:
    """This process's address and instance, and the MirrorMaker that it works for."""

    def __init__(self, host: str, port: int, target: str, owner: Owner | None = None) -> None:
        self.host = host
        self.port = port
        self.owner = owner
        self.instance = secrets.token_hex(16)
        self._target = parse_bootstrap(target)[0]

    async def encoded(self) -> bytes:
        """The metadata with which this process joins; the host is empty if its address is unknown."""
        host = await self._towards_target() if is_wildcard(self.host) else self.host
        owner = [self.owner] if self.owner is not None else []
        return msgspec.json.encode([host, self.port, self.instance, *owner])

    async def _towards_target(self) -> str:
        """The local address for packets to the target; sends nothing."""
        try:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=self._target
            )
        except OSError:
            return ""
        host: str = transport.get_extra_info("sockname")[0]
        transport.close()
        return host


def peers_of(metadata: Mapping[str, bytes]) -> list[Peer]:
    """The members' addresses, from their JoinGroup metadata; any client may send anything."""
    found = []
    for member_id, encoded in metadata.items():
        with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
            address = msgspec.json.decode(encoded, type=_Metadata)
            found.append(
                Peer(
                    member_id,
                    msgspec.json.decode(address.host, type=Host),
                    msgspec.json.decode(address.port, type=Port),
                    msgspec.json.decode(address.instance, type=Instance),
                )
            )
    return found


def owner_in(metadata: bytes) -> Owner | None:
    """A member's MirrorMaker; None in the metadata of an older release, or of a client that is no worker."""
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        owner = msgspec.json.decode(metadata, type=_Metadata).owner
        return msgspec.json.decode(owner, type=Owner) if owner is not UNSET else None
    return None


def next_after(member_id: str, peers: Sequence[Peer]) -> list[Peer]:
    """The peers that this member watches; in a large group, each peer is watched by some members."""
    others = sorted((peer for peer in peers if peer.member_id != member_id), key=lambda peer: peer.member_id)
    behind = sum(peer.member_id < member_id for peer in others)
    return [*others[behind:], *others[:behind]][:MOST_WATCHED]


class PeerWatch:
    """``async with``: watches ``peers``, and calls ``gone`` with the id of a member whose process has ended."""

    def __init__(self, gone: Callable[[str], Awaitable[None]]) -> None:
        self.peers: list[Peer] = []
        self._gone = gone
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [supervision.run("watch of another worker", self._watch(peer)) for peer in self.peers]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, []
        await supervision.cancel(tasks)

    async def _watch(self, peer: Peer) -> None:
        if await has_ended(peer):
            await self._gone(peer.member_id)


async def has_ended(peer: Peer) -> bool:
    """Return True once the peer's process has ended, False if it cannot be watched."""
    was_there = False
    while True:
        try:
            is_there = await _answers(peer)
        except ConnectionRefusedError:
            is_there = False
        except (OSError, TimeoutError, ValueError):
            await asyncio.sleep(PAUSE_S)
            continue
        if not is_there:
            return was_there
        if not was_there:
            logger.info("watching worker %s at %s:%d", peer.member_id, peer.host, peer.port)
        was_there = True
        opened = time.monotonic()
        await _until_closed(peer)
        await asyncio.sleep(opened + PAUSE_S - time.monotonic())


async def _answers(peer: Peer) -> bool:
    """Whether this peer's process serves HTTP at the address. Raises OSError, TimeoutError, ValueError."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(peer.host, peer.port, limit=MAX_ANSWER_BYTES)
        try:
            writer.write(b"GET /instance HTTP/1.1\r\nHost: worker\r\n\r\n")
            head, _, body = (await reader.read(MAX_ANSWER_BYTES)).partition(b"\r\n\r\n")
            while len(body) < len(peer.instance) and (more := await reader.read(MAX_ANSWER_BYTES)):
                body += more
            if not head:
                raise ValueError("no answer")
            return body == peer.instance.encode()
        finally:
            writer.close()


async def _until_closed(peer: Peer) -> None:
    """Wait until an idle connection closes: by the server, after some seconds, or by the end of the process."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(peer.host, peer.port, limit=MAX_ANSWER_BYTES)
        try:
            while await reader.read(MAX_ANSWER_BYTES):
                pass
        finally:
            writer.close()
