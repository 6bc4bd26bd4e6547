"""`course incident`: at a terminal, through a pipe, and without questions."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from incident_fake import CHECKS, KINDS, catalogue  # noqa: F401

from course_lib import cli, incident_cli
from course_lib.failures.scoring import HEALTHY
from course_lib.failures.simulator import dealt


@pytest.fixture
def course(catalogue, monkeypatch, capsys):  # noqa: F811
    """course(*words, lines=...) -> (status, stdout, stderr); the lines are what is typed into a pipe."""

    def run(*words, lines=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        status = cli.main(["incident", "--quiet", *words])
        return status, *capsys.readouterr()

    return run


def seed_of(name):
    return next(str(seed) for seed in range(100) if dealt(seed) == name)


def test_a_case_played_through_a_pipe(course):
    seed = seed_of("overflow")
    status, out, err = course("--seed", seed, lines="check decode\nfinite\nanswer overflow\nchecks\n")
    assert (status, err) == (0, "")
    assert f"Case {seed}. 12 steps: loss from 5.00 to 3.90" in out and "not finite at step 7" in out
    assert "[5 min, 5 in all] decode measured 0.0" in out and "[10 min, 15 in all] finite measured 1.0" in out
    assert "Right: “the overflow one”. 100 points of 100." in out and "To mend it: mend overflow" in out
    assert "* finite             10 min  abnormal  finite measured 1.0" in out
    assert "  ranks              20 min            ranks measured 0.0" in out
    assert out.count("The checks, in the order") == 1  # what comes after the answer is not read


def test_numbers_stand_for_names(course):
    status, out, _ = course("--seed", seed_of("straggler"), lines="check 5\nanswer 5\n")
    assert status == 0 and "Right: “the straggler one”. 100 points" in out
    assert "     5  ranks" in out


def test_the_end_of_the_input_ends_kindly(course):
    seed = seed_of("hot")
    for lines in ("", "check rates\n", "check rates\nquit\nanswer shifted\n", "\n\nexit\n"):
        status, out, err = course("--seed", seed, lines=lines)
        assert (status, err) == (0, "")
        assert out.rstrip().endswith(f"The same case again: course incident --seed {seed}")
        assert "the hot one" not in out


def test_a_slip_is_one_line_and_the_case_goes_on(course):
    lines = "chek finite\ncheck finit\nanswer\nanswer overlow\ndashboards\nfaults\nhelp\nanswer overflow\n"
    status, out, err = course("--seed", seed_of("overflow"), lines=lines)
    assert status == 0 and "Right" in out
    said = err.splitlines()
    assert "no check 'chek finite'; did you mean" in said[0] or "there is no check 'chek finite'" in said[0]
    assert "did you mean 'finite'?" in said[1] and "answer NAME" in said[2] and "'overflow'?" in err
    assert out.count("from the first step to the last") == 2 and "nothing is wrong" in out and "quit " in out


def test_a_wrong_name_is_status_1(course):
    status, out, _ = course("--seed", seed_of("doubled"), "--answer", "shifted")
    assert status == 1 and "No: you said “the shifted one”, and it is “the doubled one”. 20 points of 100." in out
    assert "The right kind of cause (data and mask)" in out


def test_a_restart_is_said_with_its_price(course):
    status, out, _ = course("--seed", seed_of("hot"), "--check", "restart", "--check", "rates", "--answer", "hot")
    out = " ".join(out.split())
    assert (
        status == 0
        and "[120 min, 120 in all] The second run, 12 steps: loss from 5.00 to 3.90 nats a token. At no step" in out
    )
    assert "You restarted before any check: 120 minutes" in out and "42 points" in out


def test_json_is_one_line_alone_on_stdout(course):
    seed = seed_of("overflow")
    status, out, err = course("--seed", seed, "--json", "--check", "finite", "--answer", "overflow")
    assert status == 0 and out.count("\n") == 1 and "Right" in err
    data = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert data["seed"] == int(seed) and data["dashboards"]["loss"][7] == "nan" and data["minutes"] == 10
    assert data["score"]["points"] == 100 and len(data["trace"]) == len(CHECKS)
    assert data["orders"] == [
        {"name": "finite", "minutes": 10, "text": "finite measured 1.0", "abnormal": True, "numbers": {"value": 1.0}}
    ]
    status, out, _ = course("--seed", seed, "--json", "--no-input")
    data = json.loads(out)
    assert status == 0 and data["score"] is None and data["trace"] == [] and "overflow" not in out


def test_without_input_nothing_is_asked(course):
    status, out, _ = course("--seed", "3", "--no-input", lines="answer hot\n")
    assert status == 0 and "The case is open" in out


def test_a_wrong_word_is_found_before_the_run_is_made(course, monkeypatch):
    monkeypatch.setattr("course_lib.failures.incidents.reproduce", lambda *given, **more: pytest.fail("a run was made"))
    assert course("--answer", "hut")[::2] == (2, "course: there is no fault 'hut'; did you mean 'hot'?\n")
    assert course("--check", "rattes")[::2] == (2, "course: there is no check 'rattes'; did you mean 'rates'?\n")
    assert course("--seed", "-3")[::2] == (2, "course: seed=-3 is negative; take 0 or more\n")


def test_the_list_makes_no_run(course, monkeypatch):
    monkeypatch.setattr("course_lib.failures.incidents.reproduce", lambda *given, **more: pytest.fail("a run was made"))
    status, out, err = course("--list")
    assert (status, err) == (0, "") and all(name in out for name in (*CHECKS, *KINDS, HEALTHY, "restart"))
    places = [out.index(kind) for kind in ("data and mask", "numerics", "optimizer", "system")]
    assert places == sorted(places)


def test_a_terminal_without_blocks_gets_characters(catalogue):  # noqa: F811
    said: list[str] = []
    for encoding in ("ascii", "cp1252", None, "no such"):
        desk = incident_cli.Desk(incident_cli_case(), said.append, encoding)
        desk.dashboards()
        said.pop().encode("ascii")


def incident_cli_case():
    from course_lib.failures.simulator import Case

    return Case(0)


@pytest.mark.slow
def test_the_real_catalogue_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "course_lib", "incident", "--seed", "1", "--json"],
        input="restart\nanswer healthy\n",
        capture_output=True,
        encoding="utf-8",
        timeout=180,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode in (0, 1), done.stderr
    data = json.loads(done.stdout)
    assert data["seed"] == 1 and data["orders"][0]["name"] == "restart" and data["score"]["said"] == "healthy"
    assert len(data["dashboards"]["loss"]) >= 20 and len(data["trace"]) >= 15 and "step" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_at_the_question_ends_it():
    process = subprocess.Popen(
        [sys.executable, "-m", "course_lib", "incident", "--seed", "1", "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background job ignores Ctrl-C, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    said = b""
    while b"restart " not in said:
        more = process.stdout.read1(1000)  # type: ignore[attr-defined]
        assert more, said
        said += more
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.rstrip().endswith(b"course: stopped")
