"""The operator's conditions from a real worker's report."""

from __future__ import annotations

from datetime import UTC, datetime

from millstream_operator.models.mirror_reports import Workers
from millstream_operator.reconcile.mirror.plan import status_of
from millstream_operator.reconcile.mirror.workers import ask

from .mirror import MirrorProcess
from .mirror_maker import a_mirror
from .scenario import eventually


def conditions_of(mirror: MirrorProcess) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition, by its type; none while the worker does not respond."""
    report = ask(mirror.http.removeprefix("http://"))
    if report is None:
        return {}
    resource = a_mirror(
        sources=mirror.config["sources"],
        target=mirror.config["target"],
        mode=mirror.config.get("mode", "Aggregate"),
    )
    status = status_of(resource, Workers(1, 1, (report,)), datetime.now(UTC))
    return {one.type: (one.status, one.reason, one.message) for one in status.conditions or ()}


def is_degraded(mirror: MirrorProcess, reason: str) -> str:
    """Wait until the MirrorMaker is degraded, and so not ready, for this reason; returns the message."""
    wanted = [("True", reason), ("False", reason)]

    def found() -> list[tuple[str, str, str]]:
        conditions = conditions_of(mirror)
        return [conditions[kind] for kind in ("Degraded", "Ready") if kind in conditions]

    degraded, ready = eventually(
        found, lambda seen: [one[:2] for one in seen] == wanted, f"Degraded with the reason {reason}"
    )
    assert degraded[2] == ready[2]
    return degraded[2]
