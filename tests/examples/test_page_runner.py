"""The runner of pages notices a failing block and an output that differs from the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.pages import PageFailed, run_page

EXAMPLE = """
```sh
greeting=hello; mkdir -p sub; cd sub
```

The file:

```text title="said.txt"
kept
```
```sh
echo "$greeting $(cat said.txt)"; echo and   more; echo the end
```
```text
hello kept
…
the …d
```
"""


@pytest.mark.parametrize(
    ("change", "line"),
    [(("hello kept", "hello kep"), 14), (("the …d", "the …x"), 14), (("greeting=hello", "false"), 2)],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, change: tuple[str, str], line: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(EXAMPLE)
    (tmp_path / "right").mkdir()
    assert run_page(page, tmp_path / "right") == 2
    page.write_text(EXAMPLE.replace(*change))
    (tmp_path / "wrong").mkdir()
    with pytest.raises(PageFailed, match=rf"page\.md:{line}: "):
        run_page(page, tmp_path / "wrong")
