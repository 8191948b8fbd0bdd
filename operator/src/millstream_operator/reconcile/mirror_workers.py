"""Asks mirror workers how far they are: GET /status of each, all at once, none for long."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import urllib3

from .mirror import WorkerReport

TIMEOUT = urllib3.Timeout(connect=1.0, read=2.0)
AT_ONCE = 8
_pool = urllib3.PoolManager(maxsize=AT_ONCE, retries=False)


def ask(address: str) -> WorkerReport | None:
    """What the worker at HOST:PORT says; None when it does not answer in time, or nonsense. Blocking."""
    try:
        response = _pool.request("GET", f"http://{address}/status", timeout=TIMEOUT)
        return msgspec.json.decode(response.data, type=WorkerReport) if response.status == 200 else None
    except (urllib3.exceptions.HTTPError, msgspec.MsgspecError):
        return None


def ask_all(addresses: Iterable[str]) -> tuple[WorkerReport, ...]:
    """What those of the workers say that answer."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mirror-status") as threads:
        return tuple(report for report in threads.map(ask, addresses) if report is not None)
