"""Leaders, followers, elections and ISR writes in any order: all members of ISR and ELR have each acknowledged record.

Three replicas of one partition, each a list of records with leader epochs. State is stored as in coordination, on
condition of its version, and a writer may never learn the outcome. A controller elects only from the ISR and the ELR.
Replicas learn of the state late, so several may believe that they lead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream_broker.coordination import PartitionRecord
from millstream_broker.log.epochs import LeaderEpochs
from millstream_broker.replication.divergence import diverging_epoch, truncation_offset
from millstream_broker.replication.isr import Isr, eligible_leaders
from millstream_kafka.protocol.errors import ApiError

REPLICAS = (1, 2, 3)
MAX_LAG_MS = 100
replicas = st.sampled_from(REPLICAS)


@dataclass
class Node:
    """A broker's replica: its log and its view of the state."""

    number: int
    records: list[tuple[int, int]] = field(default_factory=list)
    """Leader epoch and value of each record."""
    epochs: LeaderEpochs = field(default_factory=lambda: LeaderEpochs("/nowhere"))
    record: PartitionRecord | None = None
    high_watermark: int = 0
    isr: Isr | None = None
    writing: PartitionRecord | None = None

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)


class Replication(RuleBasedStateMachine):
    @initialize(min_isr=st.integers(1, 3))
    def begin(self, min_isr: int) -> None:
        self.now = 1000
        self.value = 0
        self.min_isr = min_isr
        self.stored = PartitionRecord(REPLICAS, 1, 0, REPLICAS)
        self.nodes = {number: Node(number) for number in REPLICAS}
        self.committed: list[tuple[int, int]] = []
        for number in REPLICAS:
            self.learn(number)

    def learn(self, number: int) -> None:
        """A replica learns the stored state."""
        node, stored = self.nodes[number], self.stored
        if node.record is not None and node.record.leader_epoch == stored.leader_epoch:
            node.record = stored
            if node.isr is not None:
                node.isr.update(stored, len(node.records), self.now)
        else:
            node.record, node.writing, end = stored, None, len(node.records)
            if stored.leader != number:
                node.isr = None
            else:
                node.epochs.assign(stored.leader_epoch, end)
                if node.isr is None:
                    node.isr = Isr(
                        number,
                        stored,
                        log_end=end,
                        high_watermark=node.high_watermark,
                        min_isr=self.min_isr,
                        max_lag_ms=MAX_LAG_MS,
                        alive=REPLICAS,
                        now_ms=self.now,
                    )
                else:
                    node.isr.update(stored, end, self.now)
        self.advance(node)

    def advance(self, node: Node) -> None:
        if node.isr is None:
            return
        before = node.high_watermark
        node.high_watermark = node.isr.advance(len(node.records), self.now)
        assert before <= node.high_watermark <= len(node.records)
        if node.high_watermark > before:  # acknowledged, whoever leads by now
            mine = node.records[: node.high_watermark]
            common = min(len(mine), len(self.committed))
            assert mine[:common] == self.committed[:common], "two records were acknowledged at one offset"
            self.committed += mine[common:]

    learned = rule(number=replicas)(learn)

    @rule(number=replicas, count=st.integers(1, 3))
    def produce(self, number: int, count: int) -> None:
        node = self.nodes[number]
        if node.isr is None:
            return
        assert node.record is not None
        for _ in range(count):
            self.value += 1
            node.records.append((node.record.leader_epoch, self.value))
        self.advance(node)

    @rule(number=replicas, size=st.integers(0, 4))
    def fetch(self, number: int, size: int) -> None:
        node = self.nodes[number]
        assert node.record is not None
        leader = self.nodes.get(node.record.leader)
        if node.isr is not None or leader is None or leader.isr is None:
            return
        if leader.record is None or leader.record.leader_epoch != node.record.leader_epoch:
            return
        offset, end = len(node.records), len(leader.records)
        try:
            parted = diverging_epoch(leader.epochs, end, offset, node.epochs.latest)
        except ApiError as error:
            raise AssertionError("replicas of one history can always be compared") from error
        if parted is not None:
            at = truncation_offset(node.epochs, offset, *parted)
            assert at <= offset
            node.truncate(at)
            return
        assert leader.records[:offset] == node.records, "the logs part, and nobody noticed"
        leader.isr.fetched(number, offset, end, self.now)
        self.advance(leader)
        for record in leader.records[offset : offset + size]:
            node.epochs.assign(record[0], len(node.records))
            node.records.append(record)
        node.high_watermark = max(node.high_watermark, min(leader.high_watermark, len(node.records)))

    @rule(ms=st.sampled_from([1, 10, 60, 120]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        for node in self.nodes.values():
            self.advance(node)

    @rule(number=replicas)
    def propose(self, number: int) -> None:
        node = self.nodes[number]
        if node.isr is not None and node.writing is None:
            node.writing = node.isr.propose(self.now)

    @rule(number=replicas, learns=st.booleans())
    def write(self, number: int, learns: bool) -> None:
        """An ISR write succeeds, or fails on its condition; its writer may not learn which."""
        node = self.nodes[number]
        writing, node.writing = node.writing, None
        if writing is None or node.isr is None:
            return
        succeeds = writing.version == self.stored.version
        if succeeds:
            self.stored = replace(writing, version=writing.version + 1)
        if not learns:
            node.isr.unknown()
        elif succeeds:
            node.isr.written(self.stored)
        else:
            node.isr.conflicted(self.stored)
        self.advance(node)

    @rule(number=replicas, prefer_elr=st.booleans())
    def elect(self, number: int, prefer_elr: bool) -> None:
        """The controller makes another member of the ISR, or of the equally complete ELR, the leader."""
        stored = self.stored
        if number == stored.leader or number not in {*stored.isr, *stored.elr}:
            return
        isr = stored.isr if number in stored.isr else (number,)
        self.stored = replace(
            stored,
            leader=number,
            leader_epoch=stored.leader_epoch + 1,
            isr=isr,
            elr=eligible_leaders(stored, isr, self.min_isr),
            version=stored.version + 1,
        )

    @precondition(lambda self: len(self.stored.isr) > 1)
    @rule(number=replicas)
    def leaves(self, number: int) -> None:
        """The controller removes a dead follower from the ISR, within the same epoch."""
        stored = self.stored
        if number == stored.leader or number not in stored.isr:
            return
        isr = tuple(one for one in stored.isr if one != number)
        elr = eligible_leaders(stored, isr, self.min_isr)
        self.stored = replace(stored, isr=isr, elr=elr, version=stored.version + 1)

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        if not hasattr(self, "stored"):
            return
        for number in (*self.stored.isr, *self.stored.elr):
            records = self.nodes[number].records
            assert records[: len(self.committed)] == self.committed, f"{number} lacks acknowledged records"


Replication.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestReplication = Replication.TestCase
