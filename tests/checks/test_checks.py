"""`check` in a notebook: one line when right, one clear line when not, and the learner's world left as it was."""

import contextlib
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from course_lib.checks.asking import ASKED
from course_lib.checks.core import (
    NOT_ATTEMPTED,
    PASSED,
    Case,
    Check,
    CheckFailed,
    Exercise,
    Wrong,
    ask,
    came,
    evaluate,
    judge_record,
    kind,
    make_check,
    read_packed,
    variant_rng,
)
from course_lib.checks.guard import time_limit_paused
from course_lib.machine import time_limit


def double_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    return [{"name": f"{n} numbers", "values": rng.integers(1, 9, n).tolist()} for n in (1, 2, 3)]


def double_judge(case: Case, returned: Any) -> Wrong | None:
    if returned == [2 * value for value in case["values"]]:
        return None
    return Wrong("not twice", "adds-instead" if returned == [value + 2 for value in case["values"]] else None)


DOUBLE = Exercise(
    id="double",
    title="Twice",
    cases=double_cases,
    run=lambda answer, case: answer(case["values"]),
    judge=double_judge,
    forbidden=("numpy.multiply",),
    misconceptions={"adds-instead": "Twice a number is the number plus two."},
)


def choice_judge(case: Case, returned: Any) -> Wrong | None:
    right = int(variant_rng("choice", returned["variant"]).integers(1000))
    if not isinstance(returned["choice"], int):
        return Wrong("a whole number is wanted", form=True)
    return None if returned["choice"] == right else Wrong("another one")


CHOICE = Exercise(
    id="choice",
    title="Choose",
    cases=lambda seed: [{"name": "your choice"}],
    run=lambda answer, case: answer,
    judge=choice_judge,
)


@pytest.fixture
def check() -> Check:
    return make_check("99", [DOUBLE, CHOICE])


def line(check: Check, name: str, answer: Any) -> str:
    with pytest.raises(CheckFailed) as caught:
        check(name, answer)
    assert caught.value._render_traceback_() == [str(caught.value)]
    return str(caught.value)


