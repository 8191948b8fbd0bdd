"""A whole broker on the running event loop: its sockets, files and threads are real, its process is the test's.

`LoopBroker` starts, stops and is killed any number of times, like ``broker.BrokerProcess``, which is for what needs a
process: signals, memory, limits, a process that hangs. Many brokers may share a loop.

Brokers of one process are kept apart. Everything that a broker does runs in its own context (`contextvars`), which the
loop's tasks and callbacks inherit, and the threads of `asyncio.to_thread`. By that context each broker's warnings go to
its own ``broker.log``, and its tasks and threads are known, so that nothing is left over when it is gone.
``millstream_task_failures_total`` begins at 0 when no other broker runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from millstream_broker.broker import Broker, StartError
from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.startup import start
from millstream_process.logs import PLAIN

from .activity import Activity, watch
from .broker import READY, settings
from .shared_tree import SharedStore, SharedTree

OF_A_BROKER = ("asyncio", "millstream_broker", "millstream_kafka", "millstream_process")
"""Loggers that a broker's process uses."""
QUIET_S = 30.0
"""How long a kill waits for a moment in which none of the broker's threads works."""


class _ByActivity(logging.Handler):
    """Writes each line into the log of the broker in whose context it was logged; errors of nobody's into every log."""

    def emit(self, record: logging.LogRecord) -> None:
        activity = Activity.current.get()
        if activity is not None:
            meant = [activity]
        elif record.levelno >= logging.ERROR and record.name.partition(".")[0] in OF_A_BROKER:
            meant = list(Activity.running)
        else:
            return
        for one in meant:
            # A test may let this process write no files.
            with contextlib.suppress(OSError), one.log.open("a", encoding="utf-8") as lines:
                lines.write(self.format(record) + "\n")


log = logging.getLogger("millstream_broker.main")
_lines = _ByActivity()
_lines.setFormatter(logging.Formatter(PLAIN))


def _close_files(broker: Broker) -> None:
    """The end of a process closes its files: here a thousand would stay open until their broker is collected."""
    broker.logs.files._files.clear()


class LoopBroker:
    """One broker over one data folder. With a ``tree`` it is one of a cluster's.

    ``start`` raises RuntimeError if the broker cannot start, as ``BrokerProcess`` does.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, str] | None = None, tree: SharedTree | None = None
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.output = folder / "broker.log"
        """What it says: its ready line, warnings and errors."""
        self.config = settings(self.data, config)
        self.bootstrap = ""
        self.http = ""
        self.store: SharedStore | None = None
        """Its way to the tree, since its last start."""
        self._tree = tree
        self._running: Broker | None = None
        self._activity: Activity | None = None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def broker(self) -> Broker:
        """The parts of the running broker."""
        assert self._running is not None, f"{self.folder} does not run"
        return self._running

    async def start(self) -> Self:
        """Return once it is ready."""
        assert self._running is None, f"{self.folder} runs already"
        watch(asyncio.get_running_loop())
        if _lines not in logging.root.handlers:
            logging.root.addHandler(_lines)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._activity = activity = Activity(self.output)
        if self._tree is not None:
            self.store = self._tree.store()
        try:
            self._running, ready = await activity.run(self._start())
        except BaseException as error:
            if self.store is not None:
                self.store.vanish()
            await activity.end()
            if isinstance(error, StartError | ConfigError):
                self._say(f"millstream-broker: {error}")
                raise RuntimeError(f"the broker ended:\nmillstream-broker: {error}") from error
            raise
        self._say(ready)
        found = READY.search(ready)
        assert found is not None
        self.bootstrap = found["listeners"].split("://")[1].split(",")[0]
        self.http = f"http://{found['http']}"
        return self

    async def _start(self) -> tuple[Broker, str]:
        store, config = self.store, BrokerConfig(self.config)
        for key, reason in config.without_effect():
            log.warning("%s has no effect: %s", key, reason)
        return await start(config, None if store is None else lambda: store)

    def _say(self, line: str) -> None:
        with self.output.open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")

    async def stop(self) -> None:
        """A clean stop, as after SIGTERM."""
        if self._running is None:
            return
        broker, activity = self._end()

        async def stop() -> None:
            await broker.drain(asyncio.Event())
            await broker.stop()

        await activity.run(stop())
        await activity.end()
        _close_files(broker)

    async def kill(self, *, keeps_data: bool = True) -> None:
        """Leave what SIGKILL leaves: the files as they are in this moment, and a session that nobody ends.

        The moment is one in which no thread works for the broker: sockets are closed then, and files copied. The
        copies replace whatever becomes of the files while the rest is cleared away. Without ``keeps_data`` the files
        are of no use afterwards. With its sockets the broker can acknowledge nothing that the copies lack: requests
        that arrive meanwhile would otherwise be served before the loop runs any task.
        """
        if self._running is None:
            return
        broker, activity = self._end()
        copies: dict[Path, Path] = {}
        if keeps_data:
            async with asyncio.timeout(QUIET_S):
                await activity.quiet()
        # From here on one step of the loop, up to the next `await`:
        activity.call(broker.server.close)
        if keeps_data:
            copies = {
                path: path.with_name(f"{path.name}.killed") for path in broker.logs.paths if path.exists()
            }
            for path, copy in copies.items():
                shutil.copytree(path, copy)
        if self.store is not None:
            self.store.vanish()
        for task in activity.tasks:
            task.cancel()
        await activity.run(broker.abandon())
        await activity.end()
        _close_files(broker)
        for path, copy in copies.items():
            shutil.rmtree(path)
            copy.rename(path)

    def _end(self) -> tuple[Broker, Activity]:
        assert self._running is not None
        assert self._activity is not None
        broker, self._running = self._running, None
        return broker, self._activity

    async def restart(self) -> Self:
        await self.stop()
        return await self.start()

    def said(self) -> str:
        return self.output.read_text("utf-8") if self.output.exists() else ""

    async def __aenter__(self) -> Self:
        return self if self.is_running else await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.kill(keeps_data=False)
