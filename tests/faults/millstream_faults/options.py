"""Command line options that the runs share: kinds of faults, rounds of one fault each, a folder for the output."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar


class Named(Protocol):
    """A kind of fault has a name."""

    @property
    def text(self) -> str: ...


K = TypeVar("K", bound=Named)


def kinds_of(all_kinds: Iterable[K]) -> Callable[[str], list[K]]:
    """The type of an option that lists kinds by their names, separated by commas."""
    by_name = {kind.text: kind for kind in all_kinds}

    def kinds(text: str) -> list[K]:
        wanted = [name.strip() for name in text.split(",")]
        if unknown := [name for name in wanted if name not in by_name]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(by_name)}")
        return [by_name[name] for name in wanted]

    return kinds


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="a new or empty folder for all that was seen")


def add_rounds(parser: argparse.ArgumentParser, rounds: int, what: str) -> None:
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{what} ({rounds})")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which faults; new ones each time")
    add_out(parser)


def parsed(parser: argparse.ArgumentParser, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check; errors end the program with status 2."""
    wanted = parser.parse_args(given)
    if getattr(wanted, "rounds", 1) < 1:
        parser.error(f"--rounds {wanted.rounds}: is less than 1")
    if wanted.out is not None and wanted.out.exists() and any(wanted.out.iterdir()):
        parser.error(f"--out {wanted.out}: there is something in it already")
    return wanted
