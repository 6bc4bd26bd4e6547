"""A worker: a process that runs spliced notebooks one after the other, each in a new kernel, and lives for many.

`python -m course_lib.grading.worker TIER LIBRARY` answers one JSON line for each on stdin:
{"notebook": text, "cases": folder or null, "seed": n, "timeout": s, "total": s or null, "limits": {...}} ->
{"cells": [...], "started": id, "records": folder, "seconds": s, "kernel": s}. The records stay until the next wish.
"""

import json
import math
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

from course_lib.grading.isolation import linux
from course_lib.grading.isolation.cold import ColdNursery, nursery_for
from course_lib.grading.isolation.reap import end_below
from course_lib.grading.isolation.tiers import TIERS
from course_lib.grading.isolation.warm import Limits, Nursery, remove

__all__ = ["main", "serve"]

_ONE_THREAD = tuple(f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"))
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SYSTEMROOT", "COMSPEC", "PATHEXT")


def serve(nursery: Nursery | ColdNursery, wish: dict[str, Any], desk: Path) -> dict[str, Any]:
    """Run one notebook; what came of its cells."""
    from course_lib.grading.nbval_cells import run_cells

    start = time.perf_counter()
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= dict.fromkeys(_ONE_THREAD, "1")
    environment |= {
        "PYTHONPATH": str(nursery.library),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "COURSE_CHECK_SEED": str(wish["seed"]),
        "COURSE_GRADE_DIR": f"{nursery.inside}/records",
        "COURSE_CASES_DIR": f"{nursery.inside}/cases",
    }
    nursery.empty_room()
    (nursery.room / "records").mkdir()
    if wish["cases"]:
        shutil.copytree(wish["cases"], nursery.room / "cases")
    path = desk / "notebook.ipynb"
    path.write_text(wish["notebook"], encoding="utf-8", newline="\n")
    kernel = nursery.kernel(environment, Limits(**wish["limits"]))
    ready = time.perf_counter() - start
    cells, started = run_cells(path, kernel, wish["timeout"], wish.get("total") or math.inf)
    if (nursery.room / "records").is_symlink():  # to somewhere on our side of the walls
        (nursery.room / "records").unlink()
    return {
        "cells": [asdict(cell) for cell in cells],
        "started": started,
        "records": str(nursery.room / "records"),
        "kernel": ready,
        "seconds": time.perf_counter() - start,
    }


_folders: list[Path] = []
"""What the grader and this worker keep on the disk."""


def _leave(number: int, _: object) -> NoReturn:
    """The grader was killed: end all that runs below this process, orphans too, and remove what both kept."""
    end_below()
    for folder in _folders:
        remove(folder)
    os._exit(1)


def main(argv: list[str] | None = None) -> int:
    """Answer wishes on stdin until it ends."""
    tier, library = sys.argv[1:] if argv is None else argv
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGTERM, _leave)
    linux.die_with_parent(signal.SIGTERM)
    linux.adopt_orphans()
    _folders.append(Path(library).parent)
    with nursery_for(TIERS[tier], Path(library)) as nursery:
        _folders.append(nursery.folder)
        desk = nursery.folder / "desk"
        desk.mkdir()
        answers.write(json.dumps({"ready": True}) + "\n")
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(serve(nursery, json.loads(line), desk)) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
