"""Messages between members of a mirror's group. Any client may join the group, so they may be arbitrary bytes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, arrived, create, produce
from millstream_harness.mirror_group import HandMember
from millstream_harness.scenario import eventually, unique
from millstream_kafka.client import ClusterClient
from millstream_mirror.membership.member import Assignment, TaskName, decode, encode
from millstream_mirror.membership.ownership import Owner
from millstream_mirror.membership.peer_liveness import Peer

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]
ID = str(uuid.UUID(int=5))


def test_assignment_survives_encoding() -> None:
    tasks = [TaskName("a", "b", ID, 0), TaskName("a", "b", ID, 1), TaskName("old", "old", "", 7)]
    peers = [Peer("m", "::1", 9404, "f" * 32)]
    for one in (Assignment(tasks, peers), Assignment([], peers, Owner("2026-11-27T09:00:00Z", "u1", "prod"))):
        assert decode(encode(one)) == one
    assert decode(b"") == Assignment([], [])
    assert decode(b'{"lanes":[]}') == Assignment([], [])


def test_assignment_has_the_fields_of_older_releases() -> None:
    owner = Owner("2026-11-27T09:00:00Z", "u1", "prod")
    document = {
        "lanes": [["a", "b", ID, 0]],
        "peers": [["m", "::1", 9404, "f"]],
        "owner": ["2026-11-27T09:00:00Z", "u1", "prod"],
    }
    assignment = Assignment([TaskName("a", "b", ID, 0)], [Peer("m", "::1", 9404, "f")], owner)
    assert json.loads(encode(assignment)) == document
    assert decode(json.dumps(document).encode()) == assignment


@pytest.mark.parametrize(
    "tasks",
    [
        None,
        5,
        [5],
        ["text"],
        [["a", "a", ID]],
        [["a", "a", ID, 0, ID]],
        [["a", "a", ID, "0"]],
        [["a", "a", ID, -1]],
        [["a", "a", ID, 1 << 31]],
        [["a", "a", ID, float("inf")]],
        [["a", "a", "not an id", 0]],
        [["a", "a", 5, 0]],
        [["", "a", ID, 0]],
        [["a\n", "a", ID, 0]],
        [["a", "b" * 250, ID, 0]],
        [[["a"], "a", ID, 0]],
        [{"topic": "a"}],
    ],
)
def test_foreign_assignment_is_refused(tasks: Any) -> None:
    with pytest.raises(ValueError, match="not an assignment of tasks"):
        decode(json.dumps({"lanes": tasks}).encode())


@pytest.mark.parametrize(
    "assignment", [b"x", b"\xff", b"[" * 5000, b'{"lanes":' * 5000, b"null", b"[]", b"7"]
)
def test_malformed_assignment_is_refused(assignment: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an assignment|nested"):
        decode(assignment)


@pytest.mark.parametrize(
    "owner",
    [
        None,
        5,
        "text",
        [],
        ["c", "u"],
        ["c", 5, "n"],
        ["c", "", "n"],
        ["c", "u" * 256, "n"],
        ["c", "u", "n\n"],
    ],
)
def test_foreign_owner_is_refused(owner: Any) -> None:
    with pytest.raises(ValueError, match="not an assignment of tasks"):
        decode(json.dumps({"lanes": [], "owner": owner}).encode())


@pytest.mark.parametrize(
    "peers",
    [
        5,
        None,
        "text",
        [5, "text", None, {}],
        [["m", "h", 1]],
        [[5, "h", 1, "i"]],
        [["m", "h", 1 << 70, "i"]],
        [["m", "h", 0, "i"]],
        [["m", "h" * 256, 1, "i"]],
        [["m", "h", 1, "i" * 65]],
        [["m", "h\n", 1, "i"]],
        [["m", "", 1, "i"]],
    ],
)
def test_invalid_address_is_omitted(peers: Any) -> None:
    good = [["m", "h" * 255, 65535, "i" * 64]]
    given = peers + good if isinstance(peers, list) else peers
    found = decode(json.dumps({"lanes": [], "peers": given}).encode()).peers
    assert found == ([Peer("m", "h" * 255, 65535, "i" * 64)] if isinstance(peers, list) else [])


async def test_foreign_leader_ends_no_worker(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("led")
    create(west, topic)
    produce(west, topic, range(10))
    group = f"millstream-mirror.{topic}.west"
    async with ClusterClient(east.bootstrap) as client:
        leader = HandMember(client, group, b"[" * 5000)
        await leader.join()
        mirror = start_mirror(
            {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic
        )
        while await leader.join() < 2:
            pass
        await leader.lead(b'{"lanes":[[1,2,3]]}')
        eventually(mirror.said, lambda said: "is no worker of this mirror" in said, "the error")
        await leader.leave()
    arrived(east, topic, [10])
