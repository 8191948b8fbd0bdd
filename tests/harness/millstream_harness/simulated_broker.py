"""A broker of a simulated cluster: the rules of replication on logs of (epoch, value), without input or output."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream_broker.coordination import NO_LEADER, PartitionRecord
from millstream_broker.log.epochs import LeaderEpochs
from millstream_broker.log.known_states import KnownState
from millstream_broker.replication.divergence import diverging_epoch, truncation_offset
from millstream_broker.replication.isr import Isr
from millstream_broker.topic_rules.mirrored_topics import EPOCHS_ABOVE
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.stop_replica import EPOCH_DURING_DELETE, StopReplicaRequest
from millstream_kafka.protocol.update_metadata import LEADER_DURING_DELETE, UpdateMetadataRequest
from millstream_kafka.topic_partition import TopicPartition

if TYPE_CHECKING:
    from millstream_harness.simulated_cluster import SimulatedCluster

LAG_MS = 5_000
LogKey = tuple[uuid.UUID, int]


class Violation(AssertionError):
    """Something that must never happen."""


class SimulatedLog:
    """Records as (epoch, value)."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.epochs = LeaderEpochs("")
        self.high_watermark = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def last_epoch(self) -> int:
        return self.epochs.latest

    @property
    def last(self) -> tuple[int, int]:
        """The epoch of its last record, and its end."""
        return self.records[-1][0] if self.records else -1, self.end

    def append(self, epoch: int, value: int) -> None:
        self.epochs.assign(epoch, self.end)
        self.records.append((epoch, value))

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)

    def copy(self) -> SimulatedLog:
        made = SimulatedLog()
        made.records, made.high_watermark = [*self.records], self.high_watermark
        made.epochs.entries = [*self.epochs.entries]
        return made


@dataclass(slots=True)
class IsrWrite:
    key: TopicPartition
    isr: Isr
    record: PartitionRecord


@dataclass(slots=True)
class Fetch:
    follower: int
    incarnation: int
    leader: int
    key: TopicPartition
    topic_id: uuid.UUID
    epoch: int
    offset: int
    last_epoch: int
    answer: tuple[tuple[int, int] | None, list[tuple[int, int]], int] | None = None


