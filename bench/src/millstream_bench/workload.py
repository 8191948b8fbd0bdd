"""A workload: work for a broker, and measurements meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millstream_bench.figures import Figure
from millstream_bench.peers import KAFKA, MILLSTREAM, TMPFS, Peer

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """``run(peer, scale)`` does it once and returns a number for each figure; ``scale`` 1 is the full size.

    Workloads of one broker share a process, which has been warmed up, and find it started. One with
    ``own`` gets a peer over an empty folder and starts it itself. With ``tls``, that peer has a
    listener with TLS as well. ``contenders`` are compared, the first
    with the last; a single one is only compared with its goals. ``rounds`` limits contenders to a number of
    first rounds: if the goal is a bound on ours alone, and theirs takes minutes. ``least_rounds`` are measured
    even in a run of fewer: for one with ``own`` whose rounds are short and differ.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    run: Callable[[Peer, float], Numbers]
    own: bool = False
    where: Path = TMPFS
    config: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False
    contenders: tuple[str, ...] = (MILLSTREAM, KAFKA)
    rounds: Mapping[str, int] = field(default_factory=dict)
    least_rounds: int = 1

    @property
    def other(self) -> str | None:
        """The contender for comparison with ours."""
        return self.contenders[-1] if len(self.contenders) > 1 else None

    def measurements(self, rounds: int) -> int:
        """Number of measurements in a run of this many rounds."""
        return sum(self.rounds_of(contender, rounds) for contender in self.contenders)

    def rounds_of(self, contender: str, rounds: int) -> int:
        """How many of the rounds measure a contender in a run of this many."""
        wanted = max(rounds, self.least_rounds)
        return min(wanted, self.rounds.get(contender, wanted))


def scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))
