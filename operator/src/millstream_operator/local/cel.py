"""The part of the Common Expression Language (CEL) that our CRDs' validation rules are written in.

The rules of `x-kubernetes-validations` are the API's contract; evaluating the same text here means that a manifest
is refused on a laptop exactly as the API server refuses it. Source: the CEL specification (github.com/google/cel-spec)
and Kubernetes' libraries for it (`quantity`).

    expr    = or [ "?" or ":" expr ]        or  = and { "||" and }        and = rel { "&&" rel }
    rel     = add { ("<"|"<="|">"|">="|"=="|"!="|"in") add }              add = mul { ("+"|"-") mul }
    mul     = unary { ("*"|"/"|"%") unary } unary = [ "!" | "-" ] member
    member  = primary { "." NAME [ "(" args ")" ] | "[" expr "]" }
    primary = NAME [ "(" args ")" ] | "(" expr ")" | "[" args "]" | literal

Values are JSON's, as Python has them. ``compile_rule`` refuses what it does not know, so a rule is never half
understood (a test compiles every rule of every CRD).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..quantity import parse_quantity

Environment = Mapping[str, Any]
Node = Callable[[Environment], Any]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?)
    | (?P<text>r?'(?:[^'\\]|\\.)*' | r?"(?:[^"\\]|\\.)*")
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign>\|\||&&|[<>=!]=|[-+*/%<>!?:.,()\[\]])
    )""",
    re.VERBOSE,
)
_ESCAPED = {"__dash__": "-", "__dot__": ".", "__slash__": "/", "__underscores__": "__"}


class CelError(Exception):
    """A rule that this module does not understand, or that does not fit the value."""


@functools.lru_cache
def compile_rule(rule: str) -> Node:
    """A rule as a function of its variables (``self``, ``oldSelf``); CelError when it has something unknown."""
    parser = _Parser(rule)
    node = parser.expression()
    if parser.kind != "end":
        raise CelError(f"unexpected {parser.token!r} in {rule!r}")
    return node


def _member(value: Any, name: str) -> Any:
    if isinstance(value, Mapping) and name in value:
        return value[name]
    raise CelError(f"no such field: {name}")


