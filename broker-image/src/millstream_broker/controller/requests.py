"""Callers that wait for the controller: each gets one reply, once nothing is left to wait for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from ..runtime.steps import Steps

Key = Hashable


class Request:
    """The keys one caller waits for, and the results so far."""

    __slots__ = ("answer", "caller", "results", "waiting")

    def __init__(self, caller: Hashable, answer: Callable[[Request], Any]) -> None:
        self.caller = caller
        self.answer = answer
        self.waiting: set[Key] = set()
        self.results: dict[Any, Any] = {}


class Requests:
    """All requests, by the keys they wait for."""

    def __init__(self) -> None:
        self._by_caller: dict[Hashable, Request] = {}
        self._by_key: dict[Key, list[tuple[Request, Callable[[], Any]]]] = {}
        self._complete: list[Request] = []

    def add(self, request: Request) -> None:
        """Add a request after its `wait`s; one that waits for nothing is complete."""
        self._by_caller[request.caller] = request
        if not request.waiting:
            self._complete.append(request)

    def wait(self, request: Request, key: Key, result: Callable[[], Any] = lambda: None) -> None:
        """Make the request wait for `key`; `result` is called then."""
        request.waiting.add(key)
        self._by_key.setdefault(key, []).append((request, result))

    def happened(self, key: Key) -> None:
        for request, result in self._by_key.pop(key, ()):
            request.results[key] = result()
            request.waiting.discard(key)
            if not request.waiting:
                self._complete.append(request)

    def abandon(self, caller: Hashable) -> Steps[None]:
        """Yields after each key."""
        request = self._by_caller.pop(caller, None)
        if request is None:
            return
        for key in request.waiting:
            waiting = [entry for entry in self._by_key.get(key, ()) if entry[0] is not request]
            if waiting:
                self._by_key[key] = waiting
            else:
                self._by_key.pop(key, None)
            yield

    def complete(self) -> Iterable[tuple[Hashable, Any]]:
        """Callers whose request is complete, with their replies; each once."""
        done, self._complete = self._complete, []
        for request in done:
            if self._by_caller.pop(request.caller, None) is not None:
                yield request.caller, request.answer(request)
