"""The states of a partition task, and what a recovery has to know. Values only, no I/O.

    Recovering ──▶ Running ──▶ Halted ──▶ Recovering ──▶ …
        └──▶ AtGap

A task begins in `Recovering`: its position is not known yet. In `Running` it fetches and sends. A failure halts it;
once the last response has arrived, it recovers. `AtGap` waits for a user's decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..kafka.progress import Gap
from ..records.aligning import Fingerprint


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found out about a task since it last ran; a recovery acts on it, and clears it."""

    compare_source: bool = False
    """The source may have another history than before: compare before the task fetches on."""
    compare_target: bool = False
    """The target refused a number as out of order: compare with its log before sending again."""
    out_of_range: bool = False
    """The source has no records at the task's position."""
    target_missing: bool = False
    """The target's topic is missing, or has lost records."""
    misfit: str = ""
    """Why numbers do not show what the target has, if they do not: compare the records."""
    replaced: bool = False
    """The source's topic was deleted and recreated: the task waits until the old topic's copy is deleted."""
    other_id: str = ""
    """Another id under which the source's topic was found; the recovery checks again."""


NOTHING = Findings()


@dataclass(frozen=True, slots=True)
class Running:
    """It fetches and sends."""

    @property
    def findings(self) -> Findings:
        return NOTHING

    @property
    def has_failed(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Halted:
    """It does not fetch, and waits for the last response; then it recovers."""

    findings: Findings = NOTHING
    has_failed: bool = False
    """A request failed: all later ones are void. Otherwise the responses in flight still count."""


@dataclass(frozen=True, slots=True)
class Recovering:
    """Its position is looked up; nothing is in flight."""

    findings: Findings = NOTHING
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class AtGap:
    """It waits for a user's decision about offsets that the source deleted (onGap: Stop)."""

    gap: Gap
    findings: Findings = NOTHING
    has_failed: bool = True


State = Running | Halted | Recovering | AtGap


def failed(state: State) -> State:
    """After a failed request."""
    return Halted(has_failed=True) if isinstance(state, Running) else replace(state, has_failed=True)


def found(state: State, findings: Findings) -> State:
    """After something was found out that needs a recovery."""
    if findings == state.findings:
        return state
    return Halted(findings) if isinstance(state, Running) else replace(state, findings=findings)


def recovering(state: State) -> State:
    """When a recovery begins."""
    return state if isinstance(state, AtGap) else Recovering(state.findings, state.has_failed)


def recovered(state: State) -> State:
    """When a recovery has ended: halted again if something happened meanwhile."""
    if not isinstance(state, Recovering):
        return state
    needs_another = state.has_failed or state.findings.compare_source
    return Halted(state.findings, state.has_failed) if needs_another else Running()


def rewound(state: State) -> State:
    """When the position is found: what was found out before counts no more."""
    return Recovering() if isinstance(state, Recovering) else Running()


@dataclass(frozen=True, slots=True)
class Skip:
    """Records that the target has already: to be passed without sending."""

    to: int
    """The target has everything before this number."""
    end: int = 0
    """The end of the target's log, behind everything that is skipped."""
    last: Fingerprint | None = None
    """The record before ``to``, as the target has it; None if it was not read."""
