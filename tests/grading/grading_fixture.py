"""The tests' own assignment as text: four exercises that need no torch, and edits of a hand-in."""

from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.checks.core import variant_rng

CHECKS = """
from course_lib.checks.core import Exercise, Wrong, make_check, variant_rng


def _cases(seed):
    return [{"name": f"{n} numbers", "values": [seed % 7 + n, n + 2, 1][:n]} for n in (1, 2, 3)]


def _equal(right):
    def judge(case, returned):
        if returned == right(case["values"]):
            return None
        off = returned == [value + 2 for value in case["values"]]
        return Wrong("not what the values ask for", "adds-instead" if off else None)
    return judge


def _judge_choice(case, returned):
    right = int(variant_rng("pick", returned["variant"]).integers(1000))
    return None if returned["choice"] == right else Wrong("another one is right", "takes-the-first")


def _run(answer, case):
    return answer(case["values"])


def _exercise(name, right, **more):
    return Exercise(name, name, _cases, _run, _equal(right), **more)


EXERCISES = [
    _exercise("double", lambda v: [2 * x for x in v], misconceptions={"adds-instead": "Twice is plus two."}),
    _exercise("total", sum, forbidden=("math.fsum",)),
    Exercise("pick", "pick", lambda seed: [{"name": "your choice"}], lambda answer, case: answer, _judge_choice,
             misconceptions={"takes-the-first": "The first is the right one."}),
    _exercise("largest", max),
]
check = make_check("90", EXERCISES)
"""

SET_UP = "import math\nfrom fixture_checks import check\n\ndef hint(name):\n    pass"
PICKED = int(variant_rng("pick", 0).integers(1000))

ANSWERS = {
    "double": """
def double(values):
    \"\"\"Each value twice.\"\"\"
    ### BEGIN SOLUTION
    return [2 * value for value in values]
    ### END SOLUTION""",
    "total": """
def total(values):
    ### BEGIN SOLUTION
    return sum(values)
    ### END SOLUTION""",
    "pick": """
picked = {"variant": 0, "choice": None}
### BEGIN SOLUTION
picked = {"variant": 0, "choice": PICKED}
### END SOLUTION""".replace("PICKED", str(PICKED)),
    "largest": """
def largest(values):
    ### BEGIN SOLUTION
    return max(values)
    ### END SOLUTION""",
}
NAMES = {"double": "double", "total": "total", "pick": "picked", "largest": "largest"}
CASES = {"double": 3, "total": 3, "pick": 1, "largest": 3}


def solution() -> Any:
    """The solution notebook of the fixture, as `course execute` would leave it."""
    cells = [new_markdown_cell("# Exercises of the tests"), new_code_cell(SET_UP)]
    for number, (name, source) in enumerate(ANSWERS.items(), start=1):
        flags = {"schema_version": 3, "task": False}
        cells.append(new_markdown_cell(f"**90.{number} The {name}** (1 minute, {number} points). Say what it is."))
        course = {
            "exercise": name,
            "position": f"90.{number}",
            "minutes": 1,
            "hints": ["idea", "where", "code"],
            "claims": [9],
        }
        grade_cell = {"grade_id": name, "grade": False, "solution": True, "locked": False, **flags}
        cells.append(new_code_cell(source.strip("\n"), metadata={"nbgrader": grade_cell, "course": course}))
        grade_cell = {"grade_id": f"check-{name}", "grade": True, "solution": False, "locked": True, **flags}
        grade_cell["points"] = number
        tags = ["claim-9", "nbval-check-output"]
        check = new_code_cell(f'check("{name}", {NAMES[name]})', metadata={"nbgrader": grade_cell, "tags": tags})
        check.execution_count = 1 + 2 * number
        word = "case" if CASES[name] == 1 else "cases"
        check.outputs = [new_output("stream", name="stdout", text=f"{name}: passed, {CASES[name]} {word}\n")]
        cells.append(check)
        cells.append(new_code_cell(f'hint("{name}")', metadata={"course": {"role": "hint"}}))
    course = {"assignment": "90_fixture", "checks": "fixture_checks"}
    return new_notebook(cells=cells, metadata={"course": course})


def right(name: str) -> str:
    return ANSWERS[name].strip("\n").replace("### BEGIN SOLUTION", "").replace("### END SOLUTION", "")


def cell_of(notebook: Any, name: str) -> Any:
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == name)


def answer(notebook: Any, name: str, source: str) -> None:
    cell_of(notebook, name).source = source
