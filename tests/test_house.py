"""The house rules: what ruff, mypy and the import contract hold, and the engineering rules that no tool knows."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((ROOT / "course_lib").rglob("*.py"))
MAX_LINES = 350
# No statement and no function here may import torch; in the second list, no statement at module level.
TORCH_FREE = ("cli", "chapters", "config", "settings", "shapes", "errors", "events", "figures", "grading", "planning")
TORCH_FREE += (
    "precision",
    "parallel.mesh",
    "parallel.overlap",
    "parallel.ring",
    "parallel.schedule",
    "parallel._schedule_bubble",
    "parallel._schedule_check",
    "parallel._schedule_orders",
    "parallel._schedule_timeline",
    "parallel.timeline",
    "parallel.updates",
)
TORCH_LATE = ("machine", "checks.core", "checks.packing", "checks.forbidden")
ONLY_IN = {"matplotlib": "figures", "ipywidgets": "widgets", "IPython": "widgets"}


def room(path: Path) -> str:
    """`course_lib/checks/core.py` -> "checks.core"."""
    return ".".join(path.relative_to(ROOT / "course_lib").with_suffix("").parts).removesuffix(".__init__")


def inside(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(one + ".") for one in rooms)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(node: ast.AST, top_level_only: bool = False) -> Iterator[str]:
    """Dotted names that are imported under this node, `from a import b` as "a.b"."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not (top_level_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            test = child.test if isinstance(child, ast.If) else None
            if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                yield from imports(child, top_level_only)


def dotted(node: ast.AST) -> str:
    """`torch.cuda.is_available` of an attribute chain, "" for anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def tracked() -> list[Path]:
    """The files of the checkout, committed or about to be; without git, those that it would hold."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if done.returncode:
        pytest.skip("no git checkout")
    paths = [ROOT / name for name in done.stdout.decode("utf-8").split("\0") if name]
    return [path for path in paths if path.is_file()]


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, env=os.environ | env, capture_output=True, encoding="utf-8", timeout=280)


# ---------------------------------------------------------------- what tools check


