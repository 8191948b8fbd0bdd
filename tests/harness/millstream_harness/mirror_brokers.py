"""Sources and targets of mirrors as fixtures, and what they count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from .in_process_broker import InProcessBroker
from .mirror import OF_MIRRORS


def broker_fixture(name: str, scope: Literal["session", "module"] = "module") -> Any:
    """A fixture of this name: a broker that mirrors read and write.

    In a module, ``west = broker_fixture("west")`` is its own one instead of that which other modules share.
    """

    @pytest.fixture(scope=scope, name=name)
    def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
        with InProcessBroker(tmp_path_factory.mktemp(name), OF_MIRRORS) as broker:
            yield broker

    return running


def requests(broker: InProcessBroker, api: str) -> int:
    """Number of handled requests."""
    _, page = broker.get("/metrics")
    found = re.search(rf'^millstream_request_seconds_count{{.*api="{api}".*}} (\S+)$', page, re.MULTILINE)
    return int(float(found[1])) if found else 0
