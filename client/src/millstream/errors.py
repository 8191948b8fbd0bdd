"""What can go wrong for a user, each with what to do next, and the exit status of each.

MillstreamError          all of these; `millstream` prints one as a line. Exit status 1 unless noted
├── Unreachable          no broker answers at the bootstrap addresses, or at those it advertises
├── UnknownTopic
├── UnknownGroup
├── NoLeader             a partition has no leader, so nobody serves it
├── RecordTooLarge       exit status 2: a record is larger than its topic takes
├── Failed               the broker or the client library said no
├── BadInput             exit status 2: an option, an address or a line of input cannot be taken
├── Declined             exit status 1: a question was answered with no
└── Interrupted          exit status 130: Ctrl-C or SIGTERM; the message says what was done
"""

from __future__ import annotations

from typing import ClassVar


class MillstreamError(Exception):
    """One line: what is wrong, and, where there is one, the next step."""

    exit_status: ClassVar[int] = 1

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


class NoLeader(MillstreamError):
    pass


class RecordTooLarge(MillstreamError):
    exit_status = 2


class Failed(MillstreamError):
    pass


class BadInput(MillstreamError):
    exit_status = 2


class Declined(MillstreamError):
    pass


class Interrupted(MillstreamError):
    exit_status = 130
