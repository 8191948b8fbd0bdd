"""Workers notice the end of another's process, and take over its partitions before its session expires."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import Callable

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, arrived, create, produce
from millstream_harness.scenario import eventually, unique
from millstream_harness.serving import serving
from millstream_mirror.membership.peer_liveness import (
    MOST_WATCHED,
    PAUSE_S,
    Peer,
    WorkerEndpoint,
    has_ended,
    next_after,
    peers_of,
)
from millstream_process.http import HttpServer, Response

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
FLOOD = 16 * 1024 * 1024


async def test_member_metadata_has_address() -> None:
    here = WorkerEndpoint("127.0.0.1", 9404, "127.0.0.1:9092")
    anywhere = WorkerEndpoint("0.0.0.0", 9405, "127.0.0.1:9092")
    said = {
        "a": await here.encoded(),
        "older": b"",
        "b": await anywhere.encoded(),
        "no port": b'["a", 70000, "b"]',
        "c": b"null",
        "infinite": b'["a", 1e999, "b"]',
        "deep": b"[" * 5000,
        "long host": b'["%s", 1, "b"]' % (b"a" * 256),
        "long instance": b'["a", 1, "%s"]' % (b"b" * 65),
        "numbers": b"[1, 2, 3]",
    }
    assert peers_of(said) == [
        Peer("a", "127.0.0.1", 9404, here.instance),
        Peer("b", "127.0.0.1", 9405, anywhere.instance),
    ]
    nowhere = WorkerEndpoint("0.0.0.0", 9405, "no-such-host.invalid:9092")
    assert peers_of({"nowhere": await nowhere.encoded()}) == []


def test_each_member_is_watched_by_predecessors() -> None:
    peers = [Peer(f"{number:02}", "host", 1, "") for number in range(20)]
    watched = {one.member_id: [peer.member_id for peer in next_after(one.member_id, peers)] for one in peers}
    assert watched["18"] == ["19", "00", "01", "02", "03", "04", "05", "06"]
    assert all(sum(one.member_id in of_one for of_one in watched.values()) == MOST_WATCHED for one in peers)
    assert [peer.member_id for peer in next_after("b", [Peer("b", "h", 1, ""), Peer("a", "h", 2, "")])] == [
        "a"
    ]


@pytest.mark.parametrize("answer", [b"another", None])
async def test_unknown_process_has_not_ended(answer: bytes | None) -> None:
    """A wrong or unreachable address is no proof of an ended process."""
    server = HttpServer({"/instance": lambda: Response(answer or b"")})
    port = await server.start("127.0.0.1", 0) if answer else fixed_port()
    assert not await has_ended(Peer("a", "127.0.0.1", port, "this"))
    await server.close()


@pytest.mark.parametrize("successor", [True, False])
async def test_replaced_listener_means_process_has_ended(successor: bool) -> None:
    requested = asyncio.Event()

    def instance() -> Response:
        requested.set()
        return Response(b"this")

    server = HttpServer({"/instance": instance})
    port = await server.start("127.0.0.1", fixed_port())
    watching = asyncio.create_task(has_ended(Peer("a", "127.0.0.1", port, "this")))
    await requested.wait()
    await server.close()
    if successor:
        server = HttpServer({"/instance": lambda: Response(b"that")})
        await server.start("127.0.0.1", port)
    assert await watching
    await server.close()


async def test_hostile_peer_costs_little() -> None:
    """Every member of the group may name any address."""
    connections = 0
    flooded = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 2:
            with contextlib.suppress(OSError):
                for _ in range(FLOOD >> 16):
                    writer.write(bytes(1 << 16))
                    await writer.drain()
            flooded.set()
        elif connections % 2:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nthis")

    async with serving(serve) as port:
        watching = asyncio.create_task(has_ended(Peer("a", "127.0.0.1", port, "this")))
        tracemalloc.start()
        await flooded.wait()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < FLOOD / 4, "what it sends is dropped"
        connections = 2
        await asyncio.sleep(3 * PAUSE_S)
        assert connections < 12, "two connections for each pause"
        watching.cancel()


def test_partitions_of_killed_worker_continue(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("shared")
    create(west, topic, 4)
    produce(west, topic, range(400), 4)
    one, other = (
        start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
        for _ in range(2)
    )

    def shares() -> list[int]:
        return [each.status()["sources"][0]["partitions"] for each in (one, other)]

    eventually(shares, lambda now: now == [2, 2], "partitions of each")
    eventually(other.said, lambda said: "watching worker" in said, "a watch")
    one.kill()
    produce(west, topic, range(400, 800), 4)
    arrived(east, topic, [200, 200, 200, 200])
    eventually(other.said, lambda said: "has ended: taking over its tasks" in said, "why it took over")
    assert other.status()["sources"][0]["partitions"] == 4
