"""`millstream local delete -f`: the counterpart of `kubectl delete -f`, with the same policies.

    all                    passwords and certificates that were made for it are deleted
    User, Topic,           the operator's reconcile of a resource that is being deleted: with `deletionPolicy: Delete`
    ConsumerGroup          the user, the topic or the offsets are deleted first, and the resource stays until then
    MirrorMaker            its workers are stopped; its copies of Secrets are deleted
    BatchLoad              it is forgotten; the tables stay
    Cluster                its processes are stopped; its data stays, unless `brokers.storage.deletionPolicy: Delete`

Resources are deleted in the reverse order of creation, so a Topic is deleted while its brokers run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..models import Cluster, MirrorMaker, decode_as
from ..state.status import FINALIZER
from . import processes
from .clusters import LocalCluster
from .folder import DataFolder
from .mirrors import LocalMirror
from .reconcile import LocalReconciler
from .state import Resource, State

LEAVE_S = 60.0  # 45 s is the usual session timeout of a consumer


@dataclass(frozen=True, slots=True)
class Doomed:
    """Keys of resources to delete, and a description of the data that would be deleted with them."""

    resources: list[str]
    data: list[str]


def doomed(state: State, folder: Path, keys: Sequence[str]) -> Doomed:
    """The effect of `delete`, without changing anything."""
    there = [key for key in keys if key in state.resources]
    return Doomed(there, [words for key in there if (words := _data(state.resources[key], state, folder))])


def delete(reconciler: LocalReconciler, key: str) -> None:
    """Delete one resource; if it stays, it is among the failures of the pass."""
    resource = reconciler.state.resources[key]
    kind, name = resource["kind"], resource["metadata"]["name"]
    lost = _data(resource, reconciler.state, reconciler.data)
    had_workload = kind == "ConsumerGroup" and reconciler.stop_workload(key)
    if kind in ("User", "Topic", "ConsumerGroup"):
        resource["metadata"]["deletionTimestamp"] = reconciler.services.now().isoformat(timespec="seconds")
        if _held(reconciler, key):
            reconciler.reconcile_one(key)
        if had_workload and _held(reconciler, key):
            _wait_for_members(reconciler, key)
        resource = reconciler.state.resources[key]
        if _held(reconciler, key):
            del resource["metadata"]["deletionTimestamp"]
            reconciler.stays(key)
            return
    elif kind == "MirrorMaker":
        LocalMirror(reconciler.folder, decode_as(MirrorMaker, resource)).forget()
    elif kind == "Cluster":
        cluster = LocalCluster(reconciler.folder, decode_as(Cluster, resource))
        cluster.stop()
        if lost and not _removed(reconciler, key, cluster.folder):
            return
    reconciler.secret_files.collect(resource["metadata"]["uid"])
    del reconciler.state.resources[key]
    reconciler.say(f"{kind} {name}: deleted" + (f", with {lost}" if lost else ""))


def _held(reconciler: LocalReconciler, key: str) -> bool:
    return FINALIZER in reconciler.state.resources[key]["metadata"].get("finalizers", ())


def _wait_for_members(reconciler: LocalReconciler, key: str) -> None:
    """Wait until the group has no member left from a workload whose consumers were stopped without leaving it."""
    kind, _, name = key.split("/")
    reconciler.say(f"{kind} {name}: its consumers are stopped; waiting until the brokers notice")
    deadline = time.monotonic() + LEAVE_S
    while _held(reconciler, key) and time.monotonic() < deadline:
        time.sleep(1.0)
        reconciler.reconcile_one(key)


def _removed(reconciler: LocalReconciler, key: str, folder: Path) -> bool:
    """Remove a Cluster's data.

    It is set aside first: brokers that start after an interruption find all of it or nothing.
    """
    aside = folder.with_name(f".{folder.name}")  # no resource has this name
    if (used := processes.user_of(folder.glob("*/.lock"))) is not None:
        reconciler.failures[key] = f"its data stays: {used}: stop it"
        return False
    try:
        if aside.exists():  # from an interrupted deletion
            shutil.rmtree(aside)
        if folder.exists():
            folder.rename(aside)
            shutil.rmtree(aside)
    except OSError as error:
        reconciler.failures[key] = f"its data cannot be deleted: {error}"
        return False
    return True


def _data(resource: Resource, state: State, folder: Path) -> str:
    """A description of the data that is deleted with the resource; "" for none."""
    spec: dict[str, Any] = resource["spec"]
    name = resource["metadata"]["name"]
    if resource["kind"] == "Cluster":
        if spec["brokers"]["storage"].get("deletionPolicy") != "Delete":
            return ""
        return f"all data in {LocalCluster(DataFolder(folder, state), decode_as(Cluster, resource)).folder}"
    if spec.get("deletionPolicy") != "Delete":
        return ""
    if resource["kind"] == "User":
        return f"user {spec.get('userName') or name}"
    if resource["kind"] == "Topic":
        return f"topic {spec.get('topicName') or name} and its records"
    return f"the offsets of group {spec.get('groupId') or name}"