def _equal(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "in": lambda left, right: left in right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: (
        int(left / right) if isinstance(left, int) and isinstance(right, int) else left / right
    ),
    "%": lambda left, right: left % right,
}
_LEVELS = (("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "size": len,
    "string": lambda value: str(value).lower() if isinstance(value, bool) else str(value),
    "int": int,
    "double": float,
    "quantity": parse_quantity,
}
_METHODS: dict[str, Callable[..., Any]] = {
    "size": len,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "lowerAscii": str.lower,
    "split": str.split,
    "isGreaterThan": lambda left, right: left > right,
    "isLessThan": lambda left, right: left < right,
    "compareTo": lambda left, right: (left > right) - (left < right),
}
_MACROS: dict[str, Callable[[Sequence[Any], Callable[[Any], Any]], Any]] = {
    "all": lambda items, of: all(of(item) for item in items),
    "exists": lambda items, of: any(of(item) for item in items),
    "exists_one": lambda items, of: sum(bool(of(item)) for item in items) == 1,
    "filter": lambda items, of: [item for item in items if of(item)],
    "map": lambda items, of: [of(item) for item in items],
}


class _Parser:
    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while rule[position:].strip():
            if not (found := _TOKEN.match(rule, position)):
                raise CelError(f"unexpected {rule[position:].strip()[0]!r} in {rule!r}")
            self.tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))
            position = found.end()
        self.tokens.append(("end", "the end"))

    @property
    def kind(self) -> str:
        return self.tokens[0][0]

    @property
    def token(self) -> str:
        return self.tokens[0][1] if self.kind != "text" else ""

    def take(self, token: str) -> bool:
        if self.token == token and self.kind != "end":
            self.tokens.pop(0)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise CelError(f"{token!r} expected before {self.tokens[0][1]!r} in {self.rule!r}")

    def name(self) -> str:
        kind, name = self.tokens.pop(0)
        if kind != "name":
            raise CelError(f"a name expected instead of {name!r} in {self.rule!r}")
        for escaped, plain in _ESCAPED.items():
            name = name.replace(escaped, plain)
        # A field named as a word that CEL reserves is written __WORD__.
        return name[2:-2] if name.startswith("__") and name.endswith("__") else name

    def expression(self) -> Node:
        condition = self.junction("||", lambda: self.junction("&&", lambda: self.binary(0)))
        if not self.take("?"):
            return condition
        yes = self.expression()
        self.expect(":")
        no = self.expression()
        return lambda env: yes(env) if condition(env) else no(env)

    def junction(self, sign: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self.take(sign):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        together = any if sign == "||" else all
        return lambda env: together(bool(node(env)) for node in parts)

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while (sign := self.token) in _LEVELS[level]:
            self.tokens.pop(0)
            left = self._apply(_BINARY[sign], left, self.binary(level + 1))
        return left

    @staticmethod
    def _apply(function: Callable[..., Any], *arguments: Node) -> Node:
        def node(env: Environment) -> Any:
            try:
                return function(*(argument(env) for argument in arguments))
            except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, re.error) as error:
                raise CelError(str(error)) from error

        return node

    def unary(self) -> Node:
        if self.take("!"):
            return self._apply(lambda value: not value, self.unary())
        if self.take("-"):
            return self._apply(lambda value: -value, self.unary())
        return self.member()

    def member(self) -> Node:
        node = self.primary()
        while True:
            if self.take("["):
                node = self._apply(lambda value, key: value[key], node, self.expression())
                self.expect("]")
            elif self.take("."):
                name = self.name()
                if not self.take("("):
                    node = self._apply(_member, node, functools.partial(lambda name, env: name, name))
                elif name in _MACROS:
                    node = self.macro(name, node)
                elif name in _METHODS:
                    node = self._apply(_METHODS[name], node, *self.arguments(")"))
                else:
                    raise CelError(f"unknown function {name}() in {self.rule!r}")
            else:
                return node

    def macro(self, name: str, items: Node) -> Node:
        variable = self.name()
        self.expect(",")
        body = self.expression()
        self.expect(")")
        return self._apply_macro(_MACROS[name], items, variable, body)

    @staticmethod
    def _apply_macro(macro: Callable[..., Any], items: Node, variable: str, body: Node) -> Node:
        return lambda env: macro(items(env), lambda item: body({**env, variable: item}))

    def arguments(self, end: str) -> list[Node]:
        found: list[Node] = []
        while not self.take(end):
            if found:
                self.expect(",")
            found.append(self.expression())
        return found

    def primary(self) -> Node:
        if self.take("("):
            node = self.expression()
            self.expect(")")
            return node
        if self.take("["):
            items = self.arguments("]")
            return lambda env: [item(env) for item in items]
        if self.kind == "name":
            return self.named()
        kind, token = self.tokens.pop(0)
        value: Any
        if kind == "number":
            value = float(token) if "." in token else int(token)
        elif kind == "text":
            raw = token.startswith("r")
            value = token[2:-1] if raw else re.sub(r"\\(.)", r"\1", token[1:-1])
        else:
            raise CelError(f"unexpected {token!r} in {self.rule!r}")
        return lambda env: value

    def named(self) -> Node:
        name = self.name()
        if name in ("true", "false", "null"):
            return lambda env: {"true": True, "false": False, "null": None}[name]
        if not self.take("("):
            return self._apply(_member, lambda env: env, lambda env: name)
        if name == "has":
            return self.has()
        if name not in _FUNCTIONS:
            raise CelError(f"unknown function {name}() in {self.rule!r}")
        return self._apply(_FUNCTIONS[name], *self.arguments(")"))

    def has(self) -> Node:
        """``has(a.b.c)``: is there a field c; what is before it must be there."""
        node = self.primary()
        self.expect(".")
        name = self.name()
        while self.take("."):
            node = self._apply(_member, node, functools.partial(lambda name, env: name, name))
            name = self.name()
        self.expect(")")
        return self._apply(lambda value: name in value, node)
