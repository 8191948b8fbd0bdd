"""The HTTP server of probes and metrics: what it waits for, and how long."""

from __future__ import annotations

import asyncio

import pytest

from millstream_harness.jumping_clock import jumping_clock, now
from millstream_process.http import ANSWER_S, MAX_HEAD_BYTES, TIMEOUT_S, HttpServer, Response

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
