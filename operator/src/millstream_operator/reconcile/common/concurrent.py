"""Calls for many resources of a batch at once: each waits for the API server, or computes without Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 4

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def concurrently(call: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """The results, in the order of the items. If calls fail, raises the error of the first of them, once all have
    ended."""
    wanted = list(items)
    if len(wanted) < 2:
        return [call(item) for item in wanted]
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), thread_name_prefix="batch") as threads:
        running = [threads.submit(call, item) for item in wanted]
    return [each.result() for each in running]
