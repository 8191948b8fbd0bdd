"""A consumer group moves from the source to the target under load.

    as planned        its consumers end, its positions arrive in the target, its consumers start there
    in a disaster     all brokers of the source are killed as soon as its consumers have ended

In both cases consumers had read more than they had committed. As planned, they go on in each copy with the record
behind the last commit. In a disaster they may begin with an earlier record, from the first position that was copied on,
but lose nothing either. Then an old position is committed in the source: it must not move the group back in the target.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

from confluent_kafka import Consumer

from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.daemon import Daemon
from millstream_harness.ledger import PATIENT
from millstream_harness.mirror_groups import commit, committed

from .checks import Log, out_of_step, read_log
from .lab import BACK_S, MODES, MOVING, STEADY, Lab, copy_of

COMMITTED, BEYOND = 8, 5
"""Records of each partition that are read before the last commit in the source, and after it."""
TAIL = 2000
Place = tuple[str, int]
Numbers = Mapping[Place, Sequence[int]]


def number_of(value: bytes) -> int:
    """A load numbers the records of each partition."""
    return int(value.split(b":", 2)[1])


def strayed(read: Sequence[int], following: int, earliest: int) -> str:
    """How a consumer that goes on with record ``following``, or one from ``earliest`` on, loses or repeats records."""
    for one, other in pairwise(read):
        if other != one + 1:
            return f"record {other} follows record {one}"
    if read and read[0] > following:
        return f"records {following} to {read[0] - 1} are lost"
    if read and read[0] < earliest:
        return f"records {read[0]} to {earliest - 1} are read again"
    return ""


def moved_back(before: Sequence[int], now: Sequence[int]) -> str:
    """Which positions in the target are lower than they were."""
    back = [number for number, at in enumerate(before) if number >= len(now) or now[number] < at]
    return f"positions {[*before]} became {[*now]}" if back else ""


class Reader:
    """One member of a group, which commits only where it is told to."""

    def __init__(self, cluster: ClusterProcesses, group: str, *topics: str) -> None:
        self.read: dict[Place, list[int]] = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "enable.auto.commit": "false",
                "session.timeout.ms": "6000",
                "auto.offset.reset": "earliest",  # a position that is not there would repeat everything
                **{key: value for key, value in PATIENT.items() if key != "message.timeout.ms"},
            }
        )
        self._consumer.subscribe([*topics])

    def until(self, enough: Callable[[Numbers], bool], what: str) -> None:
        deadline = time.monotonic() + BACK_S
        while not enough(self.read):
            assert time.monotonic() < deadline, f"{what}: { ({p: n[-1:] for p, n in self.read.items()}) }"
            for message in self._consumer.consume(500, 0.2):
                if (error := message.error()) is not None:
                    assert not error.fatal(), error
                    continue
                topic, number, value = message.topic(), message.partition(), message.value()
                assert topic is not None
                assert number is not None
                assert value is not None
                self.read[topic, number].append(number_of(value))

    def commit(self) -> None:
        """All that was read so far."""
        offsets = self._consumer.commit(asynchronous=False)
        assert offsets is not None
        assert not any(one.error for one in offsets), offsets

    def close(self) -> None:
        self._consumer.close()


class Moves:
    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self._lab = lab
        self._chance = chance
        self._count = 0

    def move(self, seconds: float) -> dict[str, Callable[[], str]]:
        """Returns what must hold at the end of the round. Raises AssertionError for what is wrong by then."""
        lab, group = self._lab, f"{MOVING}{self._count}"
        self._count += 1
        is_disaster = self._chance.random() < 0.5
        victims = [*lab.west.brokers.values()] if is_disaster else self._victims()
        begun = [read_log(lab.west, STEADY, number, last=1).end for number in range(lab.steady_partitions())]
        commit(lab.west, group, STEADY, *begun)
        until(lambda: not self._late(group, begun), f"the first positions of {group} arrive", BACK_S)
        places = [(STEADY, number) for number in range(len(begun))]
        with ExitStack() as closing:
            reader = Reader(lab.west, group, STEADY)
            closing.callback(reader.close)
            reader.until(_each(places, COMMITTED), f"{group} reads in the source")
            reader.commit()
            last = committed(lab.west, group, STEADY)
            following = [reader.read[place][-1] + 1 for place in places]
            if not is_disaster:
                _kill(victims)
            beyond = {place: len(reader.read[place]) + BEYOND for place in places}
            reader.until(
                lambda read: all(len(read[place]) >= count for place, count in beyond.items()),
                f"{group} reads beyond its last commit",
            )
        first = [reader.read[place][0] for place in places]
        if is_disaster:
            _kill(victims)
        else:
            time.sleep(seconds)
            self._restart(victims)
            until(lambda: not self._late(group, last), f"the last positions of {group} arrive", BACK_S)
        self._go_on(group, following, first if is_disaster else following)
        how = "in a disaster" if is_disaster else "as planned"
        names = ", ".join(str(victim.folder.relative_to(lab.out)) for victim in victims)
        print(f"   {group}: {how}, last commit {following}; killed: {names or 'nothing'}", flush=True)
        if is_disaster:
            self._restart(victims)
        there = {mode: committed(lab.east, group, copy_of(STEADY, mode)) for mode in MODES}
        commit(lab.west, group, STEADY, *begun)
        return {
            f"{group} in {copy_of(STEADY, mode)}": partial(self._moved_back, group, mode, before)
            for mode, before in there.items()
        }

    def _victims(self) -> list[Daemon]:
        lab = self._lab
        one = self._chance.choice(lab.workers)
        sets: Sequence[list[Daemon]] = (
            [],
            [one],
            [*lab.workers],
            [lab.west.leader(STEADY)],
            [lab.east.leader(STEADY)],
        )
        return self._chance.choice(sets)

    def _restart(self, victims: Sequence[Daemon]) -> None:
        if len(victims) == len(self._lab.west.brokers) and all(
            one in victims for one in self._lab.west.brokers.values()
        ):
            self._lab.west.start()
        for victim in victims:
            if victim.process is None:
                victim.start()
        self._lab.west.await_in_sync(STEADY, timeout=BACK_S)

    def _late(self, group: str, here: Sequence[int]) -> str:
        """Which positions of the source have not arrived in the copies."""
        lab = self._lab
        for mode in MODES:
            name = copy_of(STEADY, mode)
            there = committed(lab.east, group, name)
            if len(there) < len(here):
                return f"{name}: {there} of {here}"
            for number, at in enumerate(there):
                source = read_log(lab.west, STEADY, number, since=here[number])
                copy = read_log(lab.east, name, number, since=at)
                if said := out_of_step(source, copy, here[number], at):
                    return said
        return ""

    def _go_on(self, group: str, following: Sequence[int], earliest: Sequence[int]) -> None:
        """Read in both copies what they have by now, and commit."""
        lab = self._lab
        goals: dict[Place, int] = {}
        for mode in MODES:
            for number in range(len(following)):
                name = copy_of(STEADY, mode)
                goals[name, number] = _last(read_log(lab.east, name, number, last=TAIL))
        with ExitStack() as closing:
            reader = Reader(lab.east, group, *(copy_of(STEADY, mode) for mode in MODES))
            closing.callback(reader.close)
            reader.until(
                lambda read: all(
                    goal < following[place[1]] or (read[place] and read[place][-1] >= goal)
                    for place, goal in goals.items()
                ),
                f"{group} reads in the target up to {goals}",
            )
            reader.commit()
        for (name, number), read in reader.read.items():
            said = strayed(read, following[number], earliest[number]) if number < len(following) else ""
            assert not said, f"{group} in {name}-{number}: {said}"

    def _moved_back(self, group: str, mode: str, before: Sequence[int]) -> str:
        return moved_back(before, committed(self._lab.east, group, copy_of(STEADY, mode)))


def _each(places: Sequence[Place], count: int) -> Callable[[Numbers], bool]:
    return lambda read: all(len(read[place]) >= count for place in places)


def _kill(victims: Sequence[Daemon]) -> None:
    for victim in victims:
        victim.kill()


def _last(copy: Log) -> int:
    return number_of(copy.records[max(copy.records)]) if copy.records else -1
