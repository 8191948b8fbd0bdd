"""spec.promote with real brokers and workers: acknowledged records stay, the recovery point is correct, and the mirror
leaves promoted topics alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.ledger import Load, check
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce, read_batches
from millstream_harness.mirror_groups import commit, follows
from millstream_harness.promoting import World
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import read_header
from millstream_operator.kafka.mirrored import notes_of
from millstream_operator.models.mirror_reports import WorkerReport
from millstream_operator.reconcile.mirror import deployment as mirror_deployment
from millstream_operator.reconcile.mirror.workers import ask_all

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
NewWorld = Callable[..., World]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[MirrorProcess]:
    """The workers that the operator queries."""
    found: list[MirrorProcess] = []

    def ask(_: Any) -> tuple[WorkerReport, ...]:
        return ask_all(one.http.removeprefix("http://") for one in found)

    monkeypatch.setattr(mirror_deployment, "ask_all", ask)
    return found


@pytest.fixture
def world(
    east: InProcessBroker, start_mirror: StartMirror, workers: list[MirrorProcess]
) -> Iterator[NewWorld]:
    """``world(SOURCE)``: a MirrorMaker, and its worker."""
    made: list[World] = []

    def make(source: InProcessBroker, **config: Any) -> World:
        one = World(east.bootstrap, unique("mirror"), source.bootstrap)
        made.append(one)
        config = {"name": one.name, "mode": "Identity", "topics": {"include": [f"{one.name}.*"]}, **config}
        workers.append(start_mirror({"west": source.bootstrap}, east.bootstrap, **config))
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[InProcessBroker]:
    """A source that a test may stop."""
    broker = InProcessBroker(tmp_path / "mortal").keep_port().start()
    yield broker
    broker.kill()


def promoted(one: World) -> dict[str, Any]:
    """Look until the promotion has ended; return its record."""

    def look() -> dict[str, Any]:
        last: dict[str, Any] = one.look().get("lastPromotion", {})
        return last

    return eventually(look, lambda last: last.get("state") == "Done", "the promotion is done")


def mirrored(target: InProcessBroker, topic: str, partition: int) -> tuple[list[bytes], list[bytes]]:
    """A partition's batches of the load "source", and all others."""
    batches = asyncio.run(read_batches(target.bootstrap, topic, partition))
    return [one for one in batches if b"source:" in one], [one for one in batches if b"source:" not in one]


@pytest.mark.parametrize("worker", ["runs", "is killed", "is paused"])
def test_promoted_topic_keeps_acknowledged_records(
    west: InProcessBroker, east: InProcessBroker, world: NewWorld, workers: list[MirrorProcess], worker: str
) -> None:
    one = world(west)
    topic = f"{one.name}-orders"
    create(west, topic, 2)
    with Load(west.bootstrap, topic, partitions=range(2), name="source", pause_s=0.002) as theirs:
        theirs.until(300)
        eventually(
            lambda: noted(one, topic), lambda ends: len(ends) == 2, "the worker has noted both partitions"
        )
        one.ask("now", topic)
        if worker == "is killed":
            workers[0].kill()
        if worker == "is paused":
            workers[0].pause()
        last = promoted(one)
        with Load(east.bootstrap, topic, partitions=range(2), name="own", pause_s=0.002) as own:
            own.until(100)
            if worker == "is killed":
                workers[0].start()
            if worker == "is paused":
                workers[0].resume()
            before = own.ledger.count
            own.until(before + 300)
            sources = eventually(
                lambda: workers[0].status()["sources"][0],
                lambda found: found["promoted"] == [topic] and found["topics"] == 0,
                "the worker leaves it alone",
            )
        assert sources["problems"] == []
    assert not own.ledger.failed
    check(east.bootstrap, topic, [own], ignore=b"source:.*")
    (row,) = last["topics"]
    for partition in range(2):
        copied, ours = mirrored(east, topic, partition)
        original = asyncio.run(read_batches(west.bootstrap, topic, partition))
        assert copied == original[: len(copied)]
        assert (
            row["ends"][partition] == read_header(copied[-1]).next_offset == read_header(ours[0]).base_offset
        )
        assert row["ends"][partition] <= row["sourceEnds"][partition] <= read_header(original[-1]).next_offset
    assert row["sourceEndsFrom"] == "Source"
    assert row["notMirrored"] == sum(row["sourceEnds"]) - sum(row["ends"])
    # requested again, by the same request or another one: nothing changes
    again = one.look()["lastPromotion"]
    assert again == last
    one.ask("once more", topic)
    ends = promoted(one)
    assert ends["topics"][0]["ends"] == row["ends"], "own records do not count as mirrored"
    assert ends["message"].startswith(f"promoted before: {topic}; ")


