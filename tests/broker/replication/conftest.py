from __future__ import annotations

import pytest

from millstream_harness.replica import Clock


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
