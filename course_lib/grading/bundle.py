"""What leaves the authors' hands: the folder that a class is given, and nbgrader's `source/`.

    write_class(Path("class"))        # chapters, exercises, library, start.py; nothing that gives an answer away
    write_nbgrader(Path("nbgrader"))  # source/NAME/NAME.ipynb and nbgrader_config.py

Both are written beside their place first, so that a folder is whole or as it was.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from nbformat import NotebookNode

from course_lib import __version__
from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, all_assignments
from course_lib.grading.class_seed import draw_seed
from course_lib.grading.notebook import dump
from course_lib.grading.release import need_solutions, release
from course_lib.machine import material_dir

__all__ = ["MARKER", "write_class", "write_nbgrader"]

MARKER = "release.json"
"""The file that says what a folder was made by, and of which exercises."""

_FILES: tuple[str, ...] = (
    "start.py",
    "constraints.txt",
    "environment.yml",
    "LICENSE",
    "CITATION.cff",
    "GLOSSARY.md",
    ".gitignore",
)
_FILES += (".gitattributes", "docs/multi-node.md")
_SUFFIXES = (".py", ".toml", ".json", ".css", ".typed")


def write_class(
    target: Path, *, hints: bool = False, chapters: Sequence[int] | None = None, material: Path | None = None
) -> list[str]:
    """Write what a class is given; lines that say what was written. CourseError when the folder holds other things.

    hints: leave the three hints of each exercise in it. chapters: exercises of these chapters alone (None: of all).
    A folder that this made before is brought up to date; what learners put there (work/, .venv) stays.
    """
    root = material or material_dir()
    need_solutions(root)
    if not (root / "start.py").is_file():
        raise CourseError("a class release is made from a clone of the course, and this is the installed package")
    before = _made_before(target)
    assignments = _chosen(root, chapters)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as room:
        new = Path(room) / "new"
        _fill(new, root, assignments, hints)
        names = sorted(path.name for path in new.iterdir())
        facts = {
            "course": __version__,
            "hints": hints,
            "exercises": {one.name: release(one).metadata["course"]["hash"] for one in assignments},
            "holds": names,
        }
        text = json.dumps(facts, indent=1) + "\n"
        target.mkdir(exist_ok=True)
        old = Path(room) / "old"
        old.mkdir()
        for name in sorted({*before, *names}):
            if (target / name).exists():
                (target / name).rename(old / name)
            if name in names:
                (new / name).rename(target / name)
        (target / MARKER).write_text(text, encoding="utf-8", newline="\n")
    points = sum(one.max_score for one in assignments)
    told = "with hints" if hints else "without hints"
    many = "1 chapter" if len(assignments) == 1 else f"{len(assignments)} chapters"
    return [f"wrote {target}: exercises of {many}, {points:g} points, {told}"]


def write_nbgrader(
    target: Path, *, hints: bool = False, chapters: Sequence[int] | None = None, material: Path | None = None
) -> list[str]:
    """Write `source/NAME/NAME.ipynb` for each chapter, and `nbgrader_config.py` unless there is one."""
    root = material or material_dir()
    need_solutions(root)
    lines = []
    for one in _chosen(root, chapters):
        notebook = NotebookNode(one.notebook)
        path = target / "source" / one.name / f"{one.name}.ipynb"
        content = dump(notebook if hints else _without_hints(notebook))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
            lines.append(f"wrote {path}")
    config = target / "nbgrader_config.py"
    if not config.exists():
        config.write_text(_CONFIG.replace("{seed}", str(draw_seed())), encoding="utf-8", newline="\n")
        lines.append(f"wrote {config}")
    return lines or [f"{target}: nothing has changed"]


def _chosen(root: Path, chapters: Sequence[int] | None) -> list[Assignment]:
    assignments = all_assignments(root, with_checks=True)
    if chapters is None:
        return assignments
    known = {int(one.chapter): one for one in assignments}
    missing = [number for number in chapters if number not in known]
    if missing:
        raise CourseError(f"there are no exercises of chapter {', '.join(map(str, missing))}")
    return [known[number] for number in chapters]


def _made_before(target: Path) -> list[str]:
    """What an earlier release put there. CourseError when the folder is not ours to write to."""
    if not target.exists():
        return []
    if not target.is_dir():
        raise CourseError(f"{target}: is a file; name a folder that is new, empty, or an earlier release")
    try:
        facts = json.loads((target / MARKER).read_text(encoding="utf-8"))
        holds = [str(name) for name in facts["holds"]]
    except FileNotFoundError:
        if any(target.iterdir()):
            raise CourseError(
                f"{target}: holds other things; name a folder that is new, empty, or an earlier release"
            ) from None
        return []
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{target / MARKER}: cannot be read; name another folder") from None
    return [name for name in holds if name not in ("", ".", "..") and "/" not in name and "\\" not in name]


def _fill(new: Path, root: Path, assignments: list[Assignment], hints: bool) -> None:
    for name in _FILES:
        if (root / name).is_file():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, new / name)
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        (new / "notebooks").mkdir(exist_ok=True)
        shutil.copyfile(path, new / "notebooks" / path.name)
    (new / "exercises").mkdir()
    for one in assignments:
        notebook = release(one)
        (new / "exercises" / one.path.name).write_bytes(dump(notebook if hints else _without_hints(notebook)))
    for path in sorted((root / "course_lib").rglob("*")):
        inside = path.relative_to(root)
        hidden = any(part.startswith(".") or part in ("__pycache__", "_material") for part in inside.parts)
        if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink() and not hidden:
            (new / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, new / inside)
    for name, text in (
        ("pyproject.toml", _project((root / "pyproject.toml").read_text(encoding="utf-8"))),
        ("AGENTS.md", _for_learners((root / "AGENTS.md").read_text(encoding="utf-8"))),
        ("README.md", _readme(root)),
    ):
        (new / name).write_text(text, encoding="utf-8", newline="\n")


def _without_hints(notebook: NotebookNode) -> NotebookNode:
    """A copy; its content hash still names the release it is of."""
    copy = NotebookNode({**notebook, "cells": []})
    for cell in notebook.cells:
        course = cell.metadata.get("course", {})
        kept = {key: value for key, value in course.items() if key != "hints"}
        metadata = {**cell.metadata, **({"course": kept} if course else {})}
        copy.cells.append(NotebookNode({**cell, "metadata": NotebookNode(metadata)}))
    return copy


def _project(text: str) -> str:
    """pyproject.toml without what is not there: the solutions, and the tools of the tests."""
    text = re.sub(r'^"solutions" = .*\n', "", text, flags=re.MULTILINE)
    text = re.sub(r"^dev = \[.*?^\]\n", "dev = []\n", text, flags=re.MULTILINE | re.DOTALL)
    project = tomllib.loads(text)
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    if "solutions" in wheel or project["project"]["optional-dependencies"]["dev"]:
        raise CourseError("pyproject.toml is written in another way than a class release expects")
    return text


def _for_learners(text: str) -> str:
    """Of the words for AI assistants those on tutoring."""
    return text.partition("\n## When you change the course")[0].rstrip("\n").replace("`solutions/` or ", "") + "\n"


def _readme(root: Path) -> str:
    """The learner's README: how to start, how to work, what to hand in; the map of the chapters is the course's own."""
    text = (root / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(re.findall(r"^\| \d+ \|.*\|$", text, re.MULTILINE))
    return _README.replace("{rows}", rows)


_README = """# Pre-training, Measured: the copy for a class

