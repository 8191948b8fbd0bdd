"""Producer ids: random blocks, and every id once."""

from __future__ import annotations

import secrets

import pytest

from millstream_broker.administration.producer_ids import BLOCK, END, FIRST, ProducerIds


def test_ids_are_given_once_by_any_number_of_processes() -> None:
    found = [ids.next() for ids in (ProducerIds(), ProducerIds()) for _ in range(3 * BLOCK)]
    assert len(set(found)) == len(found)
    assert len({one // (1 << 40) for one in found}) > 1, "they are spread"


@pytest.mark.parametrize("drawn", [0, -1])
def test_ids_are_positive_and_above_those_of_kafka(monkeypatch: pytest.MonkeyPatch, drawn: int) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda limit: drawn % limit)
    ids = ProducerIds()
    found = [ids.next() for _ in range(BLOCK)]
    assert found == list(range(found[0], found[0] + BLOCK))
    assert found[0] >= FIRST
    assert found[-1] < END
