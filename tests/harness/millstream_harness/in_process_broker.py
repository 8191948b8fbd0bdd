"""A broker without a process of its own, for tests that need a broker and no more: it starts in a tenth of the time.

`InProcessBroker` is used as `BrokerProcess` is, by clients of any kind. It runs in this process's background loop
(``background_loop``); ``loop_broker`` describes what a kill leaves, and what brokers of one process do not share.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from .background_loop import background_loop
from .broker import AnyBroker
from .loop_broker import LoopBroker
from .shared_tree import SharedTree


class InProcessBroker(AnyBroker):
    """One broker over one data folder; ``start``, ``stop`` and ``kill`` any number of times."""

    def __init__(
        self, folder: Path, config: Mapping[str, str] | None = None, tree: SharedTree | None = None
    ) -> None:
        super().__init__(folder, config)
        self.on_loop = LoopBroker(folder, self.config, tree)
        """The broker itself, for calls on the loop."""

    @property
    def is_running(self) -> bool:
        return self.on_loop.is_running

    def start(self) -> Self:
        self.on_loop.config = self.config
        background_loop().run(self.on_loop.start())
        return self.started()

    def started(self) -> Self:
        """Take over the addresses of the broker, which others have started."""
        self.bootstrap, self.http = self.on_loop.bootstrap, self.on_loop.http
        return self

    def stop(self, timeout: float | None = None) -> int:
        """A clean stop; returns 0, as a process does."""
        background_loop().run(self.on_loop.stop())
        return 0

    def kill(self) -> int:
        """What SIGKILL leaves: see ``LoopBroker.kill``."""
        background_loop().run(self.on_loop.kill())
        return 0

    def discard(self) -> None:
        """Away with it, and its data is of no use any more: the cheapest end."""
        background_loop().run(self.on_loop.kill(keeps_data=False))

    def said(self) -> str:
        return self.on_loop.said()

    def __exit__(self, *_: object) -> None:
        self.discard()


class CopiedInProcessBroker(InProcessBroker):
    """A broker whose disk can be copied, and restored from the copy."""

    def copy(self) -> None:
        """It restarts."""
        self.stop()
        shutil.copytree(self.data, self.folder / "copy")
        self.start()

    def restore(self) -> None:
        """It does not run afterwards."""
        self.discard()
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / "copy", self.data)
