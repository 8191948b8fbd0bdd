"""The site builds strictly, and its pages lead to each other and to the repository's files."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from millstream_harness.java import run

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = ["make", "--old-file=setup", "--old-file=.venv/.installed", "docs", f"SITE={folder}"]
    run(command, cwd=ROOT, timeout=280)
    return folder


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        for name in ("href", "src"):
            if value := values.get(name):
                self.found.add(value)


def links_of(page: Path) -> _Links:
    links = _Links()
    links.feed(page.read_text())
    return links


def test_every_link_of_a_page_leads_to_a_file_and_an_anchor(site: Path) -> None:
    pages = {page: links_of(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 100
    wrong = []
    for page, links in pages.items():
        for link in links.found:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors | {"__search"}
            ):
                wrong.append(f"{page.relative_to(site)}: {link}")
    assert wrong == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page) == []


def test_search_finds_the_pages_of_docs_and_no_sources(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    locations = {one["location"].partition("#")[0] for one in found}
    documents = {
        path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")
    }
    assert locations == {str(path).replace("README.html", "index.html") for path in documents}
