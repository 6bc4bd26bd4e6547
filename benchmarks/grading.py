"""Grading a class: `course grade` against nbgrader's `autograde`, on the same hand-ins, in the same run.

    python benchmarks/grading.py [--out FILE.json] [--handins N] [--chapter NN] [--jobs N] [--isolation TIER]

Light hand-ins: the right answers of the four exercises of the tests' own assignment, which need no torch; what is timed
is the grader. Then the same with one chapter of the course (3 hand-ins of it), where the answers' own work weighs more.
Both graders get the same notebooks. nbgrader grades in one process, as it always does; ours has --jobs workers.
Overhead: seconds of one grader for a hand-in, less the seconds from each cell's being sent to its last output.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import psutil

from course_lib.grading import assignment as assignment_room
from course_lib.grading import grade as grade_room
from course_lib.grading import release as release_room
from course_lib.grading.grade import Grader
from course_lib.grading.isolation.tiers import best_tier, tier_named
from course_lib.machine import material_dir, probe

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "grading"))
fixture = importlib.import_module("grading_fixture")

OVERHEAD_LIMIT, TIMES_FASTER = 0.7, 3.0


def light(folder: Path) -> tuple[Path, Path]:
    """The tests' assignment as course material in a folder: (its solution notebook, a right hand-in)."""
    (folder / "fixture_checks.py").write_text(fixture.CHECKS, encoding="utf-8", newline="\n")
    (folder / "solutions").mkdir()
    path = folder / "solutions" / "90_fixture.ipynb"
    nbformat.write(fixture.solution(), path)
    release_room.write_release(folder)
    notebook = nbformat.read(folder / "exercises" / "90_fixture.ipynb", as_version=4)
    for name in fixture.ANSWERS:
        fixture.answer(notebook, name, fixture.right(name))
    solved = folder / "solved.ipynb"
    nbformat.write(notebook, solved)
    return path, solved


def ours(solved: Path, count: int, jobs: int, tier: str) -> dict[str, float]:
    """Seconds for so many copies of a hand-in, all workers warm; and of one worker alone what is not its cells'."""
    cells: list[float] = []
    seen = lambda _, ran: cells.append(sum(one.seconds for one in ran.cells.values()))
    graders = [Grader(tier=tier_named(tier), observer=seen) for _ in range(jobs)]
    try:
        for grader in graders:
            grader.__enter__()
            grader.grade("warm-up", solved)
        alone, inside = [], []
        for number in range(8):
            cells.clear()
            start = time.perf_counter()
            found = graders[0].grade(f"alone-{number}", solved)
            assert found.score == found.max_score > 0, found
            alone.append(time.perf_counter() - start)
            inside.append(sum(cells))
        before = resident()
        start = time.perf_counter()
        with ThreadPoolExecutor(jobs) as pool:
            lanes = [pool.submit(lane, grader, solved, count // jobs) for grader in graders]
            assert all(one.result() for one in lanes)
        seconds = time.perf_counter() - start
        grown = resident() - before
    finally:
        for grader in graders:
            grader.__exit__(None, None, None)
    overhead = sorted(a - b for a, b in zip(alone, inside, strict=True))[len(alone) // 2]
    return {"seconds": seconds, "overhead": overhead, "grown_mb": grown / 1e6, "handins": count // jobs * jobs}


def lane(grader: Grader, solved: Path, count: int) -> bool:
    """One worker's share."""
    found = [grader.grade(str(number), solved) for number in range(count)]
    return all(one.score == one.max_score > 0 for one in found)


def resident() -> int:
    """Bytes of this process and all below it."""
    me = psutil.Process()
    return sum(one.memory_info().rss for one in [me, *me.children(recursive=True)])


def nbgraders(assignment: Path, solved: Path, count: int, folder: Path, path: Path) -> float:
    """Seconds of nbgrader's autograde for so many copies. The release before it is not counted."""
    name = assignment.stem
    source = folder / "source" / name
    source.mkdir(parents=True)
    (source / assignment.name).write_bytes(assignment.read_bytes())
    config = 'c = get_config()\nc.CourseDirectory.course_id = "b"\nc.ExecutePreprocessor.timeout = 300\n'
    (folder / "nbgrader_config.py").write_text(config, encoding="utf-8", newline="\n")
    for number in range(count):
        target = folder / "submitted" / f"s{number:03d}" / name / assignment.name
        target.parent.mkdir(parents=True)
        target.write_bytes(solved.read_bytes())
    home = folder / "home"
    environment = os.environ | {"HOME": str(home), "IPYTHONDIR": str(home), "OMP_NUM_THREADS": "1"}
    environment |= {f"JUPYTER_{kind}_DIR": str(home / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment["PYTHONPATH"] = os.pathsep.join([str(path), str(ROOT)])
    start = 0.0
    for words in (["generate_assignment", name, "--create"], ["autograde", name, "--create"]):
        start = time.perf_counter()
        words = [sys.executable, "-m", "nbgrader", *words]
        subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def compare(assignment: Path, solved: Path, count: int, options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Both graders on the same copies."""
    with TemporaryDirectory(prefix="course-bench-") as folder:
        theirs = nbgraders(assignment, solved, count, Path(folder), path)
    found: dict[str, Any] = ours(solved, count, options.jobs, options.isolation)
    return found | {"nbgrader_seconds": theirs, "times_faster": theirs / found["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--handins", type=int, default=60)
    parser.add_argument("--chapter", default="03")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--isolation", default=best_tier().name)
    options = parser.parse_args()
    rows = {}
    chapter = next((material_dir() / "solutions").glob(f"{options.chapter}_*.ipynb"))
    rows[chapter.stem] = compare(chapter, chapter, 4, options, ROOT)
    with TemporaryDirectory(prefix="course-bench-") as name:
        folder = Path(name)
        sys.path.insert(0, name)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH")]))
        for module in (assignment_room, grade_room, release_room):
            module.material_dir = lambda: folder  # type: ignore[attr-defined]
        rows["light"] = compare(*light(folder), options.handins, options, folder)
    for label, row in rows.items():
        print(
            f"{label:<24} {row['handins']:>3} hand-ins: ours {row['seconds']:6.1f} s, nbgrader "
            f"{row['nbgrader_seconds']:6.1f} s, {row['times_faster']:.1f} times as fast; beyond its cells "
            f"{row['overhead']:.2f} s a hand-in; memory grew by {row['grown_mb']:.0f} MB"
        )
    print(f"to reach with light ones: {TIMES_FASTER} times, {OVERHEAD_LIMIT} s; isolation {options.isolation}")
    if options.out:
        facts = {"machine": str(probe()), "isolation": options.isolation, "rows": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
