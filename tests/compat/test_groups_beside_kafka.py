"""Groups beside Apache Kafka: the same script gives the same story and the same records on both brokers.

A story has each member's responses, in order: errors, generations, leaders, member ids, assignments. The records are
those of `__consumer_offsets`: if ours differ from Kafka's in a byte for the same content, reading them fails.
"""

from __future__ import annotations

import difflib
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.config.config_keys import BROKER_KEYS
from millstream_harness.group_story import Story, assemble
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import eventually, unique
from millstream_harness.wire import Wire
from millstream_kafka.protocol import incremental_alter_configs as alter
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
    pytest.mark.skipif(
        is_before(4), reason="Kafka 3.9 has the older coordinator, whose stories and records differ"
    ),
]

PARTITIONS = 3
CONFIG = {
    "group.initial.rebalance.delay.ms": "400",
    "group.min.session.timeout.ms": "300",
    "group.max.session.timeout.ms": "120000",
    "group.max.size": "3",
    "offset.metadata.max.bytes": "16",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "num.partitions": "2",
}

FORMING = {"group.initial.rebalance.delay.ms": "3000", "offsets.retention.check.interval.ms": "500"}
"""For scripts that do something while a group forms: a busy machine must do it in that time."""

RECORDS_WITHIN_S = 60.0
"""The last record may be stored a moment after the response that it belongs to."""

Broker = InProcessBroker | KafkaProcess
Script = Callable[[Story], None]


@contextmanager
def both_brokers(folder: Path, config: dict[str, str]) -> Iterator[list[Broker]]:
    with InProcessBroker(folder / "ours", config) as ours, KafkaProcess(folder / "kafka", config) as kafka:
        yield [ours, kafka]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    with both_brokers(tmp_path_factory.mktemp("groups-beside-kafka"), CONFIG) as both:
        yield both


