"""Runs `millstream` as a process, as users do, or in this process."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from unittest import mock

from millstream import cli

COMMAND = str(Path(sys.executable).parent / "millstream")


def environment(bootstrap: str | None) -> dict[str, str]:
    """This process's environment with the cluster's address or none, and with buffered output."""
    ours = ("MILLSTREAM_BOOTSTRAP", "MILLSTREAM_CONFIG", "MILLSTREAM_PROFILE", "PYTHONUNBUFFERED")
    found = {name: value for name, value in os.environ.items() if name not in ours}
    return found if bootstrap is None else {**found, "MILLSTREAM_BOOTSTRAP": bootstrap}


def millstream(
    *arguments: str, stdin: bytes = b"", bootstrap: str | None
) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    return subprocess.run(
        [COMMAND, *arguments], input=stdin, capture_output=True, env=environment(bootstrap), timeout=60
    )


def in_this_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it here: to start a Python takes longer than most commands."""
    words = ["millstream", *arguments]
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        status = cli.run()
    return subprocess.CompletedProcess(words, status, stdout.getvalue(), stderr.getvalue())


def on_a_terminal(*arguments: str, answer: bytes, bootstrap: str) -> tuple[int, str]:
    """Run it on a pseudo-terminal and type an answer; returns its exit status and the terminal's content."""
    primary, secondary = pty.openpty()
    os.write(primary, answer)
    process = subprocess.Popen(
        [COMMAND, *arguments], stdin=secondary, stdout=secondary, stderr=secondary, env=environment(bootstrap)
    )
    os.close(secondary)
    shown = b""
    try:
        while chunk := os.read(primary, 65536):
            shown += chunk
    except OSError:  # EIO: nobody has the terminal open any more
        pass
    os.close(primary)
    return process.wait(60), shown.decode()
