"""A task of mode Identity: its numbers leave no hole in the target, for any order and loss of messages."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import cast

import pytest

from millstream_harness.mirrored import Source
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream_kafka.protocol.metadata import MetadataResponse
from millstream_kafka.protocol.mirror_append import MirrorPartitionResponse
from millstream_mirror.identity.flow import CopyFlow, ReplicaRequest, ReplicaTask
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.membership.member import TaskName
from millstream_mirror.partitions.partition_task import PartitionTask
from millstream_mirror.partitions.stats import Counters, Reachability
from millstream_mirror.records.rewrite import Outgoing

pytestmark = pytest.mark.process

START = Progress(0, -1, 0, 0, 0, "topic", "cluster", 0, first=0)


def task() -> ReplicaTask:
    made = ReplicaTask("t", 0, "t", START)
    made.end_recovery()
    return made


def send(of: ReplicaTask, records: int) -> ReplicaRequest:
    batches = []
    if records:
        batches = [Outgoing(memoryview(bytes(records)), 0, 0, 0, of.position + records, records)]
    sent = of.send(batches)
    assert isinstance(sent, ReplicaRequest)
    return sent


class Target:
    """A replica: accepts batches at its end; has offsets from ``start`` to before ``end``."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.records: list[range] = []

    def take(self, sent: ReplicaRequest) -> MirrorPartitionResponse:
        answer = MirrorPartitionResponse(0, 0)
        if sent.from_offset != self.end:
            answer.error_code = 1
        elif sent.batches:
            self.records.append(range(sent.next_offset - sent.records, sent.next_offset))
            self.end = sent.next_offset
        elif self.end < sent.log_start:
            self.records.clear()
            self.end = sent.log_start
        if not answer.error_code:
            self.start = max(self.start, min(sent.log_start, self.end))
        answer.log_start_offset, answer.log_end_offset = self.start, self.end
        return answer

    def is_whole(self, source_start: int) -> bool:
        """Every record of the source from its start, or from this log's, is here."""
        at = max(self.start, source_start)
        for one in self.records:
            if one.stop > at:
                if one.start > at:
                    return False
                at = one.stop
        return at >= self.end


def test_empty_request_moves_no_later_batches() -> None:
    of, target = task(), Target()
    first = send(of, 10)
    of.appended(first, target.take(first))
    empty = send(of, 0)
    late = target.take(empty)
    lost = send(of, 10)
    of.appended(empty, late)
    behind = send(of, 10)
    assert (lost.from_offset, behind.from_offset) == (10, 20)
    assert target.take(behind).error_code, "one of them is lost: no hole"


def test_empty_request_in_flight_blocks_fetches() -> None:
    of = task()
    first = send(of, 10)
    of.appended(first, Target().take(first))
    assert of.may_fetch(100)
    of.source_start = 1000
    empty = send(of, 0)
    assert not of.may_fetch(100)
    of.appended(empty, MirrorPartitionResponse(0, 0, log_start_offset=1000, log_end_offset=1000))
    assert (of.end, of.position, of.acknowledged.offset) == (1000, 1000, 1000)
    assert of.may_fetch(100)