@pytest.fixture(scope="module")
def forming_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    with both_brokers(tmp_path_factory.mktemp("forming-beside-kafka"), CONFIG | FORMING) as both:
        yield both


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    """A ConsumerProtocolSubscription of version 1 (KIP-429): topics, no user data, the member's partitions."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return (
        struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + (owned or struct.pack(">i", 0))
    )


def life(story: Story) -> None:
    a, b = story.member("a"), story.member("b")
    a.join().joined().heartbeat().join()
    story.until("PreparingRebalance", 1)
    story.describe()
    story.listed()
    a.joined().heartbeat()
    story.describe()
    a.commit(("t", 0, 1, ""))
    a.sync(a=b"all").synced().heartbeat().heartbeat(0).heartbeat(2)
    story.describe()
    b.enter()
    story.until("PreparingRebalance", 2)
    a.heartbeat().sync(generation=1).synced().commit(("t", 0, 5, "while preparing"))
    a.join().joined()
    b.joined().sync()
    story.until("CompletingRebalance", 2)
    a.sync(a=b"one", b=b"two", generation=1).synced()
    a.sync(a=b"one", b=b"two").synced()
    b.synced().heartbeat().sync().synced()
    story.describe()
    story.listed()
    b.commit(("t", 0, 7, ""), ("t", 1, 8, "note")).commit(("t", 0, 9, ""), generation=1)
    story.delete()
    b.leave().heartbeat()
    a.heartbeat().join().joined().sync(a=b"all again").synced().leave()
    story.describe()
    story.listed()
    b.join().joined()
    story.committed({"t": [0, 1, 2]})
    story.delete()
    story.describe()
    a.heartbeat().join().joined()


def old_versions(story: Story) -> None:
    """Before v4 no member needs an id first; before v1 one timeout is both."""
    a, b, c = (story.member(name) for name in "abc")
    a.join(0).joined().sync(a=b"all").synced()
    b.join(3)
    story.until("PreparingRebalance", 2)
    a.join(0)
    a.joined()
    b.joined().sync()
    a.sync(a=b"1", b=b"2").synced()
    b.synced()
    c.join(4).joined()
    story.describe()
    c.leave()


def rejoins(story: Story) -> None:
    a, b = story.member("a"), story.member("b")
    assemble(a, b, range=subscription("t"))
    b.join().joined().heartbeat()  # for no reason: the state stays, without a rebalance
    b.join(range=subscription("t", "u"))
    story.until("PreparingRebalance", 2)
    a.heartbeat().join().joined()
    b.joined().join().joined()  # the response was lost
    a.join().joined()
    a.sync(a=b"1", b=b"2").synced()
    b.sync().synced()
    a.join()  # a leader rejoins because something changed
    b.heartbeat_until("REBALANCE_IN_PROGRESS").join().joined()
    a.joined()
    b.join(range=subscription("t", "u", "v"))
    a.heartbeat_until("REBALANCE_IN_PROGRESS").sync(a=b"1", b=b"2").synced().join().joined()
    b.joined()
    story.describe()


def protocols(story: Story) -> None:
    a, b, c, d = (story.member(name) for name in "abcd")
    d.join(protocol_type="", range=b"").joined()
    a.enter(range=b"ar", sticky=b"as", only_a=b"x")
    story.until("PreparingRebalance", 1)
    d.join(other=b"").joined().join(protocol_type="connect", range=b"").joined()
    a.joined().sync(a=b"", kind="connect").synced().sync(a=b"", protocol="sticky").synced()
    a.sync(a=b"", kind=None).synced().sync(a=b"", protocol=None).synced().sync(a=b"1").synced()
    a.commit(("v", 1, 1, ""))
    b.enter(sticky=b"bs", range=b"br")
    story.until("PreparingRebalance", 2)
    c.enter(sticky=b"cs", range=b"cr")
    story.until("PreparingRebalance", 3)
    a.join().joined()
    b.joined()
    c.joined()
    a.sync(a=b"1", b=b"2", c=b"3").synced()
    story.describe()
    b.join(other=b"").joined()
    story.leave((a.member_id, None), (b.member_id, None), ("nobody", None), (c.member_id, None), ("", None))
    story.describe()


def cooperative(story: Story) -> None:
    """KIP-429 on the wire: after the first assignment the member that must revoke rejoins, and all follow."""
    a, b = story.member("a"), story.member("b")
    a.enter(**{"cooperative-sticky": subscription("t")}).joined().sync(a=b"t0 t1").synced()
    b.enter(**{"cooperative-sticky": subscription("t")})
    story.until("PreparingRebalance", 2)
    a.join(
        **{"cooperative-sticky": subscription("t", owned=b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1")}
    ).joined()
    b.joined().sync()
    a.sync(a=b"t0", b=b"").synced()
    b.synced()
    a.join(**{"cooperative-sticky": subscription("t", owned=b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0")})
    b.heartbeat_until("REBALANCE_IN_PROGRESS").join().joined()
    a.joined().sync(a=b"t0", b=b"t1").synced()
    b.sync().synced()
    story.describe()


def static_members(story: Story) -> None:
    a, b = story.member("a", "instance-a"), story.member("b", "instance-b")
    assemble(a, b)
    story.describe()
    again = story.member("B", "instance-b").join().joined().heartbeat().sync().synced()
    b.heartbeat().sync().synced().commit(("t", 0, 1, "")).leave().join().joined()
    again.commit(("t", 0, 2, ""))
    story.describe()
    leader = story.member("A", "instance-a").join().joined().sync().synced()  # it must skip the assignment
    a.heartbeat()
    old = (
        story.member("AA", "instance-a").join(5).joined().sync().synced()
    )  # older clients get another leader
    leader.heartbeat()
    story.leave((leader.member_id, "instance-a"), ("", "instance-x"), ("", "instance-b"), ("", "instance-b"))
    again.heartbeat()
    old.heartbeat().join().joined().sync(AA=b"all").synced()
    story.describe()
    stranger = story.member("s", "instance-s")
    stranger.member_id = old.member_id
    stranger.join().joined().heartbeat(1)
    story.leave(("", "instance-a"))
    story.describe()


def static_doubles(story: Story) -> None:
    """A second bearer of a group.instance.id while the first waits: for its join, for its assignment."""
    a, b = story.member("a"), story.member("b", "instance-b")
    assemble(a, b)
    a.join()
    b.heartbeat_until("REBALANCE_IN_PROGRESS").join()
    a.joined()
    b.joined().sync()
    a.heartbeat()
    double = story.member("B", "instance-b").join()  # while all wait for the assignment
    b.synced()
    a.heartbeat_until("REBALANCE_IN_PROGRESS")
    triple = story.member("BB", "instance-b").join()  # while the other waits for the join
    double.joined()
    a.join().joined()
    triple.joined().sync()
    a.sync(a=b"1", BB=b"2").synced()
    triple.synced()
    story.describe()
    other = story.member("BBB", "instance-b").join(sticky=b"", range=b"r2")  # not the selected protocol
    other.joined().sync().synced()
    a.heartbeat()
    story.describe()


def static_choice(story: Story) -> None:
    """A static member whose return changes the selected protocol starts a rebalance."""
    a = story.member("a", "instance-a").enter(range=b"r", sticky=b"s").joined()
    a.sync(a=b"1").synced()
    again = story.member("A", "instance-a").join(sticky=b"s", range=b"r").joined()
    again.heartbeat().sync(A=b"2").synced()
    story.describe()


def silence(story: Story) -> None:
    """A member whose session expires is removed, even a static one, and the others rebalance."""
    a, b = story.member("a"), story.member("b", "instance-b")
    assemble(a, b)
    b.member_id = ""
    b.join(session_ms=6000).joined().heartbeat()
    a.heartbeat_until("REBALANCE_IN_PROGRESS").join().joined()
    b.heartbeat()
    a.sync(a=b"all").synced()
    story.describe()


def refused_commits(story: Story) -> None:
    """A commit that is refused only for its metadata counts as a heartbeat: the library's streams rely on it."""
    a = story.member("a").enter(session_ms=10_000, range=subscription("t")).joined().sync(a=b"all").synced()
    for _ in range(3):
        time.sleep(3.5)
        a.commit(("t", 0, 1, "x" * 17))
    a.heartbeat()
    a.commit(("t", 0, 1, "x" * 17), generation=7)
    story.commit(("t", 0, 1, "x" * 17), member_id="nobody", generation=a.generation)
    story.committed()
    b = story.member("b").enter(range=subscription("t"))
    a.heartbeat_until("REBALANCE_IN_PROGRESS").commit(("t", 0, 1, "x" * 17)).join(range=subscription("t"))
    b.joined()
    a.joined().commit(("t", 0, 1, "x" * 17))


