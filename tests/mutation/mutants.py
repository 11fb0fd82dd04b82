"""Small bugs, made from the syntax tree of a module: each is one edit of its text.

    negated   a < b          ->  not (a < b)        a condition the other way round
    boundary  a < b          ->  a <= b             off by one, at a comparison
    off by 1  f(3)           ->  f(3 + 1)           off by one, at a number
    dropped   write(row)     ->  pass               a statement that is left out
    swapped   f(a, b)        ->  f(b, a)            two arguments that changed places
    silent    raise Error()  ->  pass               an error that is not raised
    inverted  and, or        ->  or, and            the other way to join two conditions

Places that a kill names (`reach`) and spans of traces stay, because no test without kills or traces could
notice them. So do annotations, texts and what only a type checker reads.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

KINDS: Final = ("negated", "boundary", "off by 1", "dropped", "swapped", "silent", "inverted")
_BOUNDARIES: Final[dict[type[ast.cmpop], str]] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_LEFT_ALONE: Final = ("reach", "set", "span")  # crash points, and what a span notes


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit: `after` in the place of `before`, which stands at `start` of the module's text."""

    module: str  # its path below the package
    function: str  # the qualified name of the function, empty at the top of a module
    line: int
    kind: str
    start: int
    before: str
    after: str
    nth: int = 1  # of those in its function that read alike

    @property
    def id(self) -> str:
        """What stays when lines move: where it is, and what it does."""
        nth = f" #{self.nth}" if self.nth > 1 else ""
        change = f"{_short(self.before)} -> {_short(self.after)}"
        return f"{self.module} {self.function or '(top)'} {self.kind}{nth}: {change}"

    def applied(self, text: str) -> str:
        assert text.startswith(self.before, self.start), f"{self.module} has changed"
        return text[: self.start] + self.after + text[self.start + len(self.before) :]


def _short(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 90 else f"{joined[:87]}…"


def mutants_of(module: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    found = sorted(set(_Maker(module, text).found()), key=lambda each: (each.start, each.kind, each.after))
    alike: Counter[str] = Counter()
    numbered = []
    for each in found:
        alike[each.id] += 1
        numbered.append(replace(each, nth=alike[each.id]))
    return numbered


class _Maker:
    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> Iterator[Mutant]:
        yield from self._below(ast.parse(self._text), "")

    def _below(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._of(child, function)

    def _of(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if _is_for_types(node) or isinstance(node, ast.JoinedStr):  # texts of messages, whose places are off
            return
        inner = function
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{node.name}".lstrip(".")
        yield from self._edits(node, function)
        yield from self._below(node, inner)

    def _edits(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield self._edit(node, function, "negated", f"(not ({self._source(node)}))")
            is_plain = not isinstance(node.comparators[0], ast.NamedExpr)  # which stands in parentheses
            if is_plain and (other := _BOUNDARIES.get(type(node.ops[0]))) is not None:
                left, right = self._source(node.left), self._source(node.comparators[0])
                yield self._edit(node, function, "boundary", f"({left} {other} {right})")
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            parts = [f"({self._source(value)})" for value in node.values]
            yield self._edit(node, function, "inverted", f"({word.join(parts)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._edit(node, function, "off by 1", f"({self._source(node)} + 1)")
        elif isinstance(node, ast.Call) and len(node.args) > 1 and not _is_left_alone(node):
            yield from self._swapped(node, function)
        elif isinstance(node, ast.Expr | ast.AugAssign) and _is_statement(node):
            yield self._edit(node, function, "dropped", "pass")
        elif isinstance(node, ast.Raise):
            yield self._edit(node, function, "silent", "pass")

    def _swapped(self, node: ast.Call, function: str) -> Iterator[Mutant]:
        first, second = node.args[:2]
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return
        one, two = self._source(first), self._source(second)
        if one == two or (isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
            return
        start, end = self._place(first)[0], self._place(second)[1]
        between = self._text[self._place(first)[1] : self._place(second)[0]]
        yield self._made(start, end, function, node.lineno, "swapped", f"{two}{between}{one}")

    def _edit(self, node: ast.AST, function: str, kind: str, after: str) -> Mutant:
        start, end = self._place(node)
        return self._made(start, end, function, getattr(node, "lineno", 0), kind, after)

    def _made(self, start: int, end: int, function: str, line: int, kind: str, after: str) -> Mutant:
        return Mutant(self._module, function, line, kind, start, self._text[start:end], after)

    def _source(self, node: ast.AST) -> str:
        start, end = self._place(node)
        return self._text[start:end]

    def _place(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, byte: int) -> int:
        """The tree counts bytes, the text characters."""
        start = self._starts[line - 1]
        return start + len(self._text[start : self._starts[line]].encode()[:byte].decode())


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_statement(node: ast.Expr | ast.AugAssign) -> bool:
    """What does something: a call or a yield, and no docstring."""
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node.value, ast.Call):
        return not _is_left_alone(node.value)
    return isinstance(node.value, ast.Yield | ast.YieldFrom)


def _is_left_alone(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in _LEFT_ALONE
