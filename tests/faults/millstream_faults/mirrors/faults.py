"""Each kind of fault: `strike` causes it, waits, and undoes it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.links import CUT, FINE, SLOW, Condition
from millstream_harness.mirror import MirrorProcess

from ..draws import Fault
from .checks import DIFFERS, read_log
from .keyed import removed
from .lab import ANEW, BACK_S, COMPACTED, GAPPED, MOST_PARTITIONS, PARTITIONS, STEADY, Lab, copy_of
from .moving import Moves
from .plan import Kind
from .promotion import Promotions
from .retention import Retention

RECORDS = 40
"""Number of records sent to each of the other topics in each round."""
LEAST_REMOVED = 20
CONFIGURED = {
    "compression.type": ("producer", "lz4", "zstd", "gzip"),
    "segment.bytes": ("300000", "1000000", "4000000", ""),
    "retention.ms": ("86400000", "172800000", "-1", ""),
    "max.message.bytes": ("100000", "2000000", "3000000", ""),
}
"""Values of settings; empty: the default."""


class Faults:
    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab = lab
        self._chance = random.Random(seed)
        self.violations: list[str] = []
        self.later: dict[str, Callable[[], str]] = {}
        """What must hold at the end of the round; "" if it does."""
        self._retention = Retention(lab)
        self.promotions = Promotions(lab, self._chance)
        self._moves = Moves(lab, self._chance)
        lab.at_the_end(self.promotions.close)

    def strike(self, fault: Fault[Kind]) -> None:
        STRIKES[fault.kind](self, fault.seconds)

    def _kill(self, victims: Sequence[BrokerProcess | MirrorProcess], seconds: float) -> None:
        for victim in victims:
            victim.kill()
        time.sleep(seconds)
        for victim in victims:
            victim.start()

    def _stall(self, victim: BrokerProcess | MirrorProcess, seconds: float) -> None:
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(victim.pid, signal.SIGCONT)

    def kill_worker(self, seconds: float) -> None:
        self._kill([self._chance.choice(self._lab.workers)], seconds)

    def kill_workers(self, seconds: float) -> None:
        self._kill(self._lab.workers, seconds)

    def stall_worker(self, seconds: float) -> None:
        self._stall(self._chance.choice(self._lab.workers), seconds)

    def kill_leader(self, cluster: ClusterProcesses, topic: str, seconds: float) -> None:
        self._kill([cluster.leader(topic)], seconds)

    def kill_brokers(self, cluster: ClusterProcesses, seconds: float) -> None:
        for broker in cluster.brokers.values():
            broker.kill()
        time.sleep(seconds)
        cluster.start()

    def link(self, condition: Condition, side: str, seconds: float) -> None:
        names = self._lab.names(side) if side else ()
        self._lab.link.set(condition, *names)
        time.sleep(seconds)
        self._lab.link.set(FINE)

    def flap(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self._lab.link.set(CUT)
            time.sleep(self._chance.uniform(0.1, 1.5))
            self._lab.link.set(SLOW)
            time.sleep(self._chance.uniform(0.1, 1.0))
        self._lab.link.set(FINE)

    def add_partition(self, _: float) -> None:
        if self._lab.steady_partitions() < MOST_PARTITIONS:
            self._lab.add_partition()

    def configure(self, _: float) -> None:
        """Set some settings, and delete others."""
        entries = []
        for key, values in CONFIGURED.items():
            value = self._chance.choice(values)
            operation = AlterConfigOpType.SET if value else AlterConfigOpType.DELETE
            entries.append(ConfigEntry(key, value, incremental_operation=operation))
        resource = ConfigResource(ResourceType.TOPIC, STEADY, incremental_configs=entries)
        client = self._lab.admin()
        client.incremental_alter_configs([resource])[resource].result(30)

    def recreate(self, seconds: float) -> None:
        """The new topic gets fewer records. The old copies are deleted later, as the mirror's condition advises."""
        lab = self._lab
        before = {number: read_log(lab.west, ANEW, number) for number in range(PARTITIONS[ANEW])}
        lab.delete(lab.west, ANEW)
        lab.create(ANEW, PARTITIONS[ANEW])
        lab.sent[ANEW] = 0
        lab.produce(ANEW, RECORDS // 2)
        time.sleep(seconds)
        for mode, differs in DIFFERS.items():
            for number, source in before.items():
                if said := differs(source, read_log(lab.east, copy_of(ANEW, mode), number)):
                    self.violations.append(f"old {copy_of(ANEW, mode)}-{number}: {said}")
            lab.delete(lab.east, copy_of(ANEW, mode))

    def delete_records(self, _: float) -> None:
        self._delete(self._lab.sent[GAPPED] // 2)

    def gap(self, _: float) -> None:
        lab = self._lab
        for worker in lab.workers:
            worker.kill()
        lab.produce(GAPPED, RECORDS)
        self._delete(lab.sent[GAPPED] - RECORDS // 2)
        for worker in lab.workers:
            worker.start()

    def compact(self, seconds: float) -> None:
        """Half the time, another replica leads afterwards, which compacts its log independently."""
        lab = self._lab
        for worker in lab.workers:
            worker.kill()
        ends = [read_log(lab.east, COMPACTED, number, last=1).end for number in range(PARTITIONS[COMPACTED])]

        def is_compacted() -> bool:
            """Whether the log is compacted, including records that no mirror has."""
            logs = [read_log(lab.west, COMPACTED, number, since=end) for number, end in enumerate(ends)]
            return all(removed(log) > LEAST_REMOVED for log in logs)

        self._expect(is_compacted, f"the source has compacted {COMPACTED} behind offsets {ends}")
        if self._chance.random() < 0.5:
            self.kill_leader(lab.west, COMPACTED, seconds)
        for worker in lab.workers:
            worker.start()

    def retain(self, _: float) -> None:
        self._episode(self._retention.overtake)

    def promote(self, seconds: float) -> None:
        self._episode(partial(self.promotions.promote, seconds))

    def move(self, seconds: float) -> None:
        self._episode(partial(self._moves.move, seconds))

    def _episode(self, act: Callable[[], dict[str, Callable[[], str]]]) -> None:
        try:
            self.later |= act()
        except AssertionError as error:
            self.violations.append(str(error))
            self._lab.restart()

    def _expect(self, condition: Callable[[], object], what: str) -> None:
        try:
            until(condition, what, BACK_S)
        except AssertionError as error:
            self.violations.append(str(error))

    def _delete(self, offset: int) -> None:
        part = TopicPartition(GAPPED, 0, offset)
        client = self._lab.admin()
        client.delete_records([part])[part].result(30)


STRIKES: dict[Kind, Callable[[Faults, float], None]] = {
    Kind.KILL_WORKER: Faults.kill_worker,
    Kind.KILL_WORKERS: Faults.kill_workers,
    Kind.STALL_WORKER: Faults.stall_worker,
    Kind.KILL_SOURCE: lambda it, s: it.kill_leader(it._lab.west, STEADY, s),
    Kind.KILL_TARGET: lambda it, s: it.kill_leader(it._lab.east, STEADY, s),
    Kind.STALL_SOURCE: lambda it, s: it._stall(it._lab.west.leader(STEADY), s),
    Kind.STALL_TARGET: lambda it, s: it._stall(it._lab.east.leader(STEADY), s),
    Kind.KILL_SOURCES: lambda it, s: it.kill_brokers(it._lab.west, s),
    Kind.KILL_TARGETS: lambda it, s: it.kill_brokers(it._lab.east, s),
    Kind.CUT: lambda it, s: it.link(CUT, "", s),
    Kind.CUT_SOURCE: lambda it, s: it.link(CUT, "west", s),
    Kind.CUT_TARGET: lambda it, s: it.link(CUT, "east", s),
    Kind.CUT_LONG: lambda it, s: it.link(CUT, "", s),
    Kind.SLOW: lambda it, s: it.link(SLOW, "", s),
    Kind.FLAP: Faults.flap,
    Kind.PARTITIONS: Faults.add_partition,
    Kind.CONFIGURE: Faults.configure,
    Kind.ANEW: Faults.recreate,
    Kind.DELETE: Faults.delete_records,
    Kind.COMPACT: Faults.compact,
    Kind.RETAIN: Faults.retain,
    Kind.PROMOTE: Faults.promote,
    Kind.MOVE: Faults.move,
    Kind.GAP: Faults.gap,
}