def stragglers(story: Story) -> None:
    """A member that neither rejoins nor syncs within the rebalance timeout is removed."""
    a, b = story.member("a"), story.member("b")
    assemble(a, b, rebalance_ms=5000)
    a.join(rebalance_ms=5000)
    b.heartbeat_until("REBALANCE_IN_PROGRESS")
    a.joined().sync(a=b"all").synced()
    b.heartbeat()
    story.describe()
    b.member_id = ""
    b.enter(rebalance_ms=5000)
    story.until("PreparingRebalance", 2)
    a.join(rebalance_ms=5000).joined()
    b.joined()
    a.sync(a=b"1", b=b"2").synced()
    a.heartbeat_until("REBALANCE_IN_PROGRESS")
    b.heartbeat().sync().synced()
    a.join(rebalance_ms=5000).joined()
    story.describe()


def pending(story: Story) -> None:
    """A new member that got an id but does not join holds up the rebalance until its session expires."""
    a, b, c = (story.member(name) for name in "abc")
    assemble(a, b)
    c.join(session_ms=6000).joined().heartbeat()
    story.describe()
    a.join()
    b.heartbeat_until("REBALANCE_IN_PROGRESS").join()
    a.joined()
    b.joined()
    c.join().joined()
    story.describe()


def leaving_pending(story: Story) -> None:
    """A new member that leaves before it joins no longer holds up the rebalance."""
    a, b, c = (story.member(name) for name in "abc")
    assemble(a, b)
    c.join(session_ms=60_000).joined()
    a.join()
    b.heartbeat_until("REBALANCE_IN_PROGRESS").join()
    c.leave()
    a.joined()
    b.joined()


def full(story: Story) -> None:
    """A member whose place was taken is removed, and the rebalance ends (in Kafka only at its timeout)."""
    a, b, c, d = (story.member(name) for name in "abcd")
    assemble(a, b, c, rebalance_ms=5000)
    d.join().joined()
    d.join(3).joined()
    a.join(rebalance_ms=5000)
    b.heartbeat_until("REBALANCE_IN_PROGRESS").join(rebalance_ms=5000)
    c.heartbeat_until("REBALANCE_IN_PROGRESS")
    d.member_id = ""
    d.enter(rebalance_ms=5000)  # before c returns: its place is taken
    story.until("PreparingRebalance", 4)
    c.join(rebalance_ms=5000).joined()
    a.joined()
    b.joined()
    d.joined()
    c.heartbeat()
    story.describe()


