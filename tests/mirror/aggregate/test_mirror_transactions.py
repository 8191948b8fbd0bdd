"""Transactions in a Millstream source: the target has what was committed, in order, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, arrived, create, produce
from millstream_harness.mirror_groups import commit, follows, in_step
from millstream_harness.mirror_groups import values as records
from millstream_harness.scenario import eventually, unique
from millstream_harness.transactional_writer import TransactionalWriter

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]


def lag_is(mirror: MirrorProcess, records: int) -> None:
    eventually(lambda: mirror.status()["lag"]["records"], lambda now: now == records, f"lag {records}")


async def values(broker: InProcessBroker, topic: str) -> list[bytes]:
    return [value for _, value in await records(broker, topic)]


async def test_copies_what_is_committed(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("transactions")
    create(west, topic)
    writer = TransactionalWriter(west.bootstrap, topic)
    other = TransactionalWriter(west.bootstrap, topic, "-other")
    writer.begin(b"a1", b"a2")
    other.begin(b"x1")
    writer.commit()
    other.abort()
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [2])
    lag_is(mirror, 0)
    writer.begin(b"b1")
    produce(west, topic, range(2))  # behind the transaction, which holds them up
    lag_is(mirror, 3)
    arrived(east, topic, [2])
    mirror.kill()
    mirror.start()
    lag_is(mirror, 3)
    writer.commit()
    arrived(east, topic, [5])
    other.begin(b"x2")
    produce(west, topic, range(2, 3))
    other.abort()
    arrived(east, topic, [6])
    lag_is(mirror, 0)
    assert await values(east, topic) == [b"a1", b"a2", b"b1", b"value-0", b"value-1", b"value-2"]


async def test_producer_that_vanishes_delays_until_its_timeout(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("vanished")
    create(west, topic)
    TransactionalWriter(west.bootstrap, topic, timeout_ms=1000).begin(b"never committed")
    produce(west, topic, range(3))
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [3])
    lag_is(mirror, 0)
    assert await values(east, topic) == [b"value-0", b"value-1", b"value-2"]


async def test_positions_of_groups_pass_markers_and_aborted_records(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("positions"), unique("app")
    create(west, topic)
    writer = TransactionalWriter(west.bootstrap, topic)
    for number in range(6):
        writer.begin(*(b"%d-%d" % (number, each) for each in range(3)))
        if number % 2:
            writer.abort()
        else:
            writer.commit()
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [group]},
        name=topic,
    )
    arrived(east, topic, [9])
    target = await records(east, topic)
    copied = {value for _, value in target}
    source = [record for record in await records(west, topic) if record[1] in copied]
    exact = {at: next(to for to in range(10) if in_step(source, target, at, to)) for at in (2, 6, 13, 24)}
    assert exact == {2: 2, 6: 3, 13: 6, 24: 9}
    for offset in (24, 13, 2, 6):
        commit(west, group, topic, offset)
        follows(east, group, topic, exact[offset])
    mirror.kill()
    mirror.start()
    for offset in (6, 24, 2, 13):
        commit(west, group, topic, offset)
        follows(east, group, topic, exact[offset])
