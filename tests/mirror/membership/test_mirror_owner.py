"""Two MirrorMakers of one name into one target: the older one mirrors, the younger one says why it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce
from millstream_harness.mirror_group import HandMember
from millstream_harness.scenario import eventually, unique
from millstream_kafka.client import ClusterClient
from millstream_mirror.membership.ownership import (
    CREATED,
    UID,
    Owner,
    oldest,
    owner_in_environment,
)
from millstream_mirror.membership.peer_liveness import WorkerEndpoint, owner_in

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]
OLDER = {"namespace": "flights", "environment": {UID: "u-older", CREATED: "2026-01-01T00:00:00Z"}}
YOUNGER = {"namespace": "orders", "environment": {UID: "u-younger", CREATED: "2026-02-01T00:00:00Z"}}


def test_oldest_mirror_maker_owns_group() -> None:
    first, second = Owner("2026-01-01T00:00:00Z", "b", "x"), Owner("2026-01-01T00:00:00Z", "c", "a")
    later = Owner("2026-01-01T00:00:01Z", "a", "a")
    assert oldest([later, None, second, first]) == first
    assert oldest([None]) is oldest([]) is None


def test_environment_names_mirror_maker() -> None:
    found = owner_in_environment({UID: "u", CREATED: "2026-01-01T00:00:00Z"}, "prod")
    assert found == Owner("2026-01-01T00:00:00Z", "u", "prod")
    assert owner_in_environment({CREATED: "2026-01-01T00:00:00Z"}, "prod") is None
    for wrong in ("u\n", "u" * 256):
        with pytest.raises(ValueError, match="not the identity of a MirrorMaker"):
            owner_in_environment({UID: wrong}, "prod")


async def test_member_metadata_names_mirror_maker() -> None:
    owner = Owner("2026-01-01T00:00:00Z", "u", "prod")
    assert owner_in(await WorkerEndpoint("127.0.0.1", 1, "h:1", owner).encoded()) == owner
    assert owner_in(await WorkerEndpoint("0.0.0.0", 1, "no-such-host.invalid:1", owner).encoded()) == owner
    assert owner_in(await WorkerEndpoint("127.0.0.1", 1, "h:1").encoded()) is None


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xff",
        b"[" * 5000,
        b"null",
        b"7",
        b'["h", 1, "i"]',
        b'["h", 1, "i", null]',
        b'["h", 1, "i", ["c", "u"]]',
        b'["h", 1, "i", ["c", 5, "n"]]',
        b'["h", 1, "i", ["c", "", "n"]]',
        b'["h", 1, "i", {"c": 1, "u": 2, "n": 3}]',
        b'["h", 1, "i", ["c", "u", "%s"]]' % (b"n" * 256),
    ],
)
def test_foreign_member_owns_nothing(metadata: bytes) -> None:
    assert owner_in(metadata) is None


def taken(mirror: MirrorProcess) -> str:
    (source,) = mirror.status()["sources"]
    return "".join(one["message"] for one in source["problems"] if one["reason"] == "NameTaken")


def partitions(mirror: MirrorProcess) -> int:
    found: int = mirror.status()["sources"][0]["partitions"]
    return found


def test_older_of_two_equal_names_mirrors(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    name, of_older, of_younger = unique("name"), unique("older"), unique("younger")
    for topic in (of_older, of_younger):
        create(west, topic, 4)
        produce(west, topic, range(40), 4)

    def start(topic: str, **who: Any) -> MirrorProcess:
        return start_mirror(
            {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name, **who
        )

    younger = start(of_younger, **YOUNGER)
    arrived(east, of_younger, [10] * 4)  # alone, it leads
    older = [start(of_older, **OLDER) for _ in range(2)]
    arrived(east, of_older, [10] * 4)
    said = eventually(lambda: taken(younger), bool, "the conflict in its status")
    assert said == (
        f"group millstream-mirror.{name}.west in the target belongs to an older MirrorMaker of this name, in namespace"
        " 'flights' (uid u-older): this one mirrors nothing from the source: give one of the two another name, or"
        " delete the older one"
    )
    assert partitions(younger) == 0
    eventually(lambda: sorted(map(partitions, older)), lambda found: found == [2, 2], "both have tasks")
    assert [taken(one) for one in older] == ["", ""]
    assert younger.status()["sources"][0]["lastError"] == said
    produce(west, of_younger, range(40), 4)
    produce(west, of_older, range(40), 4)
    arrived(east, of_older, [20] * 4)
    arrived(east, of_younger, [10] * 4)
    another = start(topic := unique("another"), **YOUNGER)
    create(west, topic)
    eventually(
        lambda: another.status()["sources"][0]["matched"], lambda found: found == 1, "it sees the topic"
    )
    eventually(lambda: taken(another), bool, "the conflict of a worker that has just joined")
    assert topic not in admin(east).list_topics(timeout=10).topics, "it changes nothing in the target"
    another.stop()
    for one in older:
        one.stop()
    arrived(east, of_younger, [20] * 4)
    eventually(lambda: taken(younger), lambda found: not found, "no conflict")


async def test_worker_started_during_rebalance_waits_for_owner(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Then the target does not tell who the members are; the worker learns it with its assignment."""
    topic = unique("early")
    create(west, topic)
    produce(west, topic, range(10))
    group, owner = f"millstream-mirror.{topic}.west", ["2026-01-01T00:00:00Z", "u-older", "flights"]
    async with ClusterClient(east.bootstrap) as client:
        older = HandMember(client, group, json.dumps(["", 0, "", owner]).encode())
        await older.join()
        mirror = start_mirror(
            {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic, **YOUNGER
        )
        while await older.join() < 2:
            pass  # the worker has refreshed its topics before it joins
        assert mirror.status()["sources"][0]["matched"] == 1
        assert topic not in admin(east).list_topics(timeout=10).topics
        await older.lead(json.dumps({"lanes": [], "owner": owner}).encode())
        eventually(lambda: taken(mirror), bool, "the conflict")
        assert topic not in admin(east).list_topics(timeout=10).topics
        await older.leave()
    arrived(east, topic, [10])


def test_worker_without_mirror_maker_shares_tasks(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """So do workers of an older release, while the new ones replace them."""
    topic = unique("shared")
    create(west, topic, 4)
    workers = [
        start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic, **who)
        for who in ({}, YOUNGER, {})
    ]
    eventually(lambda: sorted(map(partitions, workers)), lambda found: found == [1, 1, 2], "tasks")
    produce(west, topic, range(40), 4)
    arrived(east, topic, [10] * 4)
    assert not any(map(taken, workers))
