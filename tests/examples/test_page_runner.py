"""The runner of pages notices a failing block and a wrong output; it runs parts of a page, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.pages import PageFailed, run_command, run_page

pytestmark = pytest.mark.process

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


SECTIONS = """
# A page

```sh
greeting=hello
```

## Kubernetes

```sh
# not a heading
say() { echo "$greeting $1"; }
```

### Later

```sh
say reader
```

## A laptop

```sh
false
```
"""


def test_sections_run_alone_and_continue_in_the_same_shell(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(SECTIONS)
    assert run_page(page, tmp_path, leave_out={"Later", "A laptop"}) == 2
    assert run_page(page, tmp_path, sections={"Later"}) == 1
    with pytest.raises(PageFailed, match=r"page\.md:23: "):
        run_page(page, tmp_path, sections={"Kubernetes", "A laptop"})
    with pytest.raises(AssertionError, match="no blocks below"):
        run_page(page, tmp_path, sections={"Elsewhere"})


def test_a_command_of_a_sentence_runs_with_its_placeholders_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ntrue\n```\n\nSay `echo\nNAME`.")
    assert run_command(page, tmp_path, "echo NAME", replace={"NAME": "anna"}) == "anna\n"
    with pytest.raises(AssertionError, match="does not show"):
        run_command(page, tmp_path, "echo anna")
    page.write_text("Say `false`.")
    with pytest.raises(PageFailed, match="exit status 1"):
        run_command(page, tmp_path, "false")
