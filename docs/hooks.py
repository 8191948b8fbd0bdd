"""Hooks of MkDocs: pages link to files of the repository by relative paths, as GitHub shows them.

The site gets a page under `source/` for every such file: Markdown unchanged, other text as a listing, a folder as a
list of its files. So each link works in both places, and a broken link fails the build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "source"
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^( *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
SHOWN = {
    ".py",
    ".yaml",
    ".yml",
    ".properties",
    ".java",
    ".xml",
    ".sh",
    ".toml",
    ".txt",
    ".json",
    ".tpl",
    ".js",
    ".go",
}
LANGUAGES = {"yml": "yaml", "tpl": "yaml", "txt": "text"}
_ORIGINS: dict[str, str] = {}
"""The repository's files by their pages under `source/`."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file or folder that a page links to, and for those that these link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    known: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        if not path.startswith("docs/") or not path.endswith(".md"):
            if path.startswith("docs/") and (ROOT / path).is_file():
                continue
            _ORIGINS[_uri(path)] = path
            files.append(File.generated(config, _uri(path), content=_content(path)))
        if path.endswith(".md"):
            waiting += _targets(path, (ROOT / path).read_text())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links with the site's addresses."""
    uri = page.file.src_uri
    path = _ORIGINS.get(uri, f"docs/{uri}")
    if not path.endswith(".md"):
        return markdown

    def link(match: re.Match[str]) -> str:
        target = _uri(_resolved(path, match[2]))
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(uri) or '.')}{match[3]}"

    return _outside_fences(markdown, lambda text: LINK.sub(link, text))


def _targets(path: str, markdown: str) -> Iterator[str]:
    for part in FENCE.split(markdown)[::2]:
        for match in LINK.finditer(part):
            target = _resolved(path, match[2])
            if not (ROOT / target).exists():
                raise Abort(f"{path}: the link {match[2]} leads nowhere")
            yield target


def _resolved(path: str, link: str) -> str:
    """A link's target, from the repository's root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    parts = FENCE.split(markdown)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def _uri(path: str) -> str:
    """A file's page in the site. MkDocs leaves out names that begin with a dot."""
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    page = f"{path}/folder.md" if (ROOT / path).is_dir() else path if path.endswith(".md") else f"{path}.md"
    return f"{SOURCE}/{page.removeprefix('.')}"


def _content(path: str) -> str:
    file = ROOT / path
    head = "---\nsearch: {exclude: true}\n---\n"
    if file.is_dir():
        names = sorted(
            f"{one.name}/" if one.is_dir() else one.name for one in file.iterdir() if _is_listed(one)
        )
        return "\n".join([f"{head}# `{path}/`", "", *(f"- `{name}`" for name in names), ""])
    text = file.read_text()
    if path.endswith(".md"):
        return head + text
    language = file.suffix.removeprefix(".")
    fence = f"~~~~ {{.{LANGUAGES.get(language, language) if file.suffix in SHOWN else 'text'}}}"
    return f"{head}# `{path}`\n\n{fence}\n{text.rstrip()}\n~~~~\n"


def _is_listed(file: Path) -> bool:
    return not file.name.startswith((".", "__pycache__"))
