"""Asks a transaction's coordinator about partitions, until the answer counts (KIP-890).

Before the first records of a transaction in a partition are appended, the coordinator confirms that the partition is
in an open transaction, or adds it. The answer may come late, so a guard in the log (`log.verifications`) shows whether
a marker came before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..log.verifications import VerificationGuard
from .partition import Partition

RETRY_S, TRIES = 0.02, 10


class TransactionVerifier(Protocol):
    """Asks a transaction's coordinator about partitions."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """The error of each partition, NONE if it is in an open transaction; ``add`` adds it to that."""


class Verdict(NamedTuple):
    """The coordinator's answer for a partition."""

    partition: Partition
    guard: VerificationGuard
    error: ErrorCode

    @property
    def came_late(self) -> bool:
        """Whether a marker came before the confirmation."""
        guard, guards = self.guard, self.partition.log.producers.verifications
        return not self.error and guards.find(guard.producer_id, guard.epoch) is not guard


async def verify(
    verifier: TransactionVerifier,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    first_sequences: Mapping[Partition, int],
    *,
    adds: bool,
) -> list[Verdict]:
    """The last answer for each partition; append at once, before another marker can come.

    The marker of the producer's last transaction may come late, and remove the guards of its next one. Then the guards
    are renewed, and the coordinator is asked again. A coordinator that ``adds`` partitions is also asked again while it
    completes the last transaction. It is not asked about partitions whose log knows a later epoch of the producer.
    """
    verdicts: list[Verdict] = []
    for _ in range(TRIES):
        guards, outdated = dict[Partition, VerificationGuard](), list[Verdict]()
        for partition, sequence in first_sequences.items():
            producers = partition.log.producers
            if producers.has_later_epoch(producer_id, producer_epoch):
                guard = VerificationGuard(producer_id, producer_epoch, sequence, bumps_epoch=adds)
                outdated.append(Verdict(partition, guard, ErrorCode.INVALID_PRODUCER_EPOCH))
            else:
                guards[partition] = producers.verifications.begin(
                    producer_id, producer_epoch, sequence, bumps_epoch=adds
                )
        if not guards:
            return outdated
        partitions = [(partition.topic, partition.index) for partition in guards]
        errors = await verifier.verify(transactional_id, producer_id, producer_epoch, partitions, add=adds)
        verdicts = [
            Verdict(partition, guard, errors.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR))
            for topic_partition, (partition, guard) in zip(partitions, guards.items(), strict=True)
        ]
        is_completing = adds and any(each.error is ErrorCode.CONCURRENT_TRANSACTIONS for each in verdicts)
        if not is_completing and not any(each.came_late for each in verdicts):
            break
        await asyncio.sleep(RETRY_S)
    return outdated + verdicts
