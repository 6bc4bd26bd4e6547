"""The course's library as learner code may see it while it is graded: without solutions, judges and makers of cases.

    write_library(folder)      # a copy of `course_lib` in `folder`, to be first on the path of a kernel

Of a chapter's checks only what `run` needs stays. An `Exercise(..., cases=..., judge=...)` gets `withheld` for both,
and whatever nothing else refers to is left out: oracles, expected values, the words of the misconceptions. Cases come
as data from the grader, and judging happens in its process.
"""

import ast
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import course_lib
from course_lib.errors import CourseError

__all__ = ["add_checks", "strip_checks", "write_library"]

_OF_GRADING = (
    "__init__.py",
    "isolation/__init__.py",
    "isolation/nursery.py",
    "isolation/linux.py",
    "isolation/reap.py",
    "isolation/restore.py",
)
_CHAPTER = re.compile(r"ch\d\d\w*")
_CORE = "course_lib.checks.core"
_CASES, _JUDGE = 2, 4
"""Where they stand among the arguments of `Exercise`."""
_LEFT_OUT = ("_material", "grading", "__pycache__")


def write_library(folder: Path) -> Path:
    """Write the lean copy under `folder`; the folder to put on the path."""
    package = Path(course_lib.__file__).parent
    target = folder / "course_lib"
    shutil.copytree(package, target, ignore=shutil.ignore_patterns(*_LEFT_OUT, "*.pyc"))
    for name in _OF_GRADING:
        (target / "grading" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / "grading" / name, target / "grading" / name)
    checks = target / "checks"
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(checks.glob("ch[0-9][0-9]*.py"))}
    for name, source in strip_checks(sources).items():
        if source is None:
            (checks / f"{name}.py").unlink()
        else:
            (checks / f"{name}.py").write_text(source, encoding="utf-8", newline="\n")
    return folder


def add_checks(folder: Path, module: str) -> None:
    """Add a module from outside of the course that holds EXERCISES (a notebook's `metadata.course.checks`)."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise CourseError(f"{module}: there is no such module with checks; is its folder on PYTHONPATH?")
    text = Path(found.origin).read_text(encoding="utf-8")
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    left = strip_checks({module: text}, [module])[module]
    path.write_text(left or "", encoding="utf-8", newline="\n")


def strip_checks(sources: dict[str, str], roots: Iterable[str] | None = None) -> dict[str, str | None]:
    """For each module of checks what is left of its source; None when nothing is.

    roots: the modules that notebooks import from (None: `chNN`).
    """
    modules = {name: _Module(name, source) for name, source in sources.items()}
    chapters = [name for name in modules if re.fullmatch(r"ch\d\d", name)] if roots is None else roots
    waiting = [(name, public) for name in chapters for public in modules[name].public]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen or name not in modules:
            continue
        seen.add((name, wanted))
        waiting += modules[name].keep(wanted)
    return {name: one.source() if one.kept else None for name, one in modules.items()}


class _Module:
    """One file: which statements bind which names, and which of them are kept."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tree = _Withhold().visit(ast.parse(source))
        self.binds: dict[str, list[ast.stmt]] = defaultdict(list)
        self.kept: set[ast.stmt] = set()
        for statement in self.tree.body:
            for bound in _bound(statement):
                self.binds[bound].append(statement)
        listed = self.binds["__all__"][0] if self.binds["__all__"] else None
        value = listed.value if isinstance(listed, ast.Assign) else None
        self.public: list[str] = ["__all__", *(ast.literal_eval(value) if value else ["EXERCISES", "check"])]
        self._wanted: set[str] = set()

    def keep(self, name: str) -> list[tuple[str, str]]:
        """Keep what binds this name; the (module, name) pairs that it needs."""
        found: list[tuple[str, str]] = []
        for statement in self.binds.get(name, []):
            if isinstance(statement, ast.ImportFrom):
                if statement in self.kept and name in self._taken(statement):
                    continue
                found += [(other, name) for other in _checks_module(statement, name)]
            elif statement in self.kept:
                continue
            self.kept.add(statement)
            needs = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            found += [(self.name, need) for need in needs if need in self.binds and need != name]
            for inner in ast.walk(statement):
                if isinstance(inner, ast.ImportFrom) and inner is not statement:
                    found += [(other, one.name) for one in inner.names for other in _checks_module(inner, one.name)]
        self._wanted.add(name)
        return found

    def _taken(self, statement: ast.ImportFrom) -> set[str]:
        return self._wanted & {one.asname or one.name for one in statement.names}

    def source(self) -> str:
        """What is kept, as text."""
        body: list[ast.stmt] = [ast.parse(f"from {_CORE} import withheld").body[0]]
        for statement in self.tree.body:
            if statement not in self.kept:
                continue
            if isinstance(statement, ast.ImportFrom) and _is_of_checks(statement):
                taken = self._taken(statement)
                names = [one for one in statement.names if (one.asname or one.name) in taken]
                statement = ast.ImportFrom(statement.module, names, statement.level)
            body.append(statement)
        return ast.unparse(ast.fix_missing_locations(ast.Module(body, []))) + "\n"


class _Withhold(ast.NodeTransformer):
    """`Exercise(...)` without its cases, its judge and its misconceptions."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "Exercise":
            for place in (_CASES, _JUDGE):
                if place < len(node.args):
                    node.args[place] = ast.Name("withheld", ast.Load())
            for word in node.keywords:
                if word.arg in ("cases", "judge"):
                    word.value = ast.Name("withheld", ast.Load())
        for word in node.keywords:
            if word.arg == "misconceptions":
                word.value = ast.Dict([], [])
        return node


def _is_of_checks(statement: ast.ImportFrom) -> bool:
    parts = (statement.module or "").split(".")
    return parts[:2] == ["course_lib", "checks"] and len(parts) == 3 and bool(_CHAPTER.fullmatch(parts[2]))


def _checks_module(statement: ast.ImportFrom, name: str) -> Iterator[str]:
    """The chapter module that an import takes this name from."""
    if _is_of_checks(statement):
        yield str(statement.module).rsplit(".", 1)[1]


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement binds in its module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return names