@pytest.mark.parametrize("alive", [True, False], ids=["with a worker", "without workers"])
def test_promotion_without_source_shows_last_recovery_point(
    mortal: InProcessBroker, east: InProcessBroker, world: NewWorld, workers: list[MirrorProcess], alive: bool
) -> None:
    """The worker lags by the records that it has seen in the source, not by later ones."""
    begun = datetime.now(UTC)
    one = world(mortal)
    topic = f"{one.name}-orders"
    create(mortal, topic, 2)
    produce(mortal, topic, range(100), 2)
    arrived(east, topic, [50, 50])
    eventually(lambda: noted(one, topic), lambda ends: ends == [50, 50], "the worker has noted the ends")
    mortal.kill()
    if not alive:
        workers.pop().kill()
    one.ask("disaster")
    last = promoted(one)
    assert one.writable(topic) == [True]
    (row,) = last["topics"]
    assert (row["ends"], row["sourceEnds"], row["sourceEndsFrom"]) == ([50, 50], [50, 50], "LastKnown")
    at = datetime.fromisoformat(row["sourceEndsAt"])
    assert begun.replace(microsecond=0) <= at <= datetime.now(UTC)
    words = "at least 0 records of the source were not mirrored, as last known at "
    assert words in last["message"]
    produce(east, topic, range(10), 2)
    arrived(east, topic, [55, 55])


def noted(one: World, topic: str) -> list[int]:
    """The source's ends in the workers' notes."""
    group = f"millstream-mirror.{one.name}.west"
    return [
        note.source_end
        for where, note in sorted(notes_of(one.admin, [group])[group].items())
        if where.topic == topic
    ]


def test_promotion_of_all_topics_ends_mirror(
    west: InProcessBroker, east: InProcessBroker, world: NewWorld, workers: list[MirrorProcess]
) -> None:
    group = unique("app")
    one = world(west, groups={"include": [group]})
    topics = [f"{one.name}-{number}" for number in range(2)]
    for topic in topics:
        create(west, topic)
        produce(west, topic, range(20))
        arrived(east, topic, [20])
    commit(west, group, topics[0], 5)
    follows(east, group, topics[0], 5)
    one.ask("all")
    assert promoted(one)["topicCount"] == 2
    # the worker still runs: its pod ends later
    eventually(workers[0].status, lambda status: status["topics"] == 0, "nothing is mirrored any more")
    produce(west, topics[0], range(20))
    commit(west, group, topics[0], 30)
    produce(east, topics[0], range(3))
    one.look()
    arrived(east, topics[0], [23])
    follows(east, group, topics[0], 5)
    assert workers[0].status()["sources"][0]["promoted"] == topics


def test_reapplied_mirror_reports_promoted_topics(
    west: InProcessBroker,
    east: InProcessBroker,
    world: NewWorld,
    start_mirror: StartMirror,
    workers: list[MirrorProcess],
) -> None:
    one = world(west)
    topic, other = f"{one.name}-orders", f"{one.name}-payments"
    for each in (topic, other):
        create(west, each)
        produce(west, each, range(30))
        arrived(east, each, [30])
    one.ask("r", topic)
    promoted(one)
    produce(east, topic, range(5))
    workers.pop().stop()
    one.apply_again()
    one.ask(None)
    config = {"name": one.name, "mode": "Identity", "topics": {"include": [f"{one.name}.*"]}}
    workers.append(start_mirror({"west": west.bootstrap}, east.bootstrap, **config))
    produce(west, topic, range(30))
    produce(west, other, range(30))
    arrived(east, other, [60])
    eventually(workers[0].status, lambda status: status["sources"][0]["promoted"] == [topic], "it is found")
    found = (
        ("True", "PromotedBefore", f"{topic}: promoted earlier, and not mirrored any more"),
        ("False", "TopicPromoted"),
    )
    eventually(
        lambda: (one.look(), one.condition("Promoted"), (one.condition("Ready") or ())[:2])[1:],
        lambda told: told == found,
        "the conditions say so",
    )
    arrived(east, topic, [35])
    # deleted in the target, it is mirrored from its start; a finished request does not promote it again
    one.ask("r", topic)
    promoted(one)
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [60])
    eventually(
        lambda: (one.look(), one.condition())[1],
        lambda told: told is not None and told[1] == "MirroredAgain",
        "it says so",
    )
    assert one.writable(topic) == [False]
    one.ask("s", topic)
    promoted(one)
    assert one.writable(topic) == [True]
