"""`python -m millstream_operator.local.scheduler DATA`: runs the schedules of the BatchLoads in a data folder.

`millstream local up` starts this process if a load has a schedule, and every command that changes the data folder
stops it first. It holds the folder's lock while a load runs. If it is stopped during a run, it stops Spark, and the
next command continues the same run. A failed run is repeated at the next time of the schedule.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ..kafka.pools import AdminPool
from ..models import BatchLoad, ManifestError, decode_as
from ..reconcile.load import plan as runs
from ..state.context import now_utc
from .processes import READY
from .reconcile import LocalReconciler
from .state import State, StateError, Store

POLL_S = 1.0


def has_schedules(state: State) -> bool:
    return any(
        resource["kind"] == BatchLoad.KIND and resource["spec"].get("schedule")
        for resource in state.resources.values()
    )


def due(state: State) -> list[str]:
    """The keys of the loads whose schedule, or whose interrupted run, is due."""
    found, now = [], now_utc()
    for key, resource in state.resources.items():
        if resource["kind"] != BatchLoad.KIND or not resource["spec"].get("schedule"):
            continue
        try:
            load = decode_as(BatchLoad, resource)
        except ManifestError:
            continue
        if not runs.request(load, now).is_idle:
            found.append(key)
    return found


def run_due(data: Path, say: Callable[[str], None]) -> None:
    """Run the loads that are due. Blocking, for as long as they run."""
    store = Store(data)
    if not due(store.load()):
        return
    with store.locked():
        state, admins = store.load(), AdminPool()
        reconciler = LocalReconciler(state, data, admins, say, lambda at: None, lambda: store.save(state))
        reconciler.retry = False
        try:
            reconciler.ensure(BatchLoad.KIND, due(state))
        finally:
            store.save(state)
            admins.close()


def main() -> int:
    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    data = Path(sys.argv[1])
    print(f"{READY}data={data}", flush=True)
    try:
        while True:
            try:
                run_due(data, lambda line: print(line, flush=True))
            except StateError as error:  # another command has the folder
                print(error, file=sys.stderr, flush=True)
            except Exception:  # a schedule that ends would be noticed late
                traceback.print_exc()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