An interactive course, in notebooks, on the engineering of LLM pre-training. It runs on a laptop, and no chapter needs
a GPU.

    python3 start.py lab      # on Windows: py start.py lab

sets it up once (about 2 GB; on Linux without an NVIDIA GPU say `python3 start.py lab --cpu`) and opens JupyterLab on
chapter 0. The chapters and exercises are copied into `work/`; work there. A newer copy of the course does not touch
what is in `work/`.

## Exercises

They are in `work/exercises/`, one notebook a chapter. Under each answer is a check: one line that runs your answer on
a few cases and says what is wrong with it, never what is right. Run it as often as you like.

Hand in the notebook of the chapter from `work/exercises/`, under the name that it has. Only the text of your cells is
taken: it is put into a fresh copy of the notebook, which runs on other cases than yours. Before you hand in, choose
Run > Restart Kernel and Run All Cells: what only works because of a cell that you have deleted will not work there.

    python3 start.py grade 03      # the same grading, here
    python3 start.py progress      # the map of the course with what you have done

## Chapters

| | Chapter | What it measures |
|---|---|---|
{rows}

[GLOSSARY.md](GLOSSARY.md) has the terms in English and Chinese. Code is under the MIT License, text and pictures under
CC BY 4.0: [LICENSE](LICENSE).
"""

_CONFIG = '''"""nbgrader's settings for this course, yours to edit: `course release --nbgrader` lets them stand."""

import os

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "pretraining-measured"

# Graded cases are other ones than those in a learner's notebook, which has seed 0. This number was drawn for you. Keep
# it to yourself, and as it is until the grades are final: another one makes other cases.
os.environ.setdefault("COURSE_CHECK_SEED", "{seed}")

# A check cell that a learner deleted comes back; else its points are lost.
c.OverwriteCells.add_missing_cells = True

# Some exercises start several processes.
c.Execute.timeout = 120
'''
