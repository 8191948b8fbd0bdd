"""Queries mirror workers' progress: GET /status of each, all at once, none for long.

Anyone who may run a pod in the MirrorMaker's namespace can give it the labels of a worker, so a response may be of any
length and come a byte at a time. Its size and the total time are bounded, or one pod could stop the operator
for everybody; HTTP clients bound only the time of each read.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ...models import addresses
from ...models.mirror_reports import WorkerReport

CONNECT_S, WHOLE_S = 1.0, 3.0
MOST_BYTES = 8 << 20
"""A worker names its topics: 10,000 long names are 2.5 MB."""
AT_ONCE = 32
MOST_WORKERS = 256
"""The largest number of a MirrorMaker's workers."""


def ask(address: str) -> WorkerReport | None:
    """The report of the worker at HOST:PORT; None if it does not respond in time, or with nonsense. Blocking."""
    try:
        head, _, body = _answer(address).partition(b"\r\n\r\n")
        if head.split(maxsplit=2)[1:2] != [b"200"]:
            return None
        return msgspec.json.decode(body, type=WorkerReport)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def _answer(address: str) -> bytes:
    """Head and body, up to the end of the connection. Raises OSError, ValueError."""
    until = time.monotonic() + WHOLE_S
    with socket.create_connection(addresses.split(address), CONNECT_S) as connection:
        connection.sendall(f"GET /status HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        answer = bytearray()
        while (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (part := connection.recv(256 << 10)):
                return bytes(answer)
            answer += part
            if len(answer) > MOST_BYTES:
                raise ValueError("the answer is too long")
    raise TimeoutError


def ask_all(addresses: Iterable[str]) -> tuple[WorkerReport, ...]:
    """The reports of the workers that respond."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mirror-status") as threads:
        asked = threads.map(ask, itertools.islice(addresses, MOST_WORKERS))
        return tuple(report for report in asked if report is not None)
