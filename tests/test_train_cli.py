"""`course train` as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib import cli
from course_lib.train_cli import parse

SMALL = ["--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "16", "--tokenizer", "bytes"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "some text.txt"
    lines = "\n\n".join(f"Line {i}: " + "the cat sat on the mat. " * (i % 7 + 3) for i in range(60))
    path.write_text(lines, encoding="utf-8", newline="\n")
    return path


def test_json_is_one_line_alone_on_stdout(text: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *SMALL, "--text", str(text), "--steps", "5", "--batch", "4", "--json"]) == 0
    out, err = capfd.readouterr()
    assert out.count("\n") == 1 and out.endswith("\n")
    result = json.loads(out)
    wanted = {"steps", "train_loss", "val_bits_per_byte", "tokens_per_second", "seconds", "parameters"}
    assert wanted <= set(result) and "history" not in result
    assert result["steps"] == 5 and result["parameters"] > 0 and 0 < result["val_bits_per_byte"] < 10
    assert "parameters" in err and "validation" in err


def test_without_json_a_line_of_text(text: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *SMALL, "--text", str(text), "--steps", "3", "--batch", "4", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("3 steps in ") and out.count("\n") == 1 and err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--preset", "tinny"], "'tiny'"),
        (["--d-model", "131"], "d_model=132"),
        (["--d-model", "130"], "d_model=132"),
        (["--warmup-steps", "5000"], "warmup_steps"),
        (["--batch", "100000"], "batch"),
        (["--device", "tpu"], "tpu"),
        (["--text", "/no/such/file"], "/no/such/file"),
        (["--resume", "/no/such/run"], "/no/such/run"),
        (["--micro-batch", "5"], "micro_batch=3"),
        (["--parallel", "ddp"], "torchrun --nproc-per-node 2 -m course_lib train --parallel ddp"),
        (["--steps", "30", "--out", str(Path(__file__) / "x")], "cannot be written"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_2(words: list[str], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *SMALL, "--json", "--quiet", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err


def test_help_groups_flags_with_defaults(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])
    assert stop.value.code == 0
    out = capfd.readouterr().out
    for word in ("--steps", "--lr", "--text", "--out", "--resume", "--json", "course train --text", "(default: tiny)"):
        assert word in out
    for group in ("model options", "data options", "optim options"):
        assert group in out


def test_resume_takes_the_runs_own_settings(text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    start = ["train", *SMALL, "--text", str(text), "--steps", "8", "--batch", "4", "--seed", "3", "--json", "--quiet"]
    assert cli.main([*start, "--out", str(out), "--checkpoint-every", "5"]) == 0
    straight = json.loads(capfd.readouterr().out)
    assert parse(["--resume", str(out)]).train.batch == 4
    assert parse([f"--resume={out}", "--steps", "9"]).train.steps == 9
    assert cli.main(["train", "--resume", str(out / "step-000005"), "--json", "--quiet"]) == 0
    resumed = json.loads(capfd.readouterr().out)
    assert resumed["steps"] == 8 and resumed["tokens"] == 3 * 4 * 16
    assert resumed["val_bits_per_byte"] == straight["val_bits_per_byte"]
    assert cli.main(["train", "--resume", str(out), "--seed", "4", "--quiet"]) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_saves_and_exits_130(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*SMALL, "--text", str(text), "--steps", "1000000", "--batch", "4", "--val-every", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "course_lib.cli", "train", *words, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        metrics = out / "metrics.jsonl"
        while time.monotonic() < deadline and not (metrics.exists() and "stepped" in metrics.read_text("utf-8")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    result = json.loads(stdout)
    assert result["interrupted"] and Path(result["checkpoint"]).is_dir()
    assert "Traceback" not in stderr


def test_a_resume_says_what_it_skips_and_what_differs(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--steps", "4", "--batch", "4", "--checkpoint-every", "1", "--keep-checkpoints", "2", "--quiet"]
    assert cli.main(["train", *SMALL, "--text", str(text), "--out", str(out), *words]) == 0
    assert sorted(path.name for path in out.glob("step-*")) == ["step-000003", "step-000004"]
    (out / "step-000004" / "COMPLETE.json").unlink()
    capfd.readouterr()
    assert cli.main(["train", "--resume", str(out), "--steps", "5"]) == 0
    _, err = capfd.readouterr()
    assert "skipped step-000004: incomplete: no COMPLETE.json" in err
    assert f"going on from {out / 'step-000003'} at step 3" in err
    assert "not as it was then: config.steps was 4, is 5" in err
    assert sorted(path.name for path in out.glob("step-*")) == ["step-000004", "step-000005"]
