"""Fetch sessions (KIP-227) of a worker: the partitions in requests; idle partitions cost a source next to nothing."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, arrived, create, produce
from millstream_harness.mirror_brokers import broker_fixture
from millstream_harness.scenario import eventually, unique
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from millstream_mirror.records.fetch_session import FetchSession

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]
west, east = broker_fixture("west"), broker_fixture("east")
MANY = 300
A, B, C = ("a", 0), ("a", 1), ("b", 0)


def named(request: FetchRequest) -> dict[tuple[str, int], tuple[int, int]]:
    """Offset and leader epoch of each partition in a request."""
    return {
        (topic.topic, one.partition): (one.fetch_offset, one.current_leader_epoch)
        for topic in request.topics
        for one in topic.partitions
    }


def forgotten(request: FetchRequest) -> set[tuple[str, int]]:
    return {(topic.topic, index) for topic in request.forgotten_topics_data for index in topic.partitions}


def test_session_request_names_changed_partitions() -> None:
    session = FetchSession()
    first = session.request({A: (0, 1), B: (5, 1)}, 1 << 20, "")
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {A: (0, 1), B: (5, 1)})
    assert not session.is_partial
    assert session.answered(FetchResponse(session_id=77)) is ErrorCode.NONE
    assert session.is_partial
    second = session.request({A: (0, 1), C: (9, 2)}, 1 << 20, "")
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert (named(second), forgotten(second)) == ({C: (9, 2)}, {B})
    session.answered(FetchResponse(session_id=77))
    third = session.request({A: (3, 1), B: (5, 1), C: (9, 3)}, 1 << 20, "")
    assert (third.session_epoch, named(third)) == (2, {A: (3, 1), B: (5, 1), C: (9, 3)})
    session.answered(FetchResponse(session_id=77))
    smaller = session.request({A: (3, 1), B: (5, 1), C: (9, 3)}, 1 << 16, "")
    assert named(smaller).keys() == {A, B, C}, "each may have fewer bytes from now on"


def test_dropped_session_is_restarted() -> None:
    session = FetchSession()
    session.request({A: (0, 1)}, 1 << 20, "")
    session.answered(FetchResponse(session_id=77))
    session.request({A: (0, 1)}, 1 << 20, "")
    lost = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert session.answered(lost) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    again = session.request({A: (0, 1)}, 1 << 20, "")
    assert (again.session_id, again.session_epoch, named(again)) == (0, 0, {A: (0, 1)})


def test_request_without_session_names_all_partitions() -> None:
    for session, epoch in ((FetchSession(), 0), (FetchSession(is_wanted=False), -1)):
        for _ in range(3):
            request = session.request({B: (5, 1), A: (0, 1)}, 1 << 20, "")
            assert (request.session_id, request.session_epoch) == (0, epoch)
            assert [*named(request)] == [B, A], "in their order"
            session.answered(FetchResponse(session_id=0))
            assert not session.is_partial


def test_session_partitions_agree_on_both_sides() -> None:
    dice = random.Random(3)
    session, there = FetchSession(), dict[tuple[str, int], tuple[int, int]]()
    for _ in range(2000):
        requested = {
            (topic, index): (dice.randrange(3), 0)
            for topic in "abc"
            for index in range(4)
            if dice.random() < 0.8
        }
        request = session.request(requested, 1 << 20, "")
        if request.session_epoch == 0:
            there = {}
        for one in forgotten(request):
            del there[one]
        there |= named(request)
        assert there == requested
        if (chance := dice.random()) < 0.05:
            session.answered(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        else:
            session.answered(FetchResponse(session_id=0 if chance < 0.1 else 5))


def sums(broker: InProcessBroker) -> tuple[int, int]:
    """Fetch requests, and bytes of all requests."""
    _, page = broker.get("/metrics")
    counts = re.findall(r'^millstream_request_seconds_count{.*api="Fetch".*} (\S+)$', page, re.MULTILINE)
    sizes = re.findall(r"^millstream_received_bytes\S* (\S+)$", page, re.MULTILINE)
    return int(sum(map(float, counts))), int(sum(map(float, sizes)))


def test_idle_partitions_are_named_once(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("idle")
    create(west, topic, MANY)
    produce(west, topic, range(MANY), MANY)
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [1] * MANY)
    eventually(lambda: mirror.status()["lag"]["records"], lambda lag: lag == 0, "no lag")
    before = sums(west)
    now = eventually(lambda: sums(west), lambda now: now[0] >= before[0] + 8, "more fetches")
    of_each = (now[1] - before[1]) / (now[0] - before[0])
    assert of_each < MANY * 10, "bytes of requests for each fetch: each names few partitions"
    produce(west, topic, range(MANY, 2 * MANY), MANY)
    arrived(east, topic, [2] * MANY)
    status = eventually(mirror.status, lambda status: status["lag"]["records"] == 0, "no lag")
    assert status["lag"]["seconds"] == 0
    assert status["sources"][0]["lastError"] == ""


def test_topic_ids_in_requests_map_to_names() -> None:
    a, b, anew = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    session = FetchSession()
    first = session.request({A: (0, 1), C: (0, 1)}, 1 << 20, "", {"a": a, "b": b})
    assert {topic.topic_id for topic in first.topics} == {a, b}
    response = FetchResponse(session_id=77, responses=[FetchableTopicResponse(topic_id=b, partitions=[])])
    session.answered(response)
    assert response.responses[0].topic == "b"
    second = session.request({A: (5, 1)}, 1 << 20, "", {"a": a})
    assert (second.session_id, [topic.topic_id for topic in second.topics]) == (77, [a])
    assert [topic.topic_id for topic in second.forgotten_topics_data] == [b]
    session.answered(FetchResponse(session_id=77))
    third = session.request({A: (5, 1)}, 1 << 20, "", {"a": anew})
    assert (third.session_id, [topic.topic_id for topic in third.topics]) == (0, [anew])
    session.answered(FetchResponse(session_id=78))
    assert session.request({A: (5, 1)}, 1 << 20, "").session_id == 0, "a session has ids or names"