class SimulatedBroker:
    """A broker by the rules of replication; its logs outlive its processes."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.is_up = False
        self.epoch = 0
        self.incarnation = 0
        self.is_unclean = False
        self.generation = 0
        self.logs: dict[LogKey, SimulatedLog] = {}
        self.copy: tuple[int, dict[LogKey, SimulatedLog]] = (0, {})
        """A copy of its disk: generation and logs, as they were."""
        self.states: dict[LogKey, KnownState] = {}
        """The newest state of each partition that its disk has noted."""
        self.strays: set[LogKey] = set()
        """The logs that are strays: kept, and not served."""
        self.returned: set[LogKey] = set()
        """Logs that were strays, and that no leader has confirmed yet."""
        self.kept: dict[LogKey, list[SimulatedLog]] = defaultdict(list)
        """Strays in whose place there is another log."""
        self.forgotten: dict[LogKey, KnownState] = {}
        self.ahead = 0
        self.shown = 0
        """The generation that this process has shown to the tree."""
        self.forget()

    def forget(self) -> None:
        """The process ends."""
        self.shown = 0
        self.controller_epoch = 0
        self.view: dict[TopicPartition, tuple[uuid.UUID, PartitionRecord]] = {}
        self.live: set[int] = set()
        self.leads: dict[TopicPartition, Isr] = {}
        self.stopped: dict[TopicPartition, int] = {}
        self.unacknowledged: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        self.confirmed: dict[LogKey, int] = {}
        """The epoch of the leader that has confirmed a log last."""

    def is_replica(self, key: TopicPartition) -> bool:
        return key in self.view and self.id in self.view[key][1].replicas

    def log(self, key: TopicPartition) -> SimulatedLog:
        of = self.view[key][0], key[1]
        if of in self.strays:
            self.strays.discard(of)
            self.returned.add(of)
        return self.logs.setdefault(of, SimulatedLog())

    def note(self, key: TopicPartition, record: PartitionRecord) -> None:
        """Note a state that this broker acts on (`millstream_broker.log.known_states`)."""
        of, seen = (self.view[key][0], key[1]), KnownState(record.leader_epoch, record.version)
        if record.version >= 0:
            self.states[of] = max(seen, self.states.get(of, seen))

    def confirm(self, of: LogKey, leader_epoch: int) -> None:
        self.returned.discard(of)
        self.confirmed[of] = leader_epoch

    def delete(self, of: LogKey) -> None:
        self.logs.pop(of, None)
        self.confirmed.pop(of, None)
        self.strays.discard(of)
        self.returned.discard(of)

    def is_unconfirmed(self, of: LogKey, compared: int) -> bool:
        """Whether it may have records that nobody else has (`Log.is_suspect`)."""
        newest = max(self.logs[of].epochs.latest, self.confirmed.get(of, -1))
        return of in self.returned or newest < compared

    def truncate(self, key: TopicPartition, offset: int) -> None:
        """An unconfirmed log is not truncated: it becomes a stray, and an empty log takes its place."""
        of, log = (self.view[key][0], key[1]), self.log(key)
        if offset < log.end and self.is_unconfirmed(of, self.view[key][1].compared):
            self.returned.discard(of)
            self.confirmed.pop(of, None)
            self.kept[of].append(self.logs.pop(of))
        else:
            log.truncate(offset)

    def update(self, request: UpdateMetadataRequest) -> bool:
        """Whether the broker accepts the request."""
        if request.controller_epoch < self.controller_epoch or request.broker_epoch != self.epoch:
            return False
        self.controller_epoch = request.controller_epoch
        self.live = {one.id for one in request.live_brokers}
        for topic in request.topic_states:
            for state in topic.partition_states:
                key = (topic.topic_name, state.partition_index)
                known = self.view.get(key)
                if state.leader == LEADER_DURING_DELETE:  # named for one partition, it concerns the topic
                    for gone in [one for one in self.view if one[0] == topic.topic_name]:
                        del self.view[gone]
                        self.leads.pop(gone, None)
                    break
                if known is None or known[0] != topic.topic_id or state.zk_version >= known[1].version:
                    if known is not None and known[0] != topic.topic_id:
                        self.leads.pop(key, None)
                    record = PartitionRecord(
                        tuple(state.replicas),
                        state.leader,
                        state.leader_epoch,
                        tuple(state.isr),
                        state.zk_version,
                        state.controller_epoch,
                        elr=tuple(state.elr),
                        compared=state.compared,
                    )
                    self.view[key] = (topic.topic_id, record)
                    if self.id in record.replicas:
                        self.note(key, record)
                    self._follow(key, record)
        for isr in self.leads.values():
            isr.set_alive(self.live)
        return True

    def _follow(self, key: TopicPartition, record: PartitionRecord) -> None:
        if self.id not in record.replicas or record.leader != self.id:
            self.leads.pop(key, None)
            self.unacknowledged.pop(key, None)
            return
        log = self.log(key)
        isr = self.leads.get(key)
        if isr is None:
            self.confirm((self.view[key][0], key[1]), record.leader_epoch)
            self.cluster.leads(self.id, key, self.view[key][0], record)
            self.leads[key] = Isr(
                self.id,
                record,
                log_end=log.end,
                high_watermark=log.high_watermark,
                min_isr=self.cluster.min_isr,
                max_lag_ms=LAG_MS,
                alive=self.live,
                now_ms=self.cluster.now_ms,
            )
            log.epochs.assign(record.leader_epoch, log.end)
        else:
            if record.leader_epoch > isr.record.leader_epoch:
                self.cluster.leads(self.id, key, self.view[key][0], record)
                log.epochs.assign(record.leader_epoch, log.end)
            isr.update(record, log.end, self.cluster.now_ms)
        self.advance(key)

    def stop(self, request: StopReplicaRequest) -> bool:
        if request.controller_epoch < self.controller_epoch or request.broker_epoch != self.epoch:
            return False
        self.controller_epoch = request.controller_epoch
        for topic in request.topic_states:
            for state in topic.partition_states:
                key = (topic.topic_name, state.partition_index)
                known = self.view.get(key)
                if known is not None and -1 < state.leader_epoch < known[1].leader_epoch:
                    continue
                if not state.delete_partition:
                    self.stopped[key] = state.leader_epoch
                    continue
                if state.leader_epoch == EPOCH_DURING_DELETE:
                    self.delete((topic.topic_id, key[1]))
                    self.kept.pop((topic.topic_id, key[1]), None)
                elif known is not None and known[0] == topic.topic_id:
                    isr = self.leads.pop(key, None)
                    if isr is not None and isr.record.leader_epoch >= state.leader_epoch:
                        raise Violation(f"{self.id} is to delete {key}, which it leads")
                    of = known[0], key[1]
                    if of in self.logs and self.is_unconfirmed(of, known[1].compared):
                        self.kept[of].append(self.logs[of])
                    self.delete(of)
        return True

    # As a leader

    def produce(self, key: TopicPartition) -> None:
        isr = self.leads[key]
        if len(isr.record.isr) < self.cluster.min_isr:
            return
        log = self.log(key)
        if log.epochs.latest > isr.record.leader_epoch:
            above = log.epochs.latest + EPOCHS_ABOVE + self.cluster.rng.randrange(EPOCHS_ABOVE)
            self.cluster.raise_epoch(self.id, key, replace(isr.record, leader_epoch=above))
            return
        value = next(self.cluster.values)
        log.append(isr.record.leader_epoch, value)
        self.unacknowledged[key].append((log.end - 1, value))
        self.advance(key)

    def advance(self, key: TopicPartition) -> None:
        isr, log = self.leads[key], self.log(key)
        before = log.high_watermark
        log.high_watermark = max(before, isr.advance(log.end, self.cluster.now_ms))
        self.cluster.committed(self.id, key, self.view[key][0], log, before)
        waiting = self.unacknowledged[key]
        while waiting and waiting[0][0] < log.high_watermark:
            self.cluster.acknowledged(key, self.view[key][0], *waiting.pop(0))

    def propose(self, key: TopicPartition) -> IsrWrite | None:
        record = self.leads[key].propose(self.cluster.now_ms)
        return None if record is None else IsrWrite(key, self.leads[key], record)

    def answer(self, fetch: Fetch) -> bool:
        """Fill in the response; returns whether there is one."""
        isr = self.leads.get(fetch.key)
        if isr is None or self.view[fetch.key][0] != fetch.topic_id:
            return False
        if isr.record.leader_epoch != fetch.epoch or fetch.follower not in isr.followers:
            return False
        log = self.log(fetch.key)
        try:
            parts = diverging_epoch(log.epochs, log.end, fetch.offset, fetch.last_epoch)
        except ApiError:
            parts = (-1, 0)
        if parts is None and fetch.offset > log.end:
            parts = (log.last_epoch, log.end)
        if parts is None:
            isr.fetched(fetch.follower, fetch.offset, log.end, self.cluster.now_ms)
            self.advance(fetch.key)
        fetch.answer = (parts, log.records[fetch.offset : fetch.offset + 3], log.high_watermark)
        return True

    # As a follower

    def follows(self) -> list[TopicPartition]:
        return [
            key
            for key, (_, record) in sorted(self.view.items(), key=lambda item: item[0])
            if self.id in record.replicas
            and record.leader not in (self.id, NO_LEADER)
            and self.stopped.get(key, -1) < record.leader_epoch
        ]

    def fetch(self, key: TopicPartition) -> Fetch:
        topic_id, record = self.view[key]
        log = self.log(key)
        return Fetch(
            self.id,
            self.incarnation,
            record.leader,
            key,
            topic_id,
            record.leader_epoch,
            log.end,
            log.last_epoch,
        )

    def fetched(self, fetch: Fetch) -> None:
        known = self.view.get(fetch.key)
        if not self.is_up or self.incarnation != fetch.incarnation or known is None:
            return
        if (known[0], known[1].leader_epoch) != (fetch.topic_id, fetch.epoch) or self.id not in known[
            1
        ].replicas:
            return
        log = self.log(fetch.key)
        if (log.end, log.last_epoch) != (fetch.offset, fetch.last_epoch) or fetch.answer is None:
            return  # from several fetches; a broker has one in flight
        parts, records, high_watermark = fetch.answer
        if parts is not None:
            self.truncate(fetch.key, truncation_offset(log.epochs, log.end, *parts))
            return
        self.confirm((known[0], fetch.key[1]), fetch.epoch)
        for epoch, value in records:
            log.append(epoch, value)
        log.high_watermark = max(log.high_watermark, min(log.end, high_watermark))
