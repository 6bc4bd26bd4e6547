"""Which of a learner's lines an answer reaches: only in these does a forbidden name count against it.

A cell in which a learner tries the library out is no answer. What the answer, or what it speaks of, takes from such a
cell is part of it.
"""

import ast
import re
import symtable
from collections.abc import Iterator, Sequence

from course_lib.grading.sources import defined, plain, share_a_line, used

__all__ = ["reachable", "spoken_of"]


def reachable(sources: Sequence[str], start: set[str], lent: Sequence[str] = ()) -> list[str]:
    """The answer's sources without functions that nothing speaks of, and the lines of `lent` that it does speak of.

    sources: the cells of the answer; start: the names that its check takes; lent: the learner's other cells. As plain
    Python. A word in a text that is passed on counts as speaking of it (`getattr(k, "x")`). What does not parse stays
    whole, and all does where a line may reach any name (`globals()`).
    """
    sources, lent = list(map(plain, sources)), list(map(plain, lent))
    trees, others = [_parse(source) for source in sources], [_parse(source) for source in lent]
    if any(tree and _reaches_all(tree) for tree in trees):
        return [*sources, *lent]
    learners = {name for tree in [*trees, *others] if tree for node in tree.body for name in _assigned(node)}
    own = [node for tree in trees if tree for node in tree.body if start and _plain(node)]
    pieces = [part for tree in others if tree for node in tree.body for part in _parts(node)]
    left: list[tuple[set[str], ast.stmt]] = [({node.name}, node) for node in own]  # type: ignore[attr-defined]
    left += [(_gives(piece, learners), piece) for piece in pieces]
    words = start | {_ANYTHING}
    for tree, source in zip(trees, sources, strict=True):
        words |= _words(*(node for node in tree.body if node not in own)) if tree else used(source)
    while more := [one for one in left if one[0] & words]:
        left = [one for one in left if not one[0] & words]
        words |= _words(*(node for _, node in more))
    idle = {id(node) for _, node in left}
    found = [_without(source, tree, idle) if tree else source for source, tree in zip(sources, trees, strict=True)]
    found += [ast.unparse(piece) for piece in pieces if id(piece) not in idle]
    return found + [source for source, tree in zip(lent, others, strict=True) if tree is None and source.strip()]


def spoken_of(sources: Sequence[str], lent: Sequence[str], given: set[str]) -> set[int]:
    """The numbers of those cells of `lent` that the sources speak of, also through each other.

    given: names that are there without them; a cell that binds one anew (`list = 3`) is not spoken of for that. A cell
    that may bind any name (`from x import *`, `%run`, `exec`) counts as spoken of.
    """
    trees = [_parse(plain(source)) for source in lent]
    learners = {name for tree in trees if tree for node in tree.body for name in _assigned(node)}
    words = {"*"}.union(*map(_words_of, sources))
    found = {number for number, source in enumerate(lent) if trees[number] is None or _RUNS.search(source)}
    found |= {number for number, source in enumerate(lent) if used(plain(source)) & _BINDS}
    gives = [set().union(*(_gives(node, learners) for node in tree.body)) if tree else set() for tree in trees]
    while more := {number for number, names in enumerate(gives) if names & (words - given)} - found:
        found |= more
        words |= set().union(*(_words_of(lent[number]) for number in more))
    return found


_BINDS = {"globals", "locals", "vars", "exec", "eval"}
_RUNS = re.compile(r"^[ \t]*%(?:run|load|pylab)\b", re.MULTILINE)


def _words_of(source: str) -> set[str]:
    tree = _parse(plain(source))
    return _words(*tree.body) if tree else used(source)


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parts(node: ast.stmt) -> list[ast.stmt]:
    """An import as one statement for each name; anything else as it is."""
    if isinstance(node, ast.Import):
        return [ast.Import([one]) for one in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [one], node.level) for one in node.names]
    return [node]


def _gives(node: ast.stmt, learners: set[str]) -> set[str]:
    """Under which names another cell may use what a statement does: it binds them, or changes what stands under them.

    A call that is passed nothing of the learner's (`print(torch.finfo(...))`) gives nothing.
    """
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).split(".")[0] for one in node.names}
    found = _assigned(node) | ({_ANYTHING} if _reaches_all(node) else set())
    for inner in _at_once(node):
        if isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            found |= {_root(inner)} | ({inner.attr} if isinstance(inner, ast.Attribute) else set())
        elif isinstance(inner, ast.Call):
            passed = [*inner.args, *(word.value for word in inner.keywords)]
            touched = {_root(one) for one in passed} - {""}
            if isinstance(inner.func, ast.Attribute):
                touched.add(_root(inner.func))
            elif _root(inner.func) in ("setattr", "delattr"):
                found |= {str(one.value) for one in passed if isinstance(one, ast.Constant)}
            if not (isinstance(inner.func, ast.Name) and inner.func.id in _SHOWS):
                found |= touched & learners
    return found - {""}


_SHOWS = {"print", "display", "len", "repr", "str", "type", "sorted", "sum", "max", "min", "help", "dir", "isinstance"}


_ANYTHING = "any name at all"
_ANY_NAME = {"globals", "locals", "vars", "eval", "exec", "get_ipython", "__builtins__", "__import__"}
_ANY_PART = {"__dict__", "__globals__", "f_globals", "f_locals", "user_ns"}


def _reaches_all(tree: ast.AST) -> bool:
    """Whether a line may use or bind names that it does not speak."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _ANY_NAME:
            return True
        if isinstance(node, ast.Attribute) and (node.attr in _ANY_PART or ast.unparse(node) == "sys.modules"):
            return True
        if "__main__" in (getattr(node, "name", None), getattr(node, "value", None), getattr(node, "module", None)):
            return True
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "sys"
            and any(one.name == "modules" for one in node.names)
        ):
            return True
    return False


def _assigned(node: ast.stmt) -> set[str]:
    """Names that a statement binds other than by import, also from within a function (`global`)."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    found = defined(ast.unparse(node))
    return found | {name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names}


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """What of a statement runs when its cell does: not the bodies of functions."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.Lambda) and not (isinstance(inner, ast.stmt) and _plain(inner)):
            yield from _at_once(inner)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _plain(node: ast.stmt) -> bool:
    """A definition whose body runs only when it is called by its name."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list


def _words(*nodes: ast.stmt) -> set[str]:
    """Names that statements take from outside of them, names of attributes, and words of texts that they pass on."""
    found: set[str] = set()
    for node in nodes:
        try:
            tables = [symtable.symtable(ast.unparse(node), "cell", "exec")]
        except (SyntaxError, ValueError, RecursionError):
            found |= used(ast.unparse(node))
            tables = []
        while tables:
            table = tables.pop()
            tables += table.get_children()
            top = table.get_type() == "module"
            found |= {one.get_name() for one in table.get_symbols() if one.is_referenced() and (top or one.is_global())}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute):
                found.add(inner.attr)
            elif isinstance(inner, ast.alias):
                found.add(inner.name)
            elif isinstance(inner, ast.Call | ast.Subscript):
                passed = inner.args if isinstance(inner, ast.Call) else [inner.slice]
                texts = [one.value for one in passed if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                found.update(word for text in texts for word in re.findall(r"\w+", text))
    return found


def _without(source: str, tree: ast.Module, idle: set[int]) -> str:
    """The source with blank lines for statements that share no line with another one."""
    lines = source.split("\n")
    for node in tree.body:
        alone = not any(other is not node and share_a_line(node, other) for other in tree.body)
        if id(node) in idle and node.end_lineno is not None and alone:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)
