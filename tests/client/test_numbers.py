"""Numbers on the command line are plain digits."""

from __future__ import annotations

import click
import pytest

from millstream.options import Integer, Seconds, Whole


@pytest.mark.parametrize("text", ["1_000", "\uff11", "1e3", " 1", "nan", ""])
def test_whole_numbers_in_another_spelling_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a whole number"):
        Whole(0).convert(text, None, None)


@pytest.mark.parametrize("text", ["1_0.5", "nan", "inf", "\u0661", "0x1"])
def test_seconds_in_another_spelling_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a number of seconds"):
        Seconds(0).convert(text, None, None)


def test_plain_numbers() -> None:
    assert [Integer().convert(text, None, None) for text in ("7", "+7", "-5")] == [7, 7, -5]
    assert [Seconds(0).convert(text, None, None) for text in ("7", "0.5", ".5", "1e2")] == [7, 0.5, 0.5, 100]
    with pytest.raises(click.BadParameter, match="not in the range"):
        Whole(0).convert("-1", None, None)
