"""What can go wrong for a user, each with what to do next.

MillstreamError          all of these; `millstream` prints one as a line and exits with status 1
├── Unreachable          no broker answers at the bootstrap addresses, or at those it advertises
├── UnknownTopic
├── UnknownGroup
├── BadInput             a record, an address or an option that cannot be taken
└── Failed               the broker or the client library said no
"""

from __future__ import annotations


class MillstreamError(Exception):
    """One line: what is wrong, and, where there is one, the next step."""

    def __init__(self, problem: str, next_step: str = "") -> None:
        super().__init__(f"{problem}: {next_step}" if next_step else problem)
        self.problem = problem
        self.next_step = next_step


class Unreachable(MillstreamError):
    pass


class UnknownTopic(MillstreamError):
    pass


class UnknownGroup(MillstreamError):
    pass


class BadInput(MillstreamError):
    pass


class Failed(MillstreamError):
    pass
