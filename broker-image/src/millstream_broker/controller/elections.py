"""The leader and ISR of a partition, as a function of its stored state and of the live brokers.

`settle` is level-triggered and idempotent: given a state and the situation, it returns the desired state. Its
rules, in this order:

- A new partition is led by its first live replica; the ISR is all live replicas; the leader epoch is 0. It is higher in
  a mirror's replica, and random in a partition that an older copy of the store may have forgotten: brokers may have
  logs of it, with low epochs.
- A replica that cannot vouch for its log (`forgetful`) leaves the ISR. If nobody else is in it, the `elr` takes its
  place (KIP-966): its members have every acknowledged record, too. While nobody leads, the replica is remembered among
  the `suspects`.
- If all replicas that could lead are suspects, and one of them lives, the replica with the most complete log (`ends`,
  see `recovery`) leads, once every live replica has reported its log end: a replica that left the ISR earlier has
  more than one whose disk was wiped. A single one leads at once.
- After the store was restored from an older copy, logs decide (`comparison`), and nothing else counts until then.
- The ISR keeps its members that live, are not about to stop, and have not restarted since; if there are none, those
  that live; if there are none of those either, all (the last ones to have everything are never forgotten).
- The leader stays while it is in the ISR; else the first of the ISR in the order of the replicas leads. If no member
  of the ISR lives, a live one of the elr leads; then, only if unclean election is allowed, any live replica; else
  nobody.
- A new leader, a leader that restarted, and a replica that lost data or leaves because it is about to stop cause
  a new leader epoch, so that nothing from the time before (a fetch, an ISR change) counts afterwards. A controller's
  first one of a partition keeps a distance from those that the store may have forgotten (`leader_epochs`).

Every leader that is not elected uncleanly has each acknowledged record, provided that leaders keep the rules of
`replication.isr`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..coordination import NO_LEADER, PartitionRecord
from ..runtime.steps import Steps
from . import comparison
from .messages import LogEnd, Settings

NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Situation:
    """The inputs of a partition's state besides the state itself.

    `leaving` brokers live and are about to stop. `going`: replicas that a reassignment is ready to drop, so that others
    should lead. `preferred`: give leadership to the first replica, if it may have it. `doubted`: the store was restored
    from an older copy, and `missed`: leader epochs that may have been given since. `all_live`: no broker
    that ever registered is missing. `first_epoch`: that of a new partition. `distance`: how much further than the next
    one a new leader epoch is, away from those that may have been given and forgotten (`leader_epochs`).
    """

    live: Collection[int]
    leaving: Collection[int] = NOBODY
    restarted: Collection[int] = NOBODY
    forgetful: Collection[int] = NOBODY
    going: Collection[int] = NOBODY
    min_isr: int = 1
    unclean: bool = False
    preferred: bool = False
    new_epoch: bool = False
    missed: int = 0
    doubted: bool = False
    all_live: bool = True
    first_epoch: int = 0
    distance: int = 0
    ends: Mapping[int, LogEnd] = field(default_factory=dict)


def settle(record: PartitionRecord, now: Situation) -> PartitionRecord:
    """The desired state of the partition; `record` itself if it has it already."""
    if now.doubted:
        return comparison.doubted(record, now.missed, now.first_epoch)
    if record.doubted:
        best = most_complete(record, now)
        if best not in record.replicas:
            return record
        return comparison.elected(record, best, now.ends, now.distance)
    if record.version < 0:
        return _begin(record, now)
    replicas = record.replicas
    isr, elr, suspects = _with_memory(record, now)
    have_all = {*isr, *elr}
    if isr and isr[0] in suspects:  # then all are suspects
        alive = _most_complete(isr, replicas, now)
        have_all = {*alive}
    else:
        alive = [r for r in isr if r in now.live] or [r for r in elr if r in now.live][:1]
    if not alive and now.unclean and (live := _live(replicas, now)):
        alive = live[:1]
        have_all = {*alive}
    isr = [r for r in alive if r not in now.leaving and r not in now.restarted] or alive or isr
    leader = _leader(record.leader, replicas, alive and isr, now)
    renewed = (
        now.new_epoch
        or leader in now.restarted
        or any(r in now.forgetful for r in replicas)
        or any(r in now.leaving and r in record.isr and r not in isr for r in replicas)
    )
    is_new = leader != record.leader or (renewed and leader != NO_LEADER)
    epoch = record.leader_epoch + (1 + now.distance if is_new else 0)
    elr = (
        [r for r in replicas if r in have_all and r not in isr]
        if len(isr) < enough(record, now.min_isr)
        else []
    )
    if leader != NO_LEADER:
        suspects = []
    wanted = replace(
        record,
        leader=leader,
        leader_epoch=epoch,
        isr=tuple(isr),
        elr=tuple(elr),
        suspects=tuple(suspects),
    )
    return record if wanted == record else wanted


def most_complete(record: PartitionRecord, now: Situation) -> int:
    """The broker to lead a doubted partition, perhaps not a replica yet; NO_LEADER if that is not known."""
    found = comparison.winner(
        record, now.live, now.ends, now.min_isr, all_live=now.all_live, unclean=now.unclean
    )
    return NO_LEADER if found is None else found


def is_unclean_allowed(config: Mapping[str, str], settings: Settings) -> bool:
    """Whether the topic's configuration, or else the brokers', allows unclean election."""
    text = config.get("unclean.leader.election.enable")
    return settings.unclean_election if text is None else text.strip().lower() == "true"


def enough(record: PartitionRecord, min_isr: int) -> int:
    """The ISR size from which the high watermark moves; below it, replicas that left the ISR still have everything.

    At most the number that the leader uses (`replication.isr`), whichever of a reassignment's replicas it knows
    already.
    """
    coming = sum(r in record.replicas for r in record.adding)
    going = sum(r in record.replicas for r in record.removing)
    return min(min_isr, len(record.replicas) - max(coming, going))


def _begin(record: PartitionRecord, now: Situation) -> PartitionRecord:
    live = _live(record.replicas, now)
    if not live:
        return record
    epoch = now.first_epoch + now.distance
    return replace(record, leader=live[0], leader_epoch=epoch, isr=tuple(live), elr=())


def _live(replicas: Iterable[int], now: Situation) -> list[int]:
    """The live ones; without those about to stop, if there are others."""
    live = [r for r in replicas if r in now.live]
    return [r for r in live if r not in now.leaving] or live


def _with_memory(record: PartitionRecord, now: Situation) -> tuple[list[int], list[int], list[int]]:
    """ISR and elr without replicas that cannot vouch for their logs, as far as there are others; and those replicas."""
    isr = [r for r in record.isr if r in record.replicas] or list(record.isr)
    elr = [r for r in record.elr if r in record.replicas and r not in isr]
    doubtful = {*record.suspects, *(r for r in (*isr, *elr) if r in now.forgetful)}
    suspects = [r for r in record.replicas if r in doubtful]
    vouching = [r for r in elr if r not in doubtful]
    if remembering := [r for r in isr if r not in doubtful]:
        return remembering, vouching, suspects
    if vouching:
        return vouching, [], suspects
    return suspects or isr, [], suspects


def _most_complete(suspects: Collection[int], replicas: Collection[int], now: Situation) -> list[int]:
    """The replica to lead, if known yet. Among equals, a suspect leads, because it was in the ISR."""
    if not any(r in now.live for r in suspects):
        return []
    live = [r for r in (*suspects, *(r for r in replicas if r not in suspects)) if r in now.live]
    if len(live) == 1:
        return live
    return [max(live, key=lambda r: now.ends[r])] if all(r in now.ends for r in live) else []


def _leader(leader: int, replicas: Collection[int], isr: Collection[int], now: Situation) -> int:
    """The leader among these live members of the ISR."""
    order = [r for r in replicas if r not in now.going]
    if leader in isr and leader not in now.going and not (now.preferred and order[0] in isr):
        return leader
    return next((r for r in (*order, *replicas) if r in isr), NO_LEADER)


def imbalanced(
    records: Mapping[tuple[str, int], PartitionRecord], live: Collection[int], percentage: int
) -> Steps[list[tuple[str, int]]]:
    """Partitions whose preferred replica should lead again, on brokers that lead too few of theirs.

    A broker's imbalance is the percentage of its preferred partitions that it does not lead
    (`leader.imbalance.per.broker.percentage`). Yields after each partition.
    """
    preferred: Counter[int] = Counter()
    elsewhere: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for key, record in records.items():
        first = record.replicas[0]
        preferred[first] += 1
        if record.leader != first and first in live:
            elsewhere[first].append(key)
        yield
    return [
        key
        for first, keys in elsewhere.items()
        if len(keys) * 100 > preferred[first] * percentage
        for key in keys
        if may_lead_again(records[key])
    ]


def may_lead_again(record: PartitionRecord) -> bool:
    return record.replicas[0] in record.isr and not (record.adding or record.removing)
