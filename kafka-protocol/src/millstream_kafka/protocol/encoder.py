"""Generates the functions that write a struct in one version: see ``compiler``."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from .compiler import FIXED, FunctionSource, file_name
from .schema import EncodeError, Encoder, FieldType, Struct


class _EncoderSource(FunctionSource):
    writer = "w"

    def flush(self) -> None:
        """Write the run of fixed-size values."""
        if not self.run:
            return
        layout = "".join(part for part, _, _ in self.run)
        if set(layout) == {"x"}:
            self.add(f"{self.writer}({bytes(len(layout))!r})")
        else:
            values = ", ".join(expression for _, expression, _ in self.run if expression)
            self.add(f"{self.writer}({self.method(layout, 'pack')}({values}))")
        named = [path for part, _, path in self.run if part != "x"]
        self.about[-1] = [(" or ".join(dict.fromkeys(named)), 0)]
        self.run.clear()

    def struct(self, nested: type[Struct], m: str) -> None:
        tagged: list[tuple[str, FieldType]] = []
        for name, wire in nested.FIELDS:
            if not wire.in_version(self.version):
                continue
            if wire.tag is not None:
                tagged.append((name, wire))
                continue
            with self.field(name):
                self.value(wire, f"{m}.{name}")
        if self.flexible:
            if tagged:
                self.tags(sorted(tagged, key=lambda item: item[1].tag or 0), m)
            else:
                self.fixed("x", "")

    def value(self, wire: FieldType, expression: str) -> None:
        nullable = wire.nullable_in(self.version)
        if wire.is_array:
            self.array(wire, expression, nullable)
        elif wire.kind == "struct":
            assert wire.struct is not None
            m = self.name("m")
            self.add(f"{m} = {expression}")
            if nullable:
                self.nullable_struct(wire.struct, m)
            else:
                self.struct(wire.struct, m)
        else:
            self.single(wire.kind, expression, nullable)

    def nullable_struct(self, nested: type[Struct], m: str) -> None:
        """After a byte: -1 for null, otherwise 1."""
        self.flush()
        with self.block(f"if {m} is None:"):
            self.fixed("b", "-1")
            self.flush()
        with self.block("else:"):
            self.fixed("b", "1")
            self.struct(nested, m)
            self.flush()

    def single(self, kind: str, expression: str, nullable: bool) -> None:
        if kind in FIXED:
            self.fixed(FIXED[kind], f"{expression}.bytes" if kind == "uuid" else expression)
            return
        variable, length = self.name("v"), self.name("n")
        extra = " + 1" if self.flexible else ""
        encode = ".encode()" if kind == "string" else ""
        if nullable:
            self.add(f"{variable} = {expression}")
            with self.block(f"if {variable} is None:"):
                self.add(f"{variable} = b''")
                self.add(f"{length} = {0 if self.flexible else -1}")
            with self.block("else:"):
                if encode:
                    self.add(f"{variable} = {variable}{encode}")
                self.add(f"{length} = len({variable}){extra}")
        else:
            self.add(f"{variable} = {expression}{encode}")
            self.add(f"{length} = len({variable}){extra}")
        self.length(length, "h" if kind == "string" else "i")
        self.flush()
        self.add(f"{self.writer}({variable})")

    def length(self, length: str, layout: str) -> None:
        if not self.flexible:
            self.fixed(layout, length)
            return
        self.flush()
        write = "string_length" if layout == "h" else "varint"
        self.add(f"{self.writer}(SMALL[{length}] if {length} < 128 else {write}({length}))")

    def array(self, wire: FieldType, expression: str, nullable: bool) -> None:
        variable, count = self.name("v"), self.name("n")
        self.add(f"{variable} = {expression}")
        counted = f"len({variable})" + (" + 1" if self.flexible else "")
        if nullable:
            self.add(f"{count} = {0 if self.flexible else -1} if {variable} is None else {counted}")
        else:
            self.add(f"{count} = {counted}")
        self.length(count, "i")
        self.flush()
        elements = f"{variable} or ()" if nullable else variable
        if wire.kind in FIXED and wire.kind != "uuid":
            with self.block(f"if {variable}:"):
                self.add(f"{self.writer}(pack(f'>{{len({variable})}}{FIXED[wire.kind]}', *{variable}))")
            return
        if wire.encodable:
            with self.block(f"if type({variable}) is Encoded:"):
                self.add(f"{self.writer}({variable}.data)")
        element = self.name("m")
        with self.block(f"for {element} in {elements}:"):
            if wire.struct is None:
                self.single(wire.kind, element, False)
            else:
                self.struct(wire.struct, element)
            self.flush()
            self.step()

    def tags(self, tagged: list[tuple[str, FieldType]], m: str) -> None:
        self.flush()
        present: list[str] = []
        for name, wire in tagged:
            given = self.name("g")
            if wire.default is None:
                self.add(f"{given} = {m}.{name} is not None")
            elif wire.is_array:
                self.add(f"{given} = len({m}.{name}) > 0")
            else:
                self.add(f"{given} = {m}.{name} != {wire.default!r}")
            present.append(given)
        self.add(f"{self.writer}(SMALL[{' + '.join(present)}])")
        for given, (name, wire) in zip(present, tagged, strict=True):
            with self.field(name), self.block(f"if {given}:"):
                outer, out = self.writer, self.name("w")
                self.add(f"p{out} = []; {out} = p{out}.append")
                self.writer = out
                self.value(wire, f"{m}.{name}")
                self.flush()
                self.writer = outer
                self.add(f"p{out} = b''.join(p{out})")
                self.add(f"{outer}(varint({wire.tag})); {outer}(varint(len(p{out}))); {outer}(p{out})")


def compile_encoder(target: type[Struct], version: int, flexible: bool, *, in_steps: bool = False) -> Encoder:
    """With `in_steps` the encoder is a generator: it yields after each element of an array."""
    file = file_name("encode", target, version, "", in_steps)
    source = _EncoderSource(file, version, flexible, "def encode(m, parts):", in_steps)
    source.add("w = parts.append")
    source.step()
    source.struct(target, "m")
    source.flush()
    encode = source.compile("encode")

    def explain(error: Exception) -> NoReturn:
        field = source.field_at(error.__traceback__, 1 << 62)
        raise EncodeError(f"{target.__name__} version {version}: {field}: {error}") from error

    def steps(value: Any, parts: list[Any]) -> Any:
        try:
            yield from encode(value, parts)
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            explain(error)

    def encoder(value: Any, parts: list[Any]) -> None:
        try:
            encode(value, parts)
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            explain(error)

    return steps if in_steps else encoder
