"""`torchrun -m course_lib train --parallel ...` as a user meets it: a whole run, a stop, bad input, two torchruns."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib import cli
from course_lib.store import latest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv, signals")]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SMALL = ["--d-model", "16", "--n-layers", "2", "--n-heads", "2", "--context", "16", "--tokenizer", "bytes"]
SMALL += ["--dropout", "0", "--batch", "4", "--precision", "fp32", "--val-every", "0"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "some text.txt"
    lines = "\n\n".join(f"Line {i}: " + "the cat sat on the mat. " * (i % 7 + 3) for i in range(60))
    path.write_text(lines, encoding="utf-8", newline="\n")
    return path


def start(*words: str, options: tuple[str, ...] = ("--standalone", "--nproc-per-node", "2")) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TORCHRUN, *options, "-m", "course_lib", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=120)
    finally:
        process.kill()


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["loss"] for line in lines if line["event"] == "stepped"]


def test_sharded_under_torchrun_then_alone(text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line of JSON for two ranks; the losses of one process; and one process goes on from their checkpoint."""
    words = [*SMALL, "--text", str(text), "--steps", "12", "--quiet", "--json"]
    out, alone = tmp_path / "out", tmp_path / "alone"
    stdout, stderr = end(start(*words, "--parallel", "fsdp", "--out", str(out), "--checkpoint-every", "6"))
    result = json.loads(stdout)
    assert stdout.count("\n") == 1 and result["steps"] == 12, stderr
    assert "Traceback" not in stderr and "Warning" not in stderr
    assert cli.main(["train", *words, "--out", str(alone)]) == 0
    assert losses(out) == pytest.approx(losses(alone), abs=3e-6)  # FP32 sums in another order
    assert result["sample"] == json.loads(capfd.readouterr().out)["sample"]
    six = out / "step-000006"
    assert cli.main(["train", "--resume", str(six), "--quiet"]) == 2
    assert "one process: --parallel none" in capfd.readouterr().err
    assert cli.main(["train", "--resume", str(six), "--parallel", "none", "--quiet"]) == 0
    assert losses(out)[12:] == pytest.approx(losses(alone)[6:], abs=3e-6)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks_after_one_step_with_one_checkpoint(
    sent: signal.Signals, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [*SMALL, "--text", str(text), "--steps", "1000000", "--json", "--quiet", "--out", str(out)]
    process = start(*words, "--parallel", "fsdp" if sent == signal.SIGTERM else "ddp")
    deadline, metrics = time.monotonic() + 100, out / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.exists() and "stepped" in metrics.read_text("utf-8")):
        time.sleep(0.1)
    process.send_signal(sent)
    stdout, stderr = end(process)
    result = json.loads(stdout)
    assert result["interrupted"] and "course_lib/" not in stderr, stderr
    assert [path.name for path in out.glob("step-*")] == [f"step-{result['steps']:06d}"]
    assert latest(out).path == Path(result["checkpoint"]) and len(losses(out)) == result["steps"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "add --parallel ddp or --parallel fsdp"),
        (("--parallel", "ddp", "--batch", "5"), "batch=5 does not divide into 2 ranks; try batch=4 or batch=6"),
        (("--parallel", "fsdp", "--resume", "/no/such"), "/no/such"),
        (("--parallel", "ddp", "--nonsense", "1"), "nonsense"),
    ],
)
def test_bad_input_is_said_once(words: tuple[str, ...], says: str, text: Path) -> None:
    stdout, stderr = end(process := start(*SMALL, "--text", str(text), "--steps", "30", *words))
    assert process.returncode != 0 and stdout == ""
    ours = stderr.split("torch/distributed/elastic")[0]  # then follows torchrun's own report
    assert ours.count(says) == 1 and "course_lib/" not in stderr, stderr
    assert ours.startswith("course: ") == ("--nonsense" not in words)


def test_two_torchruns_are_one_run(text: Path, tmp_path: Path) -> None:
    """As on two nodes: each starts one rank, and they meet at an address."""
    out = tmp_path / "out"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "a", "--rdzv-backend", "c10d")
    words = [*SMALL, "--text", str(text), "--steps", "6", "--quiet", "--json", "--parallel", "fsdp", "--out", str(out)]
    nodes = [start(*words, options=(*options, "--rdzv-endpoint", f"127.0.0.1:{port}")) for _ in range(2)]
    said = [end(node) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert sorted(len(stdout.splitlines()) for stdout, _ in said) == [0, 1]
    assert len(losses(out)) == 6 and len(list((out / "step-000006").glob("shard-*"))) == 2
