"""Protocol messages made up by hypothesis, from the schemas themselves: any value that a version can carry."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from millstream_kafka.protocol.schema import FieldType, Struct

from .protocol import APIS

VERSIONS = [(api, version) for api in APIS.values() for version in range(api.served[0], api.served[1] + 1)]
"""Every API in every version."""
VERSION_IDS = [f"{api.name}-v{version}" for api, version in VERSIONS]

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["flights", "ü" * 80, "x" * 300])
_BYTES = st.binary(max_size=8) | st.sampled_from([b"\0" * 126, b"\0" * 127, b"\xff" * 20000])
_MILLISECONDS = st.integers(-1, 2**40)


def _integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([0, 1, -1, low, high]) | st.integers(low, high)


_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "float64": st.floats(allow_nan=False),
    "uuid": st.uuids(allow_nil=True),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
}


def _single(name: str, wire: FieldType, version: int) -> st.SearchStrategy[Any]:
    if wire.struct is not None:
        return messages(wire.struct, version)
    if name.endswith("error_code"):
        return st.integers(-1, 133)
    if wire.kind == "int64" and name.endswith(("_time_ms", "_lifetime_ms")):
        return _MILLISECONDS
    return _KINDS[wire.kind]


def values(name: str, wire: FieldType, version: int) -> st.SearchStrategy[Any]:
    """What a field may hold in a version."""
    found = _single(name, wire, version)
    if wire.is_array:
        found = st.lists(found, max_size=3)
    if wire.kind == "struct" and not wire.is_array:
        # A struct of defaults is absent on the wire as Kafka writes it; ours says None.
        assert wire.struct is not None
        found = st.none() | found.filter(lambda value: value != type(value)())
    elif wire.nullable_in(version):
        found = st.none() | found
    return found


def messages(struct: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Structs with any value in each field that the version carries; the others keep their defaults."""
    return st.builds(
        struct,
        **{name: values(name, wire, version) for name, wire in struct.FIELDS if wire.in_version(version)},
    )