def test_right(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check("double", lambda values: [2 * value for value in values])
    out = capsys.readouterr()
    assert (out.out, out.err) == ("double: passed, 3 cases\n", "")
    assert "double" in PASSED


def test_wrong_names_the_case_and_the_misconception(check: Check) -> None:
    text = line(check, "double", lambda values: [value + 2 for value in values])
    assert text.startswith("double: case ") and text.endswith("numbers): not twice [adds-instead]")
    assert "\n" not in text


@pytest.mark.parametrize("answer", [None, ..., {"variant": 0, "choice": None, "evidence": ...}])
def test_blank_is_not_attempted(check: Check, answer: Any) -> None:
    assert line(check, "choice", answer) == f"choice: {NOT_ATTEMPTED}"


def test_a_stub_is_not_attempted_but_a_torch_not_implemented_is_an_error(check: Check) -> None:
    def stub(values: list[int]) -> list[int]:
        raise NotImplementedError()

    def torch_says_so(values: list[int]) -> list[int]:
        raise NotImplementedError("no kernel for this dtype")

    assert line(check, "double", stub) == f"double: {NOT_ATTEMPTED}"
    assert "no kernel for this dtype" in line(check, "double", torch_says_so)


def test_an_exception_names_case_type_and_own_line(check: Check) -> None:
    def answer(values: list[int]) -> Any:
        return np.linalg.inv(np.zeros(len(values)))  # the learner's own line

    text = line(check, "double", answer)
    assert text.startswith("double: case 1 of 3 (1 numbers): LinAlgError")
    assert "the learner's own line" in text and "in answer" in text and len(text.splitlines()) <= 3


def test_nothing_that_comes_back_breaks_the_check(check: Check) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return True

    assert "not plain data" in line(check, "double", lambda values: Odd())
    assert "ended the program" in line(check, "double", lambda values: sys.exit(0))
    assert "cannot be judged" in line(check, "choice", {"variant": 0})


def test_a_judge_sees_its_own_case_whatever_the_answer_does_to_it(check: Check) -> None:
    def mutating(values: list[int]) -> list[int]:
        values[:] = [0] * len(values)
        return values

    assert "changed what it was given" in line(check, "double", mutating)
    assert evaluate(replace(DOUBLE, in_place=True), mutating).message == "not twice"


def test_the_world_is_as_it_was(check: Check, tmp_path: Path) -> None:
    def messy(values: list[int]) -> list[int]:
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.manual_seed(5), np.random.seed(5), random.seed(5)
        os.chdir(tmp_path)
        return [2 * value for value in values]

    def state() -> list[Any]:
        torch_state = [torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()]
        return [
            *torch_state,
            os.getcwd(),
            torch.get_rng_state().sum().item(),
            random.getstate(),
            str(np.random.get_state()),
        ]

    before = state()
    check("double", messy)
    assert state() == before


def test_an_answer_that_draws_numbers_is_the_same_every_time() -> None:
    seen = []

    def answer(values: list[int]) -> list[int]:
        seen.append((torch.rand(1).item(), np.random.rand(), random.random()))
        return values

    evaluate(DOUBLE, answer)
    evaluate(DOUBLE, answer)
    assert len(set(seen)) == 1


def test_variants_change_after_two_failures_and_the_old_one_is_refused(check: Check) -> None:
    right = {variant: int(variant_rng("choice", variant).integers(1000)) for variant in range(2)}
    assert right[0] != right[1]
    assert "variant" not in line(check, "choice", {"variant": 0, "choice": -1})
    assert "variant" not in line(check, "choice", {"variant": 0, "choice": -1}), "the same answer again is one try"
    assert "variant" not in line(check, "choice", {"variant": 0, "choice": "seven"}), "a wrong form is no try"
    assert "the numbers change. Write variant=1" in line(check, "choice", {"variant": 0, "choice": -2})
    assert "Write variant=1" in line(check, "choice", {"variant": 0, "choice": right[0]})
    check("choice", {"variant": 1, "choice": right[1]})


def test_the_same_choice_with_other_evidence_is_one_try(check: Check) -> None:
    """While the choice is wrong the messages say nothing of the evidence, so correcting it alone is no second guess."""
    for evidence in (None, 1.0, 2.0):
        assert "variant" not in line(check, "choice", {"variant": 0, "choice": -1, "evidence": evidence})
    assert "Write variant=1" in line(check, "choice", {"variant": 0, "choice": -2, "evidence": 2.0})


def test_a_variant_further_on_is_no_way_round(check: Check) -> None:
    """A number above the expected one is fine (a kernel may have been restarted), and its numbers change as well."""
    for guess in (-1, -2):
        text = line(check, "choice", {"variant": 4, "choice": guess})
    assert "the numbers change. Write variant=5" in text
    assert "Write variant=5" in line(check, "choice", {"variant": 4, "choice": -3})


def test_an_answer_to_another_variant_than_the_printed_one_is_no_try(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ASKED, "choice", 1)
    for guess in (-1, -2, -3):
        text = line(check, "choice", {"variant": 0, "choice": guess})
        assert 'last showed variant 1, the answer says "variant": 0' in text and "\n" not in text


def test_question_prints_a_variant_and_remembers_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(ASKED, "choice", raising=False)
    texts = {"choice": lambda variant: f"numbers of {variant}"}
    ask(texts, "choice", 2)
    assert capsys.readouterr().out == "variant 2\n\nnumbers of 2\n" and ASKED["choice"] == 2
    for exercise, variant in (("choice", "1"), ("choice", 1.0), ("choice", -1), ("choice", True), ("chance", 0)):
        with pytest.raises(CheckFailed, match="question: ") as caught:
            ask(texts, exercise, variant)
        assert "\n" not in str(caught.value)
    assert ASKED["choice"] == 2
    monkeypatch.delitem(ASKED, "choice")


ODD = {
    "list": [1, 2, 3],
    "text": "B",
    "no variant": {"choice": "B", "evidence": 1.0},
    "variant in quotes": {"variant": "0", "choice": "B", "evidence": 1.0},
    "a fraction": {"variant": 0.5, "choice": "B", "evidence": 1.0},
    "a bool": {"variant": True, "choice": "B", "evidence": 1.0},
    "below zero": {"variant": -1, "choice": "B", "evidence": 1.0},
    "another key": {"variant": 0, "answer": 5},
    "only a variant": {"variant": 0},
}
REASONING = [("02", "nine-parts"), ("02", "published-run"), ("03", "accumulation-doubled"), ("04", "activation-oom")]
REASONING += [("05", "does-it-fit"), ("06", "which-part"), ("06", "weights-only"), ("01", "which-leaks")]


@pytest.mark.parametrize("form", ODD)
@pytest.mark.parametrize(("chapter", "exercise"), REASONING)
def test_an_answer_of_another_form_is_told_in_one_sentence_and_costs_nothing(
    chapter: str, exercise: str, form: str
) -> None:
    found = importlib.import_module(f"course_lib.checks.ch{chapter}").check.exercises[exercise]
    outcome = evaluate(found, ODD[form])
    assert outcome.status == "failed" and outcome.form, outcome.line
    assert "\n" not in outcome.line and "in the check" not in outcome.line and "Error" not in outcome.line


def test_words_for_what_came_back() -> None:
    assert [came(name) for name in ("int", "ndarray", "str", "NoneType")] == [
        "an int came back", "an ndarray came back", "a str came back", "nothing came back"
    ]  # fmt: skip
    assert [kind(value) for value in ((1, 2), [1], None, 5, {})] == [
        "a tuple of two", "a list of one", "nothing", "an int", "a dict"
    ]  # fmt: skip


def test_unknown_exercise_is_one_line(check: Check) -> None:
    assert "has no exercise 'treble'" in line(check, "treble", 1)


def test_two_exercises_with_one_id_are_a_bug() -> None:
    with pytest.raises(ValueError, match="two exercises"):
        make_check("99", [DOUBLE, DOUBLE])


def test_seed_comes_from_the_environment(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def answer(values: list[int]) -> list[int]:
        seen.append(values)
        return [2 * value for value in values]

    check("double", answer)
    monkeypatch.setenv("COURSE_CHECK_SEED", "7")
    check("double", answer)
    assert seen[:3] != seen[3:] and seen[3:] == [case["values"] for case in double_cases(7)]


def graded(check: Check, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, name: str = "double") -> Any:
    monkeypatch.setenv("COURSE_GRADE_DIR", str(folder))
    monkeypatch.setenv("COURSE_CHECK_SEED", "3")
    with contextlib.suppress(CheckFailed):
        check(name, answer)
    return read_packed(folder / name)


def test_what_run_returned_leaves_the_kernel_and_is_judged_elsewhere(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def chatty(values: list[int]) -> list[int]:
        print("a learner's print")
        return [2 * value for value in values]

    record = graded(check, tmp_path, monkeypatch, chatty)
    assert judge_record(DOUBLE, record, 3).status == "passed"
    assert judge_record(DOUBLE, record, 4).status == "failed", "a record of another seed proves nothing"
    assert capfd.readouterr().out == "double: ran 3 cases\n", "prints of an answer stay out of a graded check cell"
    record["cases"][1]["value"][0] += 1
    outcome = judge_record(DOUBLE, record, 3)
    assert (outcome.status, outcome.case, outcome.message) == ("failed", 2, "not twice")


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (None, "not_attempted", "not attempted yet"),
        (lambda values: 1 / 0, "failed", "ZeroDivisionError"),
        (lambda values: np.zeros(9 * 2**20), "failed", "64 MiB"),
        (lambda values: [2 * values[0]] * len(values), "failed", "case 2 of 3"),
        (lambda values: np.multiply(2, values).tolist(), "failed", "write it yourself"),
    ],
    ids=["blank", "raises", "too much", "wrong", "forbidden"],
)
def test_records_of_what_is_not_right(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, status: str, words: str
) -> None:
    outcome = judge_record(DOUBLE, graded(check, tmp_path, monkeypatch, answer), 3)
    assert outcome.status == status and words in outcome.line


@pytest.mark.parametrize("record", [None, [], {}, {"exercise": "double", "seed": 3, "stopped": None, "cases": 5}])
def test_a_record_of_any_shape_is_judged_without_an_exception(record: Any) -> None:
    assert judge_record(DOUBLE, record, 3).status == "failed"


def test_the_room_is_free_of_torch() -> None:
    code = "import sys, course_lib.checks.core; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_endless_loop_is_stopped(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.checks.guard.CASE_SECONDS", 0.2)

    def answer(values: list[int]) -> list[int]:
        while True:
            pass

    text = line(check, "double", answer)
    assert text.startswith("double: case 1 of 3 (1 numbers): stopped after 0.2 s") and "while True:" in text


