"""The results of a run: its faults, the time until acknowledgements resumed, and a timeline."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib
from matplotlib import pyplot as plt

from .history import Acknowledged, Committed, Event, Read, Struck, TopicCreated, TopicDeleted, Transacted
from .topics import STEADY, Lives
from .violations import Violation

matplotlib.use("Agg")
BUCKET_S = 1.0
COLOURS = ("#c44e52", "#dd8452", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")


@dataclass(frozen=True, slots=True)
class Recovery:
    """A fault, and the time in s from its start until every partition acknowledged a record sent after that."""

    fault: Struck
    seconds: float | None

    @property
    def kind(self) -> str:
        return self.fault.text.partition(":")[0]


def recoveries(events: Sequence[Event]) -> list[Recovery]:
    """One per fault, in order; its time is None if a partition of STEADY never acknowledged again."""
    lives = Lives(events)
    acknowledged: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if isinstance(event, Acknowledged) and lives.name(event.topic) in ("", STEADY):
            acknowledged[event.partition].append((event.sent, event.at))
    firsts: dict[int, tuple[list[float], list[float]]] = {}
    for partition, times in acknowledged.items():
        times.sort()
        earliest: list[float] = []
        soonest = float("inf")
        for _, at in reversed(times):
            soonest = min(soonest, at)
            earliest.append(soonest)
        firsts[partition] = [sent for sent, _ in times], earliest[::-1]
    found = []
    for fault in sorted((event for event in events if isinstance(event, Struck)), key=lambda one: one.at):
        waits: list[float] = []
        for sent, earliest in firsts.values():
            place = bisect_left(sent, fault.at)
            waits.append(earliest[place] - fault.at if place < len(sent) else float("inf"))
        worst = max(waits, default=float("inf"))
        found.append(Recovery(fault, None if worst == float("inf") else worst))
    return found


def summary(
    events: Sequence[Event], violations: Sequence[Violation], left_out: Mapping[str, str], seconds: float
) -> str:
    """A table of the faults, the counts of acknowledged and read records, and the violations."""
    count = Counter(type(event) for event in events)
    outcomes = Counter(event.outcome for event in events if isinstance(event, Transacted))
    by_kind: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in recoveries(events):
        by_kind[recovery.kind].append(recovery)
    total = sum(len(found) for found in by_kind.values())
    lines = [
        f"{total} faults in {seconds:.0f} s; {count[Acknowledged]} records acknowledged, {count[Read]} read, "
        f"{count[Committed]} positions committed; "
        f"{count[TopicCreated]} topics created, {count[TopicDeleted]} deleted",
        f"{sum(outcomes.values())} transactions: "
        + ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items())),
        "",
        f"{'fault':32}{'times':>6}  until every partition acknowledges again: median, max (s)",
    ]
    for kind, found in sorted(by_kind.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        waits = [recovery.seconds for recovery in found if recovery.seconds is not None]
        figures = f"{median(waits):8.2f}{max(waits):8.2f}" if waits else "   never"
        lines.append(f"{kind:32}{len(found):6}  {figures}")
    lines += [f"left out: {what}: {why}" for what, why in left_out.items()]
    lines += ["", f"violations: {len(violations)}"]
    lines += [f"  {kind}: {number}" for kind, number in Counter(one.kind for one in violations).items()]
    return "\n".join(lines)


def timeline(events: Sequence[Event], began: float, path: Path) -> None:
    """Plot acknowledged and read records per second over time, beside the duration of each fault."""
    faults = sorted((event for event in events if isinstance(event, Struck)), key=lambda fault: fault.at)
    kinds = sorted({fault.text.partition(":")[0] for fault in faults})
    last = max((event.at for event in events), default=began) - began
    width = min(40.0, max(10.0, last / 30))
    figure, (rates, marks) = plt.subplots(
        2, 1, sharex=True, figsize=(width, 3.2 + 0.22 * len(kinds)), layout="constrained",
        height_ratios=[3.0, 0.6 + 0.22 * len(kinds)],
    )  # fmt: skip
    for kind, label, colour in ((Acknowledged, "acknowledged", "#1f6f8b"), (Read, "read", "#b0a597")):
        buckets = Counter(int((event.at - began) / BUCKET_S) for event in events if isinstance(event, kind))
        places = range(int(last / BUCKET_S) + 1)
        rates.plot(
            [place * BUCKET_S for place in places],
            [buckets[place] / BUCKET_S for place in places],
            label=f"records {label}",
            color=colour,
            linewidth=1.2,
            zorder=3 if kind is Acknowledged else 2,
        )
    for fault in faults:
        row = kinds.index(fault.text.partition(":")[0])
        begin, length = fault.at - began, max(fault.until - fault.at, 0.15)
        colour = COLOURS[row % len(COLOURS)]
        marks.barh(row, length, left=begin, height=0.7, color=colour)
        rates.axvspan(begin, begin + length, color=colour, alpha=0.13, linewidth=0)
    marks.set_yticks(range(len(kinds)), kinds, fontsize=8)
    marks.invert_yaxis()
    marks.set_xlabel("seconds")
    rates.set_ylabel("records a second")
    rates.set_ylim(bottom=0)
    rates.legend(loc="upper right", fontsize=8)
    rates.set_title("A cluster of three brokers while it is broken")
    figure.savefig(path, dpi=100)
    plt.close(figure)
