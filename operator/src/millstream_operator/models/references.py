"""References to variables, $(NAME), in an environment or in arguments, as Kubernetes reads them; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with $(NAME) replaced, as in Kubernetes: $$ is $, and an unknown name stays."""
    return _REFERENCE.sub(lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text)


def without_references(text: str, names: Set[str]) -> str:
    """The text with each reference $(NAME) to one of the variables as $$(NAME), which Kubernetes does not expand."""
    return _REFERENCE.sub(lambda found: f"${found[0]}" if found[1] in names else found[0], text)