@pytest.mark.parametrize("seed", range(30))
def test_batches_begin_at_end_of_earlier_batches(seed: int) -> None:
    """Requests are accepted in order or lost, even if later ones are accepted; responses come late, disordered, or not.

    ``hasty`` also sends while the task forbids it: two brokers of the source may lead it for a moment.
    """
    dice = random.Random(seed)
    hasty = seed % 2 == 1
    of, target = task(), Target()
    on_their_way: deque[ReplicaRequest] = deque()
    answers: list[tuple[ReplicaRequest, MirrorPartitionResponse | None]] = []
    before = 0
    """The end of the last records sent."""
    taken = 0
    for _ in range(1000):
        may_send = of.may_fetch(60) or (hasty and not of.has_failed and not of.is_recovering)
        if may_send and dice.random() < 0.6:
            if dice.random() < 0.2:
                of.source_start = max(
                    of.source_start, min(of.position + dice.choice((-3, 0, 20)), before + 20)
                )
            is_behind = of.source_start > of.target_start
            if is_behind and (not of.in_flight or (hasty and dice.random() < 0.2)):
                on_their_way.append(send(of, 0))
            elif of.position >= of.source_start:
                sent = send(of, dice.randint(1, 9))
                assert sent.from_offset >= before
                before = sent.next_offset
                on_their_way.append(sent)
        elif on_their_way and dice.random() < 0.5:
            sent = on_their_way.popleft()
            answer = target.take(sent) if dice.random() < 0.95 else None
            answers.append((sent, answer))
            assert target.is_whole(of.source_start)
        elif answers and dice.random() < 0.5:
            sent, answer = answers.pop(dice.randrange(len(answers)))
            if answer is not None and not answer.error_code and dice.random() < 0.95:
                of.appended(sent, answer)
                taken += sent.records
            else:
                of.fail("lost", sent)
        if of.has_failed and not of.in_flight:
            on_their_way.clear()
            answers.clear()
            of.target_start = target.start
            of.rewind(Progress(max(target.end, of.source_start), -1, 0, 0, target.end, "topic", "cluster", 0))
            before = target.end
    assert taken > 20


class Interrupted(ClusterClient):
    """Runs something while the leader of t-0 is looked up; there is no broker."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__("127.0.0.1:1", timeout=0.1)
        self.happens = happens

    async def metadata(self, topics: Collection[str] | None) -> MetadataResponse:
        self.happens()
        self._leaders["t", 0] = 1, time.monotonic()
        return MetadataResponse()


async def test_records_fetched_before_rewind_are_dropped() -> None:
    of, source = task(), Source()
    source.add(20)
    first = send(of, 10)
    of.appended(first, Target().take(first))
    lost, fetched = send(of, 10), source.add(10)

    def recovered() -> None:
        of.fail("lost", lost)
        of.rewind(of.acknowledged)

    target = Interrupted(recovered)
    flow = CopyFlow("west", target, target, _Nobody(), Reachability("west", ""), Counters())
    flow.tasks = {("t", 0): of}
    data = PartitionData(0, 0, high_watermark=30, log_start_offset=0, records=memoryview(fetched))
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[data])])
    await flow._forward(response, {("t", 0): (20, -1)})
    assert (of.position, list(of.in_flight)) == (10, [])
    await target.close()


class _Nobody:
    async def open(self, names: Sequence[TaskName]) -> list[PartitionTask]:
        return []

    async def recover(self, task: PartitionTask) -> None: ...


async def test_records_of_former_leader_are_dropped() -> None:
    """The logs were compared again meanwhile, with a leader that may lack these records."""
    of, source = task(), Source()
    fetched = source.add(10)
    of.source_epoch = 4
    target = Interrupted(lambda: None)
    flow = CopyFlow("west", target, target, _Nobody(), Reachability("west", ""), Counters())
    flow.tasks = {("t", 0): of}
    data = PartitionData(0, 0, high_watermark=10, log_start_offset=0, records=memoryview(fetched))
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[data])])
    await flow._forward(response, {("t", 0): (0, 3)})
    assert (of.position, list(of.in_flight)) == (0, [])
    await target.close()


@pytest.mark.parametrize(
    ("end", "high_watermark", "is_sent"),
    [(0, 100, False), (0, 55, True), (60, 100, True)],
    ids=["the source has more", "the source is empty", "the target ends later"],
)
async def test_source_start_moves_no_end_before_batches(end: int, high_watermark: int, is_sent: bool) -> None:
    """The source's first batch may begin before its start, and a response may have had no room for it."""
    of = task()
    of.source_start, of.end, of.position = 55, end, max(55, end)
    empty = PartitionData(0, 0, high_watermark, log_start_offset=55)
    assert await CopyFlow._number(cast(CopyFlow, None), of, empty) == ([([], b"")] if is_sent else [])