def sessions_have_bounds(story: Story) -> None:
    a = story.member("a")
    for session_ms in (299, 120_001, -1, 300, 120_000):
        a.join(session_ms=session_ms).joined()


def gathering(story: Story) -> None:
    """Members that join an empty group within group.initial.rebalance.delay.ms form one generation."""
    a, b = story.member("a"), story.member("b", "instance-b")
    a.join(3)
    story.until("PreparingRebalance", 1)
    b.join()
    a.joined()
    b.joined()


def other_kinds(story: Story) -> None:
    """Groups without consumers: positions expire only once no member is left."""
    a = story.member("a")
    story.commit(("t", 0, 3, ""), ("u", 1, 4, ""))
    a.enter(protocol_type="connect", eager=b"\x00\x01").joined().sync(a=b"x").synced()
    story.describe()
    story.listed()
    story.forget("t")
    a.leave()
    story.forget("t")
    story.committed()
    story.delete()


def positions(story: Story) -> None:
    long, longest = "x" * 17, "ü" * 16
    story.commit(
        ("t", 0, 1, longest), ("t", 1, 2, long), ("u", 0, 3, ""), ("no-such-topic", 0, 4, ""), ("t", 9, 5, "")
    )
    story.commit(("t", 0, 1, "x" * 14 + "😀"), ("t", 1, 1, "x" * 15 + "😀"), epoch=7)
    story.committed()
    story.commit(("t", 0, 5, ""), generation=0)
    story.commit(("t", 0, 6, ""), member_id="nobody", generation=3)
    story.commit(("t", 0, 7, ""), version=2)
    story.commit(("t", 0, 7, ""), member_id="nobody")
    story.describe()
    story.listed()
    a = story.member("a", "instance-a").enter(range=subscription("t")).joined()
    story.commit(("t", 0, 8, ""))
    a.commit(("t", 0, 9, ""))
    a.sync(a=b"").synced().commit(("t", 0, 10, "")).commit(("t", 0, 11, ""), generation=-1)
    story.commit(("t", 0, 12, ""))
    story.commit(("t", 0, 12, ""), member_id=a.member_id, generation=a.generation)
    story.commit(("t", 0, 13, ""), member_id=a.member_id, generation=a.generation, instance="instance-x")
    story.commit(("t", 0, 14, ""), member_id="nobody", generation=a.generation, instance="instance-a")
    story.forget("t", "u", "no-such-topic")
    story.committed({"t": [0, 1], "u": [0, 1], "no-such-topic": [0]})
    a.leave()
    story.forget("t")
    story.forget("t")
    story.committed()
    story.commit(("u", 1, 15, ""))
    story.delete()
    story.forget("t")
    story.commit(("u", 1, 16, ""), generation=1)
    story.committed()


def expiry(story: Story) -> None:
    """Positions expire one by one, except in topics that members consume; a group with nothing left expires, too."""
    story.commit(("v", 1, 1, "kept"))
    a = story.member("a").enter(range=subscription("t")).joined().sync(a=b"").synced()
    a.commit(("u", 1, 2, "never alone"))
    story.commit(("v", 0, 3, ""), member_id=a.member_id, generation=1, retention_ms=50_000, version=2)
    for topic in ("t", "u"):  # the last: they may expire at once
        story.commit((topic, 0, 1, ""), member_id=a.member_id, generation=1, retention_ms=1, version=4)
    eventually(lambda: story.positions({"u": [0]})[0][2], lambda offset: offset == -1, "the unused position")
    story.committed()
    a.heartbeat().leave()
    story.until_committed("u", "v")
    story.committed()
    story.describe()


def simple_expiry(story: Story) -> None:
    """A group that only stores positions forgets each individually, and disappears with the last."""
    story.commit(("t", 0, 1, ""), ("t", 1, 1, ""), retention_ms=1, version=3)
    story.commit(("u", 0, 1, ""))
    story.until_committed("u")
    story.listed()
    story.commit(("u", 0, 2, ""), retention_ms=0, version=3)
    story.until_gone()
    story.listed()


def deleted_topic(story: Story) -> None:
    topic = f"of-{story.group_id}"
    story.create(topic, "t")
    a = story.member("a").enter(range=subscription(topic)).joined().sync(a=b"").synced()
    a.commit((topic, 0, 1, ""), ("t", 0, 2, ""), (topic, 1, 3, ""))
    story.delete_topic(topic)
    story.until_committed("t")
    story.committed()
    a.heartbeat().leave()