def test_a_graded_check_stops_at_an_endless_loop_and_records_it(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every case would wait for its own clock; together they are longer than a cell may take."""
    monkeypatch.setattr("course_lib.checks.guard.CASE_SECONDS", 0.2)
    calls = []

    def answer(values: list[int]) -> list[int]:
        calls.append(values)
        while len(calls) > 1:
            pass
        return [2 * value for value in values]

    outcome = judge_record(DOUBLE, graded(check, tmp_path, monkeypatch, answer), 3)
    assert len(calls) == 2 and (outcome.status, outcome.case) == ("failed", 2)
    assert "stopped after 0.2 s" in outcome.line and "while len(calls) > 1:" in outcome.line


def test_a_module_by_its_text_is_refused(check: Check) -> None:
    assert "`sys.modules` reaches what" in line(
        check, "double", lambda values: sys.modules["numpy"].multiply(values, 2)
    )


def test_an_answer_that_changes_its_arguments_fails(check: Check) -> None:
    def answer(values: list[int]) -> list[int]:
        values[:] = [2 * value for value in values]
        return list(values)

    assert "changed what it was given" in line(check, "double", answer)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on Windows")
def test_a_paused_time_limit_counts_on_afterwards() -> None:
    reached = False
    with pytest.raises(TimeoutError), time_limit(0.5):
        with time_limit_paused():
            time.sleep(0.8)
        reached = True
        start = time.perf_counter()
        while time.perf_counter() - start < 5:
            pass
    assert reached, "the pause did not count"
    with time_limit_paused():
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "without a limit around it there is nothing to go on"
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