@pytest.mark.parametrize("words", [("check", "--output-format=concise"), ("format", "--check")])
def test_ruff(words):
    """Lint and format, the notebooks' cells too."""
    done = run(sys.executable, "-m", "ruff", *words, ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_types():
    done = run(sys.executable, "-m", "mypy")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rooms_import_only_from_those_below():
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = run(sys.executable, "-c", script)
    assert done.returncode == 0 and "2 kept, 0 broken" in done.stdout, done.stdout + done.stderr


# ---------------------------------------------------------------- who imports what


@pytest.mark.parametrize("path", LIBRARY, ids=room)
def test_imports_of_a_room(path):
    name, module = room(path), tree(path)
    everything = list(imports(module))
    for library, owner in ONLY_IN.items():
        used = [one for one in everything if one.split(".")[0] == library]
        assert not used or inside(name, (owner,)), f"{name} imports {used}; {library} belongs to {owner}"
    if inside(name, TORCH_FREE):
        assert not [one for one in everything if one.split(".")[0] == "torch"], f"{name} is a room without torch"
    if inside(name, TORCH_LATE):
        late = [one for one in imports(module, top_level_only=True) if one.split(".")[0] == "torch"]
        assert not late, f"{name} imports torch inside functions only"
    if inside(name, ("grading",)):
        ours = [one.removeprefix("course_lib.") for one in everything if one.startswith("course_lib.")]
        allowed = ("grading", "checks.core", "chapters", "errors", "machine", "__version__")
        strange = [one for one in ours if not inside(one, allowed)]
        assert not strange, f"grading imports of ours only checks.core, chapters, errors and machine, not {strange}"


def test_rooms_without_torch_load_none():
    """Also not through what they import."""
    names = [room(path) for path in LIBRARY if inside(room(path), TORCH_FREE + TORCH_LATE)]
    script = "import sys, importlib\n" + "".join(
        f"importlib.import_module('course_lib.{name}')\nassert 'torch' not in sys.modules, '{name} loads torch'\n"
        for name in names
    )
    done = run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr


def test_help_imports_nothing_heavy():
    """`course --help` in half a second: the dispatcher imports none of the commands."""
    script = "import sys, course_lib.cli as c; c.main(['--help']); print(len(sys.modules), 'torch' in sys.modules)"
    done = run(sys.executable, "-I", "-c", script)
    assert "course COMMAND" in done.stdout
    count, torch = done.stdout.split()[-2:]
    assert torch == "False" and int(count) < 200
    ours = [line for line in imports(tree(ROOT / "course_lib/cli.py")) if line.startswith("course_lib")]
    assert ours == ["course_lib.__version__", "course_lib.errors.CourseError"]


# ---------------------------------------------------------------- rules for one file


@pytest.mark.parametrize("path", LIBRARY, ids=room)
def test_a_file_is_short_and_says_what_it_offers(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_LINES, f"{lines} lines: cut it into two ideas"
    module = tree(path)
    assert ast.get_docstring(module), "a docstring says what the room is for"
    if path.name != "__init__.py" and not path.name.startswith("_"):
        targets = [dotted(t) for node in module.body if isinstance(node, ast.Assign) for t in node.targets]
        targets += [dotted(node.target) for node in module.body if isinstance(node, ast.AnnAssign)]
        assert "__all__" in targets, "a public module lists its names in __all__"


PICKLES = ("pickle", "cPickle", "dill", "shelve", "joblib", "marshal")
SEEDS = re.compile(
    r"(torch|torch\.random|torch\.cuda|torch\.mps|np\.random|numpy\.random|random)\.(manual_)?seed(_all)?"
)


@pytest.mark.parametrize("path", LIBRARY, ids=room)
def test_no_pickle_no_global_seed_no_bare_cuda(path):
    module = tree(path)
    for name in imports(module):
        assert name.split(".")[0] not in PICKLES, f"{path.name} imports {name}: files are safetensors, JSON or TOML"
    parents = {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(module):
        name = dotted(node)
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            assert called != "torch.load", f"{where(path, node)}: torch.load reads pickle"
            assert not any(word.arg == "allow_pickle" for word in node.keywords), where(path, node)
            if SEEDS.fullmatch(called):
                assert restored(node, parents), f"{where(path, node)}: {called} seeds the global generator"
        if name.startswith("torch.cuda.") and name != "torch.cuda.is_available":
            assert guarded(node, parents), f"{where(path, node)}: {name} without asking for CUDA first"


def restored(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the function around this node puts the generator's state back (learner code runs between the two)."""
    while node in parents:
        node = parents[node]
        if isinstance(node, ast.FunctionDef):
            calls = {dotted(one.func).split(".")[-1] for one in ast.walk(node) if isinstance(one, ast.Call)}
            return bool(calls & {"setstate", "set_state", "set_rng_state"})
    return False


def guarded(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a condition around this node, or an early return before it, asks which device it is."""
    line = getattr(node, "lineno", 0)
    while node in parents:
        node = parents[node]
        if isinstance(node, ast.If | ast.IfExp | ast.BoolOp):
            test = node if isinstance(node, ast.BoolOp) else node.test
            if re.search("cuda|cpu", ast.unparse(test)):
                return True
        if isinstance(node, ast.FunctionDef):
            for early in node.body:
                leaves = isinstance(early, ast.If) and isinstance(early.body[-1], ast.Return | ast.Raise)
                if leaves and early.lineno < line and "cuda" in ast.unparse(early.test):
                    return True
    return False


PYTHON_FILES = [*LIBRARY, ROOT / "start.py", *sorted((ROOT / "benchmarks").glob("*.py"))]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_text_files_name_their_encoding_and_line_end(path):
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        named = {word.arg for word in node.keywords}
        if method == "open" and dotted(node.func) != "os.open":
            modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            mode = "".join(one for one in modes if re.fullmatch(r"[rwaxbt+]{1,3}", one))
            if "b" in mode or (node.args and dotted(node.args[0]) == "os.devnull"):
                continue
            wanted = {"encoding", "newline"} if set(mode) & set("wax+") else {"encoding"}
        elif method in ("read_text", "write_text"):
            wanted = {"encoding"} if method == "read_text" else {"encoding", "newline"}
        else:
            continue
        assert wanted <= named, f"{where(path, node)}: {method} without {sorted(wanted - named)}"


PLATFORM = ("sys.platform", "os.name", "platform.system", "platform.machine", "platform.processor", "platform.uname")


@pytest.mark.parametrize("path", LIBRARY, ids=room)
def test_platform_differences_are_in_machine(path):
    found = [where(path, node) for node in ast.walk(tree(path)) if dotted(node) in PLATFORM]
    # The walls are made of one platform's system calls; `door.py` runs where nothing of ours can be imported.
    allowed = room(path) == "machine" or room(path).startswith("grading.isolation.")
    assert not found or allowed, f"{found}: ask course_lib.machine"


# ---------------------------------------------------------------- what is committed

# Written so that this file does not hold them itself.
MACHINE_PATH = re.compile(r"""(?:^|["'\s(=])/(?:tmp|root|home|Users|work|opt)/[\w.]""", re.MULTILINE)
HOSTS = ("pypi" + ".org", "python" + "hosted", "conda.ana" + "conda.org", "registry.npm" + "js", "deb" + ".debian.org")


def test_no_machine_path_and_no_registry_host():
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8")
        found += [f"{path.relative_to(ROOT)}: {match[0].strip()}" for match in MACHINE_PATH.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {host}" for host in HOSTS if host in text]
    assert not found, found


def test_text_is_utf8_with_plain_line_ends():
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            data.decode("utf-8")
            assert b"\r\n" not in data, path


def test_links_between_files_lead_somewhere():
    for path in tracked():
        if path.suffix == ".md":
            for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
                assert "://" in link or (path.parent / link).exists(), f"{path.relative_to(ROOT)}: {link}"


def test_the_chapter_map_is_true():
    """A chapter that is there is linked, one that is not says "planned"."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(16))
    here = {int(path.name[:2]): path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    for number, title in rows:
        name = here.get(int(number))
        wanted = f"](notebooks/{name})" if name else "(planned)"
        assert title.endswith(wanted), f"chapter {number}: {title}"


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_new_words_of_a_chapter_are_in_the_glossary(path):
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (ROOT / "GLOSSARY.md").read_text(encoding="utf-8"), re.MULTILINE)
    terms = {term.strip().lower() for row, _ in rows for term in row.split(",")}
    opening = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    said = re.search(r"\*\*New words\*\*[^:]*: (.+?)\.(?:\n\n|\s*$)", opening, re.DOTALL)
    assert said, "the opening cell lists its new words: **New words** (...): a, b, c."
    words = [" ".join(word.split()).lower() for word in said[1].split(",")]
    missing = [word for word in words if word not in terms and word.removesuffix("s") not in terms]
    assert not missing, f"not in GLOSSARY.md: {missing}"


@pytest.mark.slow
def test_the_wheel_works_outside_the_clone(tmp_path):
    """Built, installed alone into a folder, and called from another folder: the commands and the material are there."""
    build = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"))
    assert build.returncode == 0, build.stdout + build.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert not (ROOT / "dist").exists() and not (ROOT / "build").exists()
    target = tmp_path / "target"
    done = run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel))
    assert done.returncode == 0, done.stderr
    assert (target / "course_lib" / "py.typed").exists()
    script = "import course_lib, course_lib.machine as m; print(course_lib.__file__); print(m.material_dir())"
    for words, expected in (
        (["-m", "course_lib", "--help"], "course COMMAND"),
        (["-m", "course_lib", "syllabus"], "01"),
        (["-c", script], str(target / "course_lib" / "_material")),
    ):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(target)},
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == 0 and expected in done.stdout, done
