"""The HTTP server of probes and metrics: what it waits for, and how long."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from millstream_harness.jumping_clock import jumping_clock, now
from millstream_process.http import ANSWER_S, MAX_HEAD_BYTES, MOST_AT_ONCE, TIMEOUT_S, HttpServer, Response

GET = b"GET /slow HTTP/1.1\r\n\r\n"


async def answered(request: bytes, pause_s: float = 0.0, *, is_last: bool = False) -> tuple[bytes, float]:
    """What a server whose response takes that long sends before it closes the connection, and when it does."""

    async def slow() -> Response:
        await asyncio.sleep(pause_s)
        return Response(b"done\n")

    server = HttpServer({"/slow": slow})
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0))
    began = now()
    try:
        writer.write(request)
        if is_last:
            writer.write_eof()
        return await reader.read(), now() - began
    finally:
        writer.close()
        await server.close()


@jumping_clock
async def test_a_busy_process_still_answers() -> None:
    text, took_s = await answered(GET, 4 * TIMEOUT_S)
    assert text.startswith(b"HTTP/1.1 200 OK\r\n")
    assert text.endswith(b"\r\nContent-Length: 5\r\nConnection: close\r\n\r\ndone\n")
    assert 4 * TIMEOUT_S <= took_s < ANSWER_S


@jumping_clock
async def test_a_response_that_does_not_come_ends_the_connection() -> None:
    text, took_s = await answered(GET, 10 * ANSWER_S)
    assert text == b""
    assert ANSWER_S <= took_s < ANSWER_S + 1


@jumping_clock
async def test_a_client_that_does_not_take_its_response_is_cut_off() -> None:
    body = b"x" * 50_000_000

    async def large() -> Response:
        return Response(body)

    server = HttpServer({"/large": large})
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", await server.start("127.0.0.1", 0)))
        await loop.sock_sendall(client, b"GET /large HTTP/1.1\r\n\r\n")
        await asyncio.sleep(2 * TIMEOUT_S)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while part := await loop.sock_recv(client, 1 << 20):
                received += len(part)
        assert received < len(body)
    await server.close()


async def test_clients_that_send_nothing_keep_no_probe_out() -> None:
    async def ready() -> Response:
        return Response(b"ready\n")

    server = HttpServer({"/readyz": ready})
    port = await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_AT_ONCE + 20)]
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"ready\n")
            writer.close()
        assert len(server._serving) <= MOST_AT_ONCE
        with contextlib.suppress(ConnectionResetError):
            assert await silent[0][0].read() == b""
    finally:
        for _, writer in silent:
            writer.close()
        await server.close()


@jumping_clock
async def test_a_request_that_does_not_come_ends_the_connection() -> None:
    for request in (b"", GET[:-1]):
        text, took_s = await answered(request)
        assert text == b""
        assert TIMEOUT_S <= took_s < TIMEOUT_S + 1


@pytest.mark.parametrize("request_", [b"x" * (MAX_HEAD_BYTES + 1), GET[:-1]])
def test_a_request_that_is_too_long_or_cut_off_is_closed_at_once(request_: bytes) -> None:
    @jumping_clock
    async def run() -> None:
        text, took_s = await answered(request_, is_last=True)
        assert (text, took_s < 1) == (b"", True)

    run()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"HEAD /slow HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /slow?again HTTP/1.1\r\n\r\n", 200, b"done\n"),
        (b"GET /other HTTP/1.1\r\n\r\n", 404, b"expected one of /slow\n"),
        (b"POST /slow HTTP/1.1\r\n\r\n", 405, b"only GET and HEAD are allowed\n"),
        (b"nonsense\r\n\r\n", 400, b"expected GET PATH HTTP/1.1\n"),
    ],
)
def test_a_request_gets_its_status(request_: bytes, status: int, body: bytes) -> None:
    @jumping_clock
    async def run() -> None:
        text, _ = await answered(request_)
        head, _, rest = text.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert rest == body

    run()
