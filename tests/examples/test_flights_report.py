"""The demo's report: its numbers are correct, and it fits a narrow screen."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from replicated import Acknowledged, Survived, longest_silence
from report import Counts, Run, render
from traffic import Hour, Sample, Traffic

PUBLISHED = Counter({"UA": 58_665, "OO": 32})
CANCELLED = Counter({"UA": 686, "OO": 3})


def survived() -> Survived:
    counts = (0, 10_000, 20_000, 20_000, 20_000, 20_000, 40_000, 58_697)
    samples = [Acknowledged(number / 2, count) for number, count in enumerate(counts)]
    silence = longest_silence(samples, 1.1)
    return Survived(PUBLISHED, PUBLISHED, 2, 1.1, 2.9, samples, silence)


def run(*, loaded: bool = True, three: bool = True) -> Run:
    traffic = Traffic(published=PUBLISHED, consumed=PUBLISHED, publish_s=4.0, consume_s=5.25)
    traffic.hours.update(
        {6: Hour(30_000, 29_900, 40_000), 19: Hour(28_697, 28_108, 700_000), 1: Hour(1, 0, 0)}
    )
    traffic.samples += [Sample(1.0, 20_000, 15_000, 5_000), Sample(5.5, 58_697, 58_697, 0)]
    counts = Counts(
        PUBLISHED,
        PUBLISHED,
        PUBLISHED if loaded else None,
        CANCELLED,
        {"UA": "United & Co.", "OO": "SkyWest"},
    )
    return Run(counts, traffic, survived() if three else None, {"start": 1.25, "load": 9.0})


class Page(HTMLParser):
    """The text of a page, and its tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_the_report_says_what_was_counted() -> None:
    page = Page(render(run()))
    assert "Millstream: a year of flights" in page.text
    assert "58,697 flights were scheduled from New York in 2013: 58,008 left, 689 were cancelled" in page.text
    assert "published 58,697 in 4.0 s, 14,674 a second" in page.text
    assert "consumed 58,697 after 5.2 s, by a group of 2" in page.text
    assert "loaded 58,697 rows of Parquet" in page.text
    assert "United & Co. 57,979 686" in page.text
    assert "SkyWest 29 3" in page.text
    assert (
        "Broker 2 was killed and started again; the longest wait for an acknowledgement was 2.0 s"
        in page.text
    )
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", render(run()))
    assert captions[0] == "Flights acknowledged"
    assert [tag for tag, _ in page.tags].count("img") == len(captions) == 5


def test_what_was_left_out_is_said() -> None:
    page = Page(render(run(loaded=False, three=False)))
    assert "left out: no Java 17" in page.text
    assert "three brokers need ZooKeeper, which needs Java 17" in page.text
    assert "as many flights were published and consumed." in page.text
    assert [tag for tag, _ in page.tags].count("img") == 4


def test_the_page_needs_nothing_beside_it() -> None:
    page = Page(render(run()))
    sources = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not {"script", "link"} & {tag for tag, _ in page.tags}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 1, 2, 3), (0.0, 1.0)),
        ((0, 5, 5, 5, 6), (1.0, 4.0)),
        ((0,), (0.0, 0.0)),
        ((0, 1, 1, 1), (0.0, 1.0)),
    ],
)
def test_the_longest_silence(counts: tuple[int, ...], expected: tuple[float, float]) -> None:
    assert (
        longest_silence([Acknowledged(float(at), count) for at, count in enumerate(counts)], 0.0) == expected
    )


def test_a_silence_before_the_kill_does_not_count() -> None:
    counts = (0, 0, 0, 0, 0, 5, 6, 6, 6, 7)  # the first acknowledgement takes the longest
    samples = [Acknowledged(float(at), count) for at, count in enumerate(counts)]
    assert longest_silence(samples, 6.5) == (6.0, 9.0)
