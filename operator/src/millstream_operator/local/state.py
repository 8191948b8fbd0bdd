"""The local runtime's state in `DATA/state.json`, which takes the place of a Kubernetes API server's storage.

    {"version": 1,
     "resources": {"Topic/default/orders": {the resource with defaults, uid, generation and status}},
     "daemons":   {"broker/default/west/0": {"pid": …, "started": …, "command": […], "ready": {…}}},
     "ports":     {"broker/default/west/0": {"internal:9092": 9092, "http:9404": 9405}},     requested: chosen
     "told":      ["Cluster/west: spec.brokers.storage"]}                            reported once, not again

Invariants: the file is replaced whole (written aside, synced, renamed), so a reader needs no lock; a writer holds an
exclusive `flock` on `DATA/.lock`, which the system releases when the process dies.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from . import processes
from .processes import Daemon

Resource = dict[str, Any]


class StateError(Exception):
    """The data folder cannot be used; the message says why and what to do."""


VERSION = 1
FOLDERS = ("clusters", "users", "mirrors", "consumers", "volumes", "loads")
"""Possible folders in a data folder, beside its state."""


class State(msgspec.Struct, forbid_unknown_fields=True):
    version: int = 0
    folder: str = ""
    """The folder of this state, by device and inode: a copy is another folder, a moved folder the same."""
    path: str = ""
    """The folder's path."""
    made: list[str] = []
    """Those of FOLDERS that the runtime created itself: only these are ours to delete."""
    resources: dict[str, Resource] = {}
    daemons: dict[str, Daemon] = {}
    ports: dict[str, dict[str, int]] = {}
    told: list[str] = []

    def apply(self, resource: Resource) -> Resource:
        """Store a resource as an API server does: a uid once, a new generation if the spec changed, the status kept."""
        key = key_of(resource)
        before = self.resources.get(key)
        after = copy.deepcopy(resource)
        after.pop("status", None)
        metadata = after["metadata"]
        metadata["namespace"] = namespace_of(resource)
        if before is None:
            metadata |= {
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            }
        else:
            known = before["metadata"]
            metadata |= {
                name: known[name] for name in ("uid", "creationTimestamp", "finalizers") if name in known
            }
            metadata["generation"] = known["generation"] + (before.get("spec") != after.get("spec"))
            after |= {name: before[name] for name in ("status",) if name in before}
        self.resources[key] = after
        return after


def namespace_of(resource: Resource) -> str:
    namespace: str = resource["metadata"].get("namespace") or "default"
    return namespace


def key_of(resource: Resource) -> str:
    return f"{resource['kind']}/{namespace_of(resource)}/{resource['metadata']['name']}"


class Store:
    """`state.json` of one data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.file = data / "state.json"
        self.others: dict[str, Daemon] = {}
        """If the state is a copy of another folder's: the running processes of that folder."""

    def load(self) -> State:
        try:
            state = msgspec.json.decode(self.file.read_bytes(), type=State)
            if state.version != VERSION:
                raise StateError(
                    f"{self.file} was written by another program, or by another version of this one"
                )
            return self._ours(self._with_pids(state))
        except FileNotFoundError:
            return State(VERSION)
        except (OSError, msgspec.MsgspecError) as error:
            raise StateError(f"{self.file} cannot be read: {error}") from error

    def _with_pids(self, state: State) -> State:
        """The state; daemons with an unrecorded pid are searched for, and dropped if there is none."""
        found = {key: processes.found(daemon) for key, daemon in state.daemons.items()}
        state.daemons = {key: daemon for key, daemon in found.items() if daemon is not None}
        return state

    def _ours(self, state: State) -> State:
        """The state without processes if the folder is a copy: they belong to the original."""
        if state.folder and state.folder != self._folder:
            self.others = {key: daemon for key, daemon in state.daemons.items() if daemon.alive}
            state.daemons = {}
        return state

    @property
    def _folder(self) -> str:
        status = self.data.stat()
        return f"{status.st_dev}:{status.st_ino}"

    @property
    def holder(self) -> str:
        """The pid of the process that has the folder, or had it last."""
        with contextlib.suppress(OSError):
            return (self.data / ".lock").read_text().strip()
        return ""

    @property
    def exists(self) -> bool:
        """Whether this is a data folder of ours, and not just any folder."""
        return self.file.is_file()

    def delete(self, state: State) -> list[str]:
        """Delete everything created here, and the folder if nothing else is in it; returns what stays. OSError.

        StateError, with nothing deleted, if a broker runs that the state does not know.
        """
        if (used := processes.user_of((self.data / "clusters").glob("*/*/.lock"))) is not None:
            raise StateError(f"--data: {used}: nothing was deleted; stop it first")
        for folder in (self.data / name for name in FOLDERS if name in state.made):
            if folder.is_symlink():
                folder.unlink()  # the link's target is not ours
            elif folder.exists():
                shutil.rmtree(folder)
        self.file.unlink()
        (self.data / ".lock").unlink()
        left = sorted(entry.name for entry in self.data.iterdir())
        if not left:
            with contextlib.suppress(OSError):  # a mount point, or a link to a folder
                self.data.rmdir()
        return left

    def save(self, state: State) -> None:
        """OSError that names the file."""
        aside = self.file.with_suffix(".json.new")
        try:
            state.folder, state.path = self._folder, str(self.data)
            with aside.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(state, order="deterministic"), indent=1))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.file)
        except OSError as error:  # a full disk has no name
            raise OSError(error.errno, error.strerror, str(self.file)) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the data folder for changes; StateError if another command has it."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            lock = (self.data / ".lock").open("a+")
        except OSError as error:
            raise StateError(f"--data: {self.data} cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                holder = lock.read().strip()
                raise StateError(
                    f"--data: {self.data} is in use by another `millstream local` (process {holder}); "
                    "wait for it to end"
                ) from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield
