"""Reading a learner's source without running it: names it defines and uses, and lines that must not reach nbval."""

import ast
import re
import symtable
from collections.abc import Sequence
from functools import lru_cache

__all__ = [
    "calls_only",
    "checked_names",
    "clean",
    "defined",
    "joined",
    "needed",
    "parses",
    "plain",
    "same",
    "share_a_line",
    "used",
]

_NBVAL = re.compile(r"NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT")
_ROUGH = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]+)?=(?!=)", re.MULTILINE)
_OURS = ("check", "hint")
_SIGNS = re.compile(
    r"COURSE_(?:GRADE|CASES|CHECK)\w*|course_lib\.(?:grading|checks\.(?!ch\d\d\b)\w+)[\w.]*|\b(?:judge_record|write_packed|_write_record)\b"
    r"|\b(?:set_custom_exc|input_transformers\w*|ast_transformers|iopub\w*|shell_stream|execute_reply)\b"
    r"|\b(?:_getframe|get_objects|get_referrers)\b|/proc/(?:\d|self|\{|\[)[\w./{}]*"
)


def clean(source: str) -> str:
    """Without whole-line nbval comments and without calls of `check` and `hint` at the top level; line numbers stay."""
    source = "\n".join(_unmarked(line) for line in source.split("\n"))
    tree = _parse(source)
    if tree is None:
        return source
    lines = source.split("\n")
    for node in tree.body:
        if _is_ours(node) and node.end_lineno is not None:
            others = [other for other in tree.body if other is not node and share_a_line(node, other)]
            if not others:
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def _unmarked(line: str) -> str:
    """A line without comments that nbval hears. It also ends a line where Python does not, as at a form feed."""
    parts = line.splitlines()
    if not any(part.strip().startswith("#") and _NBVAL.fullmatch(part.strip().lstrip("#").strip()) for part in parts):
        return line
    return "" if len(parts) == 1 else _NBVAL.sub("", line)


def grader_parts(source: str) -> str | None:
    """The first word in a learner's source that names a part of the grader: no answer needs one."""
    found = _SIGNS.search(source)
    return found[0][:60] if found else None


def calls_only(source: str) -> bool:
    """Whether a cell holds nothing but calls of `check` and `hint` (and comments)."""
    tree = _parse(source)
    return tree is not None and bool(tree.body) and all(map(_is_ours, tree.body))


def checked_names(source: str) -> set[str]:
    """The names in the answer that a check takes: `f` and `g` in `check("unequal-tokens", {"f": f, "g": g})`."""
    tree = _parse(source)
    for node in tree.body if tree else []:
        if _is_ours(node) and len(node.value.args) == 2:  # type: ignore[attr-defined]
            return {one.id for one in ast.walk(node.value.args[1]) if isinstance(one, ast.Name)}  # type: ignore[attr-defined]
    return set()


def defined(source: str) -> set[str]:
    """Names that a cell binds at its top level; found line by line when the cell does not parse."""
    tree = _parse(source)
    if tree is None:
        return {one or two for one, two in _ROUGH.findall(source)}
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.add(inner.id)
            elif isinstance(inner, ast.alias):
                names.add((inner.asname or inner.name).split(".")[0])
    return names


def used(source: str) -> set[str]:
    """Names that a cell reads anywhere in it."""
    tree = _parse(source)
    if tree is None:
        return set(re.findall(r"[A-Za-z_]\w*", source))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def needed(source: str) -> set[str]:
    """Names that a cell takes from cells above it: read in it, in any of its scopes, and bound in none of them."""
    if _parse(source) is None:
        return used(source) - defined(source)
    try:
        top = symtable.symtable(_blank(source), "cell", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return used(source) - defined(source)
    found: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                found.add(symbol.get_name())
    return found - defined(source)


def parses(source: str) -> bool:
    """Whether it is Python (lines for IPython, `%` and `!`, left out)."""
    return _parse(source) is not None


def joined(sources: Sequence[str]) -> str | None:
    """The pieces of a cell that was cut within a statement as one; None when each is whole, or they make none."""
    if len(sources) < 2 or all(map(parses, sources)) or any(map(_OTHER.match, sources)):
        return None  # behind a line like `%%bash` anything parses
    whole = "\n".join(sources)
    return whole if parses(whole) else None


def same(one: str, two: str) -> bool:
    """Whether two sources are the same but for blank lines, comments and space at line ends."""
    return _essence(one) == _essence(two)


def _essence(source: str) -> list[str]:
    lines = (line.rstrip() for line in source.split("\n"))
    return [line for line in lines if line and not line.lstrip().startswith("#")]


_ASIDE = re.compile(r"(\s*)(?:([\w.,\[\] \t]+=\s*)?[%!]|\?{1,2}[\w.*]|[\w.*]+\?{1,2}\s*$)")
_TIMED = re.compile(r"(\s*)%(?:time|timeit|prun|memit|lprun)\s+(?:-\w+(?:[ \t]+\d+)?[ \t]+)*(.*)")
_OTHER = re.compile(
    r"\s*%%(?:!|(?:bash|sh|script|cmd|system|sx|html|HTML|javascript|js|latex|markdown|svg|SVG|perl|ruby|pypy|writefile|file)\b)"
)


def plain(source: str) -> str:
    """A cell as Python alone, line by line: what IPython reads otherwise (`%time f()`, `!ls`, `f?`) in other words."""
    if _tree(source) is not None:
        return source
    lines = source.split("\n")
    for number, line in enumerate(lines):
        aside, timed = _ASIDE.match(line), _TIMED.match(line)
        if timed and _tree(timed[2]) is not None:
            lines[number] = timed[1] + timed[2]
        elif aside:
            indent = aside[1] or ""
            lines[number] = f"{indent}{aside[2]}None" if aside[2] else f"{indent}pass" if indent else ""
    return "\n".join(lines)


def _blank(source: str) -> str:
    """As `plain`; nothing of a cell that is no Python at all (`%%bash`)."""
    return "" if _OTHER.match(source) else plain(source)


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parse(source: str) -> ast.Module | None:
    return _few(source) if len(source) > LARGE else _many(source)


LARGE = 10_000
"""From how many characters on a tree is too large to keep more than a few."""


@lru_cache(maxsize=1024)
def _many(source: str) -> ast.Module | None:
    return _read(source)


@lru_cache(maxsize=4)
def _few(source: str) -> ast.Module | None:
    return _read(source)


def _read(source: str) -> ast.Module | None:
    return _tree(_blank(source))


def _is_ours(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _OURS


def share_a_line(one: ast.stmt, two: ast.stmt) -> bool:
    """Whether two statements stand on a line together."""
    return one.lineno <= (two.end_lineno or two.lineno) and two.lineno <= (one.end_lineno or one.lineno)
