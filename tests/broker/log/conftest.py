"""Fixtures for the tests of logs."""

from __future__ import annotations

import os
from typing import BinaryIO

import pytest


@pytest.fixture
def fsynced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files and folders that were fsynced, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def recorded(file: int | BinaryIO) -> None:
        number = file if isinstance(file, int) else file.fileno()
        paths.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", recorded)
    return paths


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not depend on durability: each of thousands of fsyncs takes a moment."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
