"""Requests that wait for the controller: each gets one response, once everything it waits for has happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream_broker.controller.requests import Request, Requests
from millstream_broker.runtime.steps import to_the_end


def waiting(requests: Requests, caller: str, *keys: str, result: Callable[[], Any] = lambda: None) -> None:
    request = Request(caller, lambda request: dict(request.results))
    for key in keys:
        requests.wait(request, key, result)
    requests.add(request)


def test_a_request_that_waits_for_nothing_is_complete() -> None:
    requests = Requests()
    waiting(requests, "caller")
    assert list(requests.complete()) == [("caller", {})]
    assert not list(requests.complete()), "each is answered once"


def test_a_request_is_complete_when_the_last_that_it_waits_for_has_happened() -> None:
    requests, results = Requests(), iter((1, 2))
    waiting(requests, "caller", "a", "b", result=lambda: next(results))
    requests.happened("b")
    requests.happened("b")
    requests.happened("another")
    assert not list(requests.complete())
    requests.happened("a")
    assert list(requests.complete()) == [("caller", {"b": 1, "a": 2})]


def test_an_abandoned_request_asks_for_no_result_and_the_others_go_on() -> None:
    requests, asked = Requests(), []
    for caller in ("one", "two", "three"):
        waiting(requests, caller, "a", "b", result=lambda caller=caller: asked.append(caller))
    to_the_end(requests.abandon("two"))
    requests.happened("a")
    requests.happened("b")
    assert [caller for caller, _ in requests.complete()] == ["one", "three"]
    assert asked == ["one", "three"] * 2


def test_a_request_that_is_answered_may_be_abandoned() -> None:
    requests = Requests()
    waiting(requests, "caller", "a")
    requests.happened("a")
    assert list(requests.complete())
    to_the_end(requests.abandon("caller"))
    to_the_end(requests.abandon("unknown"))
    waiting(requests, "another")
    assert [caller for caller, _ in requests.complete()] == ["another"]
