"""Writes the pod templates of the CRDs in `crds/`, from the records in models/pods.py.

    python -m millstream_operator.tools.definitions crds

Two comments in a CRD mark a template, and name its container::

    # pod template of broker, written by `make definitions`
    …
    # end of pod template

So a field of all pods is added in one place, and the API server refuses what the operator's records refuse.
"""

from __future__ import annotations

import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from msgspec import NODEFAULT, inspect

from ..models.pods import CONSUMERS, LIST_KEYS, PodTemplate, Rule
from ..models.workload import WorkloadTemplate

Schema = dict[str, Any]

# The pods of each template, and the type of its container.
CONTAINERS: dict[str, Any] = {
    "broker": Literal["broker"],
    "zookeeper": Literal["zookeeper"],
    "mirror": Literal["mirror"],
    "driver": Literal["driver"],
    "executor": Literal["executor"],
}
QUANTITY = r"^[0-9]+(\.[0-9]+)?(([KMGTPE]i)|[kMGTPEmun])?$"
_BLOCK = re.compile(
    r"^( *)(# pod template of (\w+), written by `make definitions`)\n.*?^ *(# end of pod template)\n",
    re.MULTILINE | re.DOTALL,
)


def template_schema(container: str) -> Schema:
    """The structural schema of a template whose one container has this name, or of a workload's template."""
    if container == CONSUMERS:
        words = "Pods that consume. The containers are yours; none of these fields gives a pod more rights."
        return {"description": words, **_schema(inspect.type_info(WorkloadTemplate), container)}
    kind = typing.cast(Any, PodTemplate)[CONTAINERS[container]]
    described = {
        "description": f"Additions to the pods ({container}). None of these fields gives a pod more rights."
    }
    return {**described, **_schema(inspect.type_info(kind), container), "default": {}}


def with_templates(text: str) -> str:
    """The text of a CRD with its templates rewritten."""

    def block(found: re.Match[str]) -> str:
        indent, begin, container, end = found.groups()
        lines = yaml.dump(
            {"template": template_schema(container)},
            Dumper=_Dumper,
            sort_keys=False,
            width=10_000,
            allow_unicode=True,
            default_flow_style=None,
        )
        return textwrap.indent(f"{begin}\n{lines}{end}\n", indent)

    return _BLOCK.sub(block, text)


class _Dumper(yaml.SafeDumper):
    """Writes no YAML aliases (`*`)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _schema(kind: inspect.Type, container: str) -> Schema:
    match kind:
        case inspect.Metadata():
            return {**(kind.extra_json_schema or {}), **_schema(kind.type, container)}
        case inspect.UnionType():
            return _union(kind, container)
        case inspect.StructType():
            return _object(kind, container)
        case inspect.DictType():
            values = kind.value_type
            if isinstance(values, inspect.AnyType):
                return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            return {
                "type": "object",
                **_bounds(maxProperties=kind.max_length),
                "additionalProperties": _schema(values, container),
            }
        case inspect.VarTupleType():
            items = _schema(kind.item_type, container)
            return {
                "type": "array",
                **_bounds(minItems=kind.min_length, maxItems=kind.max_length),
                "items": items,
            }
        case inspect.LiteralType():
            return {"type": "string", "enum": [*kind.values]}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            large = kind.le is None or kind.le > 2**31 - 1
            most = None if kind.le == 2**31 - 1 else kind.le
            return {
                "type": "integer",
                "format": "int64" if large else "int32",
                **_bounds(minimum=kind.ge, maximum=most),
            }
        case inspect.StrType():
            return {
                "type": "string",
                **_bounds(pattern=kind.pattern, minLength=kind.min_length, maxLength=kind.max_length),
            }
    raise TypeError(f"{kind}: no schema is known for it")


def _union(kind: inspect.UnionType, container: str) -> Schema:
    """An optional field; or a quantity, which may be an integer or a string."""
    types = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    if {type(one) for one in types} == {inspect.IntType, inspect.StrType}:
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY,
            "maxLength": 32,
        }
    (one,) = types
    return _schema(one, container)


def _object(kind: inspect.StructType, container: str) -> Schema:
    cls = typing.get_origin(kind.cls) or kind.cls
    rules: Callable[[str], Iterable[Rule]] = getattr(cls, "rules", lambda _: ())
    properties = {field.encode_name: _field(field, container) for field in kind.fields}
    own = []
    for where, rule, message in rules(container):
        entry = {"rule": rule, "message": message}
        if where:
            properties[where].setdefault("x-kubernetes-validations", []).append(entry)
        else:
            own.append(entry)
    required = [field.encode_name for field in kind.fields if field.required]
    return {
        "type": "object",
        **({"required": required} if required else {}),
        "properties": properties,
        **({"x-kubernetes-validations": own} if own else {}),
    }


def _field(field: inspect.Field, container: str) -> Schema:
    schema = _schema(field.type, container)
    if (key := LIST_KEYS.get(field.encode_name)) is not None:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    default = field.default
    if field.default_factory is not NODEFAULT:
        default = msgspec.to_builtins(field.default_factory())
    if default is not NODEFAULT and default is not None:
        schema["default"] = [] if default == () else default
    return schema


def _bounds(**bounds: Any) -> Schema:
    return {name: value for name, value in bounds.items() if value is not None}


def main(folder: str) -> None:
    for file in sorted(Path(folder).glob("*.yaml")):
        text = file.read_text()
        if (changed := with_templates(text)) != text:
            file.write_text(changed)
            print(f"{file}: pod templates written")


if __name__ == "__main__":
    main(*sys.argv[1:])
