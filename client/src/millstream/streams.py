"""The standard streams of `millstream`, any of which its caller may have closed (``>&-``) or filled (``/dev/full``).

A closed stream leaves its descriptor free, and the next file or socket would get it, so a closed stdin or stderr
becomes /dev/null. A closed stdout is an error before anything else happens: the result would be lost.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

STDOUT_CLOSED = "stdout is closed, nothing was done: redirect it to a file or to /dev/null"


def open_all() -> str:
    """Open a closed stdin or stderr; return why the command cannot run, "" if it can."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(_null(0, os.O_RDONLY), "r", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_null(2, os.O_WRONLY), "w", closefd=False)
    return STDOUT_CLOSED if sys.stdout is None else ""


def say(line: str) -> None:
    """Print a line to stderr; it is lost if stderr cannot be written, but the exit status remains."""
    with suppress(OSError):
        click.echo(line, err=True)


def end_stdout() -> None:
    """Attempt no more output: buffered output goes to /dev/null at exit."""
    _null(1, os.O_WRONLY)


def end_stderr() -> None:
    """Flush stderr, which may fail here and may not fail at exit."""
    try:
        sys.stderr.flush()
    except OSError:
        _null(2, os.O_WRONLY)


def _null(descriptor: int, mode: int) -> int:
    """Open /dev/null at a standard descriptor, for our child processes, too."""
    null = os.open(os.devnull, mode)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    else:
        os.set_inheritable(descriptor, True)
    return descriptor
