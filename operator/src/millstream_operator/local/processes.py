"""Daemon processes that outlive the command that started them, identified by pid **and** start time.

A pid alone does not identify a process: after a crash or a reboot the system gives the number to another one, which
must not be stopped. So a `Daemon` has a token of its start, from the system (`/proc/PID/stat` field 22 with the boot's
id; `ps -o lstart` without /proc), and a process with another token is not this daemon.

A daemon writes to a log file and reports with a line `ready: KEY=VALUE …`, which `start` waits for; programs that are
not ours are queried instead.

A command may be killed at any time, even between the start of a daemon and the note of its pid. So a daemon has a mark
in its environment, which is noted before the start, and by which `found` finds the process.

Invariant: `start` either returns a daemon that is ready or leaves no process behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
READY = "ready: "
MARK = "MILLSTREAM_LOCAL_DAEMON"
"""The variable in a daemon's environment that holds its mark."""

Found = TypeVar("Found")


class Daemon(msgspec.Struct, frozen=True, rename="camel"):
    """A process of ours: ``started`` is the token of its start, ``ready`` has the fields of its ready line.

    Before its start its pid is 0; until it is ready, ``ready`` is empty.
    """

    pid: int
    started: str
    command: list[str]
    log: str
    ready: dict[str, str] = {}
    mark: str = ""

    @property
    def alive(self) -> bool:
        return self.pid > 0 and started_at(self.pid) == self.started

    @property
    def serves(self) -> bool:
        """Whether it runs and is ready; a daemon whose start was interrupted must be restarted."""
        return self.alive and bool(self.ready)


class StartFailed(Exception):
    """A daemon ended, or reported nothing, before it was ready; the message has the end of its log."""


@contextlib.contextmanager
def files_of_a_start() -> Iterator[None]:
    """Turn an OSError about a file or port that a daemon needs into StartFailed."""
    try:
        yield
    except OSError as error:
        raise StartFailed(str(error)) from error


def started_at(pid: int) -> str | None:
    """A token of the process's start; None if there is no process, or only a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # reaps it if it was our own child
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _started_at_by_ps(pid)
    state, *fields = stat[stat.rindex(")") + 2 :].split()  # the name in parentheses may hold anything
    return None if state in "ZX" else f"{boot}:{fields[18]}"


def _started_at_by_ps(pid: int) -> str | None:
    said = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout.split()
    return " ".join(said[1:]) if said and "Z" not in said[0] else None


def start(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float = START_TIMEOUT_S,
    ready: Callable[[str], dict[str, str] | None] | None = None,
    name: str = "",
    mark: str = "",
) -> Daemon:
    """Start a daemon in its own session and wait until it is ready (blocking).

    ``ready`` returns the fields of a ready line from the output so far (or in another way), None until then.
    ``name`` is used in messages, by default the command; ``mark`` is in its environment, for `found`.
    """
    name, mark = name or Path(command[0]).name, mark or uuid.uuid4().hex
    find = ready or _ready_line
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = log.stat().st_size if log.exists() else 0
    try:
        pid = _spawn(command, log, {**os.environ, **(environment or {}), MARK: mark})
        started = started_at(pid)

        def said_ready() -> dict[str, str] | None:
            said = _since(log, begun)
            if (fields := find(said)) is None and (started is None or started_at(pid) != started):
                raise StartFailed(f"{name} ended before it was ready: {_last_lines(said)}")
            return fields

        fields = wait_for(said_ready, timeout)
        if fields is None or started is None:
            raise StartFailed(f"{name} was not ready in {timeout:.0f} s; its log is {log}")
        return Daemon(pid, started, list(command), str(log), fields, mark)
    except BaseException:
        # By its mark, because a signal may come after the start and before the pid is known.
        if (left := found(Daemon(0, "", list(command), str(log), mark=mark))) is not None:
            stop(left, timeout=1.0)
        raise


def _spawn(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
    try:
        # Not subprocess: a Popen object warns when it is freed before its process ends, as this one will be.
        return os.posix_spawnp(
            command[0],
            list(command),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise StartFailed(f"{command[0]} cannot be started: {error.strerror}") from error


def found(daemon: Daemon) -> Daemon | None:
    """The daemon with its pid, if that is not known yet; None if no process has its mark."""
    if daemon.pid:
        return daemon
    for pid in _marked(f"{MARK}={daemon.mark}"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == pid and (started := started_at(pid)) is not None:  # a daemon, not its child
                return msgspec.structs.replace(daemon, pid=pid, started=started)
    return None


def stop_marked(mark: str) -> None:
    """Stop every process with this mark in its environment, children included. Blocking."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in _marked(f"{MARK}={mark}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        if wait_for(lambda: not _marked(f"{MARK}={mark}"), STOP_TIMEOUT_S):
            return


def _marked(setting: str) -> list[int]:
    """The processes with this in their environment."""
    if not Path("/proc/self/environ").exists():
        return _marked_by_ps(setting)
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if setting.encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


def _marked_by_ps(setting: str) -> list[int]:
    options = ["-A", "-E", "-ww"] if sys.platform == "darwin" else ["axeww"]
    said = subprocess.run(
        ["ps", *options, "-o", "pid=,command="], capture_output=True, text=True, errors="replace", check=False
    ).stdout
    return [int(line.split(None, 1)[0]) for line in said.splitlines() if f" {setting} " in f"{line} "]


def locked_by(file: Path) -> str | None:
    """The holder of a `flock` on a file, in words; None without a holder or a file."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        inode = f":{file.stat().st_ino} "
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text().splitlines():
                if "FLOCK" in line and inode in line:
                    return f"process {line.split()[4]}"
        return "a process"
    except OSError:
        return None
    return None


def user_of(locks: Iterable[Path]) -> str | None:
    """The folder of these `flock` files that is in use, in words; None without one."""
    for lock in locks:
        if (who := locked_by(lock)) is not None:
            return f"{lock.parent} is in use by a broker that is not known here ({who})"
    return None


def _ready_line(said: str) -> dict[str, str] | None:
    for line in said.splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            return dict(pair.split("=", 1) for pair in line[len(READY) :].split() if "=" in pair)
    return None


def stop(daemon: Daemon, timeout: float = STOP_TIMEOUT_S) -> bool:
    """Send SIGTERM, and SIGKILL after ``timeout``; return False if it was not running. Blocking."""
    if not daemon.alive:
        return False
    for sign, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, STOP_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, sign)
        if wait_for(lambda: not daemon.alive, patience):
            return True
    raise StartFailed(f"process {daemon.pid} ({daemon.command[0]}) does not end")


def last_words(daemon: Daemon) -> str:
    """The last output of an ended daemon."""
    return f"{Path(daemon.command[0]).name} ended: {_last_lines(_since(Path(daemon.log), 0), 1)}"


def wait_for(found: Callable[[], Found | None], timeout: float) -> Found | None:
    """Ask until the answer is true or the time is up; return the last answer. Asks at least once."""
    deadline = time.monotonic() + timeout
    while not (answer := found()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return answer


def _since(log: Path, position: int) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")
    return ""


def _last_lines(said: str, count: int = 3) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "it said nothing"
