"""The recovery drill: what it finds, and that it can fail."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import toy_corpus

from course_lib import cli, resume
from course_lib.checkpoint import load_optimizer
from course_lib.drill import OMISSIONS, Drill, DrillRow, drill
from course_lib.resume import PARTS

CORPUS = toy_corpus(20_000)


@pytest.fixture(scope="module")
def result() -> Drill:
    return drill(corpus=CORPUS)


def row(result: Drill, name: str) -> DrillRow:
    return next(one for one in result.rows if one.name == name)


def test_the_full_resume_is_exact_and_each_omission_shows(result: Drill) -> None:
    assert result.passed and all(one.passed for one in result.rows) and result.seconds < 60
    assert [one.name for one in result.rows[2:]] == [one.name for one in OMISSIONS]
    for precision in ("fp32", "fp16"):
        full = next(one for one in result.rows if one.precision == precision)
        assert full.steps == result.straight[precision][20:]
        assert full.first_loss is None and full.first_parameters is None
    found = {one.name: (one.first_loss, one.first_parameters) for one in result.rows if one.precision == "fp32"}
    assert found["no optimizer"] == (21, 20) and found["scheduler restarted"] == (22, 21)
    assert found["no random state"] == found["cursor off by one"] == found["weights only"] == (20, 20)


def test_the_runs_are_whole(result: Drill) -> None:
    assert all([one.step for one in steps] == list(range(30)) for steps in result.straight.values())
    assert all([one.step for one in each.steps] == list(range(20, 30)) for each in result.rows)
    digests = [one.digest for one in result.straight["fp32"]]
    assert len(set(digests)) == 30 and len({one.lr for one in result.straight["fp32"]}) > 25
    assert result.straight["fp32"][29].loss < result.straight["fp32"][0].loss
    skipped = [one.step for one in result.straight["fp16"] if one.skipped]
    assert skipped and max(skipped) > 20  # an overflow after the checkpoint


def test_the_scaler_shows_by_its_scale(result: Drill) -> None:
    """A smaller scale loses small gradients at once; the loss shows it only steps later."""
    lost = row(result, "no scaler")
    wanted = result.straight["fp16"][20:]
    assert lost.steps[0].scale == 1024 and wanted[0].scale is not None and wanted[0].scale > 1024
    assert lost.first_parameters is not None
    assert lost.first_loss is None or lost.first_loss > lost.first_parameters
    assert [one.skipped for one in lost.steps] != [one.skipped for one in wanted]
    assert f"{wanted[0].scale:,.0f}" in lost.reason


def forget(part: str) -> Callable[..., None]:
    original = resume.restore

    def restore(trainer: Any, folder: Path, parts: Any = PARTS) -> None:
        original(trainer, folder, [one for one in parts if one != part])

    return restore


@pytest.mark.slow
@pytest.mark.parametrize("part", ["scheduler", "random"])
def test_a_trainer_that_forgets_fails_the_drill(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.drill.restore", forget(part))
    found = drill(corpus=CORPUS)
    assert not found.passed and not found.rows[0].passed and found.rows[0].first_parameters is not None


def test_a_restore_that_always_brings_everything_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an omission shows nothing, the drill has tested nothing."""
    monkeypatch.setattr(
        "course_lib.drill.restore", lambda trainer, folder, parts=PARTS: resume.restore(trainer, folder, PARTS)
    )
    found = drill(corpus=CORPUS)
    assert not found.passed and found.rows[0].passed
    assert [one.name for one in found.rows if one.passed][2:] == ["cursor off by one"]
    assert "not what it should show" in row(found, "no optimizer").reason


@pytest.mark.slow
def test_moments_that_were_rounded_on_their_way_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:

    def rounded(folder: Path, trained: Any, optimizer: Any) -> None:
        load_optimizer(folder, trained, optimizer)
        for state in optimizer.state.values():
            state["exp_avg"].copy_(state["exp_avg"].bfloat16())

    monkeypatch.setattr("course_lib.checkpoint.load_optimizer", rounded)
    found = drill(corpus=CORPUS)
    # The loss shows it one step later, or two: rounding hides the first on some machines.
    assert found.rows[0].first_parameters == 20 and found.rows[0].first_loss in (21, 22) and not found.passed


def test_the_command_prints_a_table(
    result: Drill, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("course_lib.drill.drill", lambda progress: result)
    assert cli.main(["drill", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert err == "" and "no optimizer          fp32       step 21       step 20" in out and "passed in" in out
    broken = Drill(result.straight, result.rows, 1.0, False)
    monkeypatch.setattr("course_lib.drill.drill", lambda progress: broken)
    assert cli.main(["drill", "--quiet", "--json"]) == 1
    out, _ = capfd.readouterr()
    data = json.loads(out)
    assert out.count("\n") == 1 and data["passed"] is False and len(data["rows"]) == 8
    assert data["rows"][3]["first_loss"] == 21 and len(data["straight"]["fp16"]) == 30


@pytest.mark.slow
def test_the_command_in_a_process_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "course_lib", "drill", "--json"], capture_output=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["passed"] and data["seconds"] < 60 and "step" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "course_lib", "drill"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background job ignores Ctrl-C, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    said = b""
    while b"fp32" not in said:
        more = process.stderr.read1(100)  # type: ignore[attr-defined]
        assert more, said
        said += more
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b"" and err.rstrip().endswith(b"course: stopped")
