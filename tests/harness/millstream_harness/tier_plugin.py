"""Pytest and the tiers: marks tests, keeps shares of them, guards tier ``unit``, ends what hangs, adds up durations."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.tiers import (
    RECORD,
    TESTS,
    TIERS,
    UNIT,
    UNRECORDED_S,
    Durations,
    chosen,
    files_in,
    recorded,
    runs_once,
    share,
    tier_names,
    tier_of,
)
from millstream_harness.watchdog import Hangs

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec"}
"""Events of Python's audit hooks that start a process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--tiers",
        type=tier_names,
        default=TESTS,
        metavar="TIER,…",
        help=f"run only these of {', '.join(TESTS)}",
    )
    group.addoption("--soak", type=share, metavar="K/N", help="of the soak tests, run only share K of N")
    group.addoption("--shard", type=share, metavar="K/N", help="of all these, run only share K of N")
    group.addoption("--failures", type=Path, metavar="FILE", help="write the tests that fail into FILE")
    group.addoption(
        "--record-durations", action="store_true", help=f"write the seconds of each file into {RECORD.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, tier in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {tier.content}")
    config.addinivalue_line("markers", "core: the part of e2e/ that CI runs with each commit")
    config.addinivalue_line(
        "markers", "once: a comparison or a model: its failure stands, without a second run"
    )
    config.pluginmanager.register(Tiers(config))
    if not hasattr(config, "workerinput"):  # not one of pytest-xdist's workers
        config.pluginmanager.register(Outcomes(config))
    config.pluginmanager.register(Guard())
    config.pluginmanager.register(Hangs(config))


class Tiers:
    """Marks each test with its tier; leaves out what the options do not choose, where it can without importing it."""

    def __init__(self, config: pytest.Config) -> None:
        tiers, soak, shard = (config.getoption(name) for name in ("--tiers", "--soak", "--shard"))
        self._root = config.rootpath
        self._files = files_in(self._root) if tiers != TESTS or soak or shard else {}
        self._chosen = chosen(self._files, tiers, soak, shard)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not self._files or not collection_path.is_relative_to(self._root):
            return None
        file = collection_path.relative_to(self._root).as_posix()
        return True if file in self._files and file not in self._chosen else None

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Iterator[None]:
        """Mark the tests before pytest chooses by markers; those of files that take longest come first."""
        for item in items:
            tier = tier_of(item)
            item.add_marker(tier)
            item.user_properties += [("tier", tier), ("once", runs_once(item))]
        yield
        left_out = {item for item in items if self._files and not self._is_chosen(item)}
        if left_out:
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = [item for item in items if item not in left_out]
        if all(tier_of(item) in TESTS for item in items):  # e2e/ has an order of its own
            known, took = recorded(), defaultdict[str, float](float)
            for tier, file in {(tier_of(item), _file(item)) for item in items}:
                took[file] += known.get(tier, {}).get(file, UNRECORDED_S)
            items.sort(key=lambda item: (-took[_file(item)], _file(item)))

    def _is_chosen(self, item: pytest.Item) -> bool:
        return tier_of(item) in self._chosen.get(_file(item), ())


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


class Guard:
    """Fails a unit test that starts a process."""

    def __init__(self) -> None:
        self._runs_unit_test = False
        sys.addaudithook(self._look)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._guarded(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._guarded(item))

    def _guarded(self, item: pytest.Item) -> Iterator[None]:
        """Not the teardown: after the last test it also ends what other tests have started for a whole session."""
        self._runs_unit_test = tier_of(item) == UNIT
        try:
            return (yield)
        finally:
            self._runs_unit_test = False

    def _look(self, event: str, _: object) -> None:
        if self._runs_unit_test and event in STARTS:
            raise AssertionError("a unit test starts a process: mark it with pytest.mark.process")


class Outcomes:
    """Keeps what failed and how long everything took, in the process that has all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations = Durations()
        self._failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = dict(report.user_properties)
        if report.failed:
            self._failed[report.nodeid] = bool(known.get("once"))
        self._durations.add(str(known.get("tier", UNIT)), report.nodeid, report.duration)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._durations.table():
            terminalreporter.write_line(line)
        if self._config.getoption("--soak"):  # whole files
            for line in self._durations.unlike(recorded()):
                terminalreporter.write_line(line)

    def pytest_sessionfinish(self) -> None:
        if self._config.getoption("--record-durations"):
            self._durations.write(RECORD)
        if path := self._config.getoption("--failures"):
            lines = [json.dumps({"test": test, "once": once}) for test, once in self._failed.items()]
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
