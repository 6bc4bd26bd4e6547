"""What an answer may not call: found in its syntax tree, and in the trees of the helpers that it uses.

An entry of `Exercise.forbidden` is a bare name or a dotted path.
`"backward"`: any name or attribute of that name (`loss.backward`, `backward`), except a function the learner wrote, a
local variable, and a number or text of the learner's.
`"torch.nn.functional.cross_entropy"`: that function under whatever name it was imported (`F.cross_entropy`, `ce`), also
from the other modules that hold it; a `.cross_entropy` of something else does not count.
`"course_lib.precision"`: that module, whatever is imported from it, and what is an instance of its classes.
`"__main__.quiet_train"`: a function that the notebook itself gives.
"""

import ast
import builtins
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

__all__ = ["forbidden_in_answer", "forbidden_in_source", "way_round"]

OWN = "__main__."
"""Begins the path of what the notebook defines."""


def forbidden_in_source(sources: Iterable[str], forbidden: Iterable[str], context: str = "") -> str | None:
    """The first forbidden name that `sources` (whole cells) refer to, or None. `context`: code whose imports also hold.

    Nothing of the sources is run or imported.
    """
    trees = [tree for tree in map(_parse, sources) if tree is not None]
    names: dict[str, str] = {}
    for tree in [_parse(context), *trees]:
        if tree is not None:
            names.update(_imports(tree))
    own = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    data = {name: "" for tree in trees for name in _bound(tree)}
    for tree in trees:
        found = _search(tree, tuple(forbidden), {**names, **data, **{name: OWN + name for name in own}})
        if found:
            return found
    return None


WAYS_ROUND = ("sys.modules", "importlib.import_module", "builtins.__import__", "builtins.eval", "builtins.exec")
"""What makes a module of a text, so that its name need not stand in the source."""


def way_round(answer: Any) -> str | None:
    """The first of WAYS_ROUND in the source of an answer: no answer needs one where something is forbidden."""
    return _found(answer, WAYS_ROUND, without_source=False)  # `modules` and `eval` are torch's words too


def forbidden_in_answer(answer: Any, forbidden: Iterable[str]) -> str | None:
    """The first forbidden name in the source of a function or class, or of a helper beside it; else None."""
    return _found(answer, tuple(forbidden), without_source=True)


def _found(answer: Any, wanted: tuple[str, ...], without_source: bool) -> str | None:
    todo, seen = list(_functions(answer)), set()
    while todo:
        function = todo.pop(0)
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names: dict[str, str] = {}
        scope = {**function.__globals__, **_closure(function)}
        used = _names_of(function.__code__)
        for name in used & scope.keys():
            value = scope[name]
            helpers = list(_functions(value)) if getattr(value, "__module__", None) == function.__module__ else []
            todo.extend(helpers)
            names[name] = OWN + getattr(value, "__name__", name) if helpers else _path(value, name)
        tree = _source_tree(function)
        found = _search(tree, wanted, names) if tree is not None else _bare(used, wanted) if without_source else None
        if found:
            return found
    return None


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _parse(source: str) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _source_tree(function: types.FunctionType) -> ast.AST | None:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return None
    return _parse(source)


def _functions(value: Any) -> Iterable[types.FunctionType]:
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, functools.partial):
        yield from _functions(value.func)
    elif isinstance(value, types.MethodType):
        yield from _functions(value.__func__)
    elif isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, type):
        for member in vars(value).values():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(member, types.FunctionType):
                yield member
    elif isinstance(value, Mapping):
        for item in value.values():
            if callable(item):
                yield from _functions(item)


def _closure(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _names_of(code: types.CodeType) -> set[str]:
    names = set(code.co_names) | set(code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_of(constant)
    return names


def _path(value: Any, called: str) -> str:
    """The dotted path of a module, function, class or dtype; of other things from `course_lib` their module and name.

    "" for numbers, texts, tensors and whatever else does no work.
    """
    if isinstance(value, types.ModuleType):
        return value.__name__
    kind = type(value)
    if "dtype" in kind.__name__.lower() and kind.__module__.split(".")[0] in ("torch", "numpy"):
        return str(value)  # torch.float16
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, type | Callable) and isinstance(name, str):
        return f"{module}.{name}" if isinstance(module, str) else name
    if kind.__module__.startswith("course_lib."):
        return f"{kind.__module__}.{called}"
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        inside = value.values() if isinstance(value, Mapping) else value
        return next((path for item in inside if (path := _path(item, called))), "")
    return ""


def _imports(tree: ast.AST) -> dict[str, str]:
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _object(path: str) -> Any:
    """What a dotted path names among the modules that are already loaded; None when it is not there."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        value: Any = sys.modules.get(".".join(parts[:cut]))
        if value is not None:
            for part in parts[cut:]:
                value = getattr(value, part, None)
            return value
    return getattr(builtins, path, None) if len(parts) == 1 else None


def _bare(names: set[str], forbidden: tuple[str, ...]) -> str | None:
    return next((entry for entry in forbidden if entry.rpartition(".")[2] in names), None)


def _search(tree: ast.AST, forbidden: tuple[str, ...], names: dict[str, str]) -> str | None:
    names = {**names, **_imports(tree)}
    own = {node.name: OWN + node.name for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    names.update(own)
    for node, local in _walk(tree, frozenset()):
        if isinstance(node, ast.Name) and node.id in local and node.id not in own:
            continue
        for path, tail in _references(node, names):
            if path.startswith("course_lib.checks.ch") and (tail.startswith("_") or tail == "EXERCISES"):
                return path
            for entry in forbidden:
                if _matches(entry, path, tail):
                    return entry.removeprefix(OWN)
    return None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _walk(node: ast.AST, local: frozenset[str]) -> Iterator[tuple[ast.AST, Collection[str]]]:
    """Every node, with the names of the variables that are local where it stands."""
    yield node, local
    if not isinstance(node, _FUNCTIONS):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, local)
        return
    around = [*node.args.defaults, *filter(None, node.args.kw_defaults), *getattr(node, "decorator_list", [])]
    for child in around:
        yield from _walk(child, local)
    inside = local | _bound(node)
    for child in node.body if isinstance(node.body, list) else [node.body]:
        yield from _walk(child, inside)


def _bound(scope: ast.AST) -> set[str]:
    """The parameters and variables of a function, or the variables of a cell; without those of functions inside."""
    names: set[str] = set()
    others = set(_imports(scope))
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            others.update(node.names)
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(node))
    return names - others


def _references(node: ast.AST, names: dict[str, str]) -> Iterable[tuple[str, str]]:
    """(dotted path or "", last name) of what a node refers to."""
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield f"{node.module}.{alias.name}", alias.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        path = names.get(node.id, node.id)
        if path:
            yield path, "" if path.startswith(OWN) else path.rpartition(".")[2]
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield _dotted(node, names), node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        constant = node.args[1] if len(node.args) > 1 else None
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            base = _dotted(node.args[0], names)
            yield (f"{base}.{constant.value}" if base else ""), constant.value


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    root = names.get(node.id, "")
    return ".".join([root, *reversed(parts)]) if root else ""


def _matches(entry: str, path: str, tail: str) -> bool:
    if entry.startswith(OWN):
        return path == entry or tail == entry.removeprefix(OWN)
    if "." not in entry:
        return tail == entry
    if path == entry or path.startswith(f"{entry}."):
        return True
    if not path:
        return False
    wanted = _object(entry)
    return wanted is not None and _object(path) is wanted
