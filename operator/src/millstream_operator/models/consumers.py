"""The consumers of a ConsumerGroup's workload, as whoever runs them reports them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .problem import Problem

Decide = Callable[[int | None], int]
"""From the present number of consumers (None: the workload does not exist) to the desired one."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers of a workload.

    ``wanted`` is their intended number, ``failure`` why one does not run, ``problem`` why the workload cannot be
    created.
    """

    wanted: int = 0
    replicas: int = 0
    ready: int = 0
    selector: str | None = None
    failure: str = ""
    problem: Problem | None = None