SCRIPTS: list[Script] = [
    old_versions,
    rejoins,
    cooperative,
    static_members,
    static_doubles,
    static_choice,
    silence,
    refused_commits,
    stragglers,
    pending,
    leaving_pending,
    full,
    sessions_have_bounds,
    other_kinds,
    positions,
    deleted_topic,
]


def differences(ours: list[Any], kafkas: list[Any]) -> str:
    theirs, mine = ([str(line) for line in each] for each in (kafkas, ours))
    return "\n".join(difflib.unified_diff(theirs, mine, "Kafka", "ours", lineterm=""))


def compare(
    brokers: list[Broker], group_id: str, *scripts: Script, between: Callable[[], None] = lambda: None
) -> None:
    """Play the scripts on both, and ``between`` in between; stories and records must be equal."""
    with ExitStack() as stack:
        stories = [stack.enter_context(Story(broker.bootstrap, group_id, PARTITIONS)) for broker in brokers]
        ours, kafkas = stories
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda story: story.create("t", "u", "v"), stories))
            for number, script in enumerate(scripts):
                if number:
                    between()
                    for story, broker in zip(stories, brokers, strict=True):
                        story.reconnect(broker.bootstrap)
                list(both.map(script, stories))
                differ = differences(ours.lines, kafkas.lines)
                assert not differ, differ
                until = time.monotonic() + RECORDS_WITHIN_S
                while (differ := differences(ours.records(), kafkas.records())) and time.monotonic() < until:
                    time.sleep(0.05)
                assert not differ, differ
                stored = {one[1] for one in ours.records() if one[0] == "position" and "v4" in one}
                assert stored <= ours.named_topics.keys(), "ours name their topics' ids, as Kafka's may"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_groups_beside_kafka(brokers: list[Broker], script: Script) -> None:
    compare(brokers, unique(script.__name__), script)


@pytest.mark.parametrize("script", [life, protocols, gathering], ids=lambda script: script.__name__)
def test_groups_that_form_beside_kafka(forming_brokers: list[Broker], script: Script) -> None:
    compare(forming_brokers, unique(script.__name__), script)


def test_what_can_be_changed_while_the_broker_runs(brokers: list[Broker]) -> None:
    """Which keys about groups can be altered at run time, one by one: none in Kafka, which reads them at start."""
    keys = [key for key in BROKER_KEYS if key.startswith(("group.", "offset.", "offsets."))]
    assert {"group.max.size", "offsets.retention.minutes", "offset.metadata.max.bytes"} <= set(keys)

    def errors(broker: Broker) -> dict[str, str]:
        found = {}
        with Wire(broker.bootstrap) as wire:
            for key in keys:
                change = alter.AlterableConfig(key, 0, "7")
                resource = alter.AlterConfigsResource(4, "", [change])
                request = alter.IncrementalAlterConfigsRequest([resource], validate_only=True)
                found[key] = ErrorCode.of(wire.call(alter.API, 1, request).responses[0].error_code).name
        return found

    ours, kafkas = map(errors, brokers)
    assert ours == kafkas


def before_the_restart(story: Story) -> None:
    story.commit(("t", 0, 1, "kept"))
    a, b = story.member("a"), story.member("b", "instance-b")
    assemble(a, b)
    a.commit(("t", 1, 2, "two"), ("u", 0, 3, "")).join()
    b.heartbeat_until("REBALANCE_IN_PROGRESS")


def after_the_restart(story: Story) -> None:
    """The rebalance in progress is forgotten; the previous generation, its assignments and positions remain."""
    a, b = story.members
    story.describe()
    story.committed()
    a.heartbeat(1).heartbeat(2).commit(("t", 1, 4, ""), generation=2)
    b.heartbeat().sync().synced()
    again = story.member("B", "instance-b").join().joined()
    b.heartbeat()
    a.sync(generation=2).synced()
    again.sync().synced().leave()
    story.describe()
    a.heartbeat(2)


def test_what_a_restart_leaves_and_what_expires(forming_brokers: list[Broker]) -> None:
    def restart() -> None:
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda broker: broker.restart(), forming_brokers))

    compare(forming_brokers, unique("restart"), before_the_restart, after_the_restart, between=restart)
    compare(forming_brokers, unique("expiry"), expiry)
    compare(forming_brokers, unique("simple-expiry"), simple_expiry)
