"""Flink with a sink EXACTLY_ONCE counts each word once, while brokers and the application are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.java import ROOT, SHORT_LIVED, fetched, java_command, run
from millstream_harness.tools import require
from millstream_harness.word_count import counts_each_word_once

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "flink" / "FlinkWordCount.java"
JARS = ROOT / ".jars" / "flink"
OPTIONS = ("-Xmx384M", *SHORT_LIVED[1:], "--add-opens=java.base/java.util=ALL-UNNAMED")


def checkpoint(folder: Path) -> list[str]:
    """The newest complete checkpoint, if there is one."""
    found = sorted(folder.glob("*/chk-*/_metadata"), key=lambda each: each.stat().st_mtime_ns)
    return [str(each.parent) for each in found[-1:]]


def test_each_word_is_counted_once(tmp_path: Path) -> None:
    classes, checkpoints = tmp_path / "classes", tmp_path / "checkpoints"
    jars = f"{fetched(JARS)}/*"
    # Compiled, because Flink's tasks do not see the classes of a program that java runs from its source.
    run([require("javac"), "-cp", jars, "-d", str(classes), str(PROGRAM)])

    def application(bootstrap: str) -> list[str]:
        arguments = (bootstrap, str(checkpoints), *checkpoint(checkpoints))
        return java_command(PROGRAM.stem, *arguments, options=OPTIONS, classpath=f"{classes}:{jars}")

    counts_each_word_once(tmp_path, application)
