"""The machine: quotas, threads, devices, peaks; and no torch before it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_lib import machine
from course_lib.amp import precision_policy
from course_lib.errors import ConfigError


def test_a_cpu_quota_counts(tmp_path: Path) -> None:
    assert machine._cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n", "ascii")
    assert machine._cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n", "ascii")
    assert machine._cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000\n", "ascii")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n", "ascii")
    assert machine._cpu_quota(tmp_path) == 2.0
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n", "ascii")
    assert machine._cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.5, 1), (2.5, 3), (64.0, 8)])
def test_usable_cores(quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_cpu_quota", lambda _: quota)
    assert machine.usable_cores() == cores


def test_threads_are_set_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(machine, "_threads", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        assert machine.set_threads() == 1 == torch.get_num_threads()
        monkeypatch.setattr(machine, "usable_cores", lambda: 2)
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert machine.set_threads() == 1  # already set
        assert machine.set_threads(2) == 2 == torch.get_num_threads()
        monkeypatch.setattr(machine, "_threads", None)
        assert machine.set_threads() == 2
        with pytest.raises(ConfigError, match="at least 1"):
            machine.set_threads(0)
    finally:
        torch.set_num_threads(before)


def test_devices() -> None:
    assert machine.pick_device("cpu") == "cpu"
    assert machine.pick_device("auto") in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match="tpu"):
        machine.pick_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="it has: cpu"):
            machine.pick_device("cuda")


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, picked in ((("cpu", "mps"), "mps"), (("cpu", "cuda"), "cuda"), (("cpu",), "cpu")):
        monkeypatch.setattr(machine, "_devices", lambda found=found: found)
        assert machine.pick_device() == picked


def test_probe_and_peak() -> None:
    found = machine.probe()
    assert found.cores >= 1 and found.threads >= 1 and found.memory_bytes > 2**28
    assert found.dtypes["cpu"]["fp32"] and set(found.dtypes["cpu"]) == {"fp32", "bf16", "fp16"}
    assert found.torch == torch.__version__ and found.python == sys.version.split()[0] and found.cpu
    assert 1e8 < machine.matmul_peak(seconds=0.05) < 1e15
    with pytest.raises(ConfigError, match="fp32"):
        machine.matmul_peak("fp64")


def test_a_format_that_does_not_run_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> torch.dtype:
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr(machine, "torch_dtype", refuse)
    assert not machine.runs("cpu", "fp16")


@pytest.mark.parametrize(("ratio", "name"), [(2.4, "bf16"), (1.0, "fp32"), (0.1, "fp32")])
def test_auto_precision_follows_the_measurement(ratio: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.amp.bf16_speedup", lambda device: ratio)
    monkeypatch.setattr("course_lib.amp.runs", lambda device, dtype: True)
    policy = precision_policy("cpu", "auto")
    assert policy.name == name and policy.reason
    with policy.autocast():
        assert torch.is_autocast_enabled("cpu") == (name == "bf16")


def test_precision_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.amp.runs", lambda device, dtype: False)
    assert precision_policy("cpu", "auto").name == "fp32"
    with pytest.raises(ConfigError, match="fp32"):
        precision_policy("cpu", "bf16")
    with pytest.raises(ConfigError, match="unknown"):
        monkeypatch.undo()
        precision_policy("cpu", "fp64")


def test_the_probe_of_bf16_is_a_ratio_of_rates() -> None:
    assert 0.001 < machine.bf16_speedup("cpu") < 50
    assert machine.bf16_speedup("cpu") == machine.bf16_speedup("cpu")  # measured once a process


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (machine.material_dir() / "notebooks").is_dir()
    monkeypatch.delenv("COURSE_WORK", raising=False)
    assert machine.work_dir().name == "work"
    monkeypatch.setenv("COURSE_WORK", str(tmp_path))
    assert machine.work_dir() == tmp_path


def test_torch_is_imported_only_when_needed() -> None:
    code = (
        "import sys, course_lib.machine, course_lib.config, course_lib.events, course_lib.planning.formulas; "
        "course_lib.machine.usable_cores(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
@pytest.mark.skipif(
    _HUGE_PAGES.is_file() and "[always]" in _HUGE_PAGES.read_text(), reason="all pages are huge: few faults to save"
)
def test_kept_memory_saves_page_faults() -> None:
    code = """
import resource, sys, torch
from course_lib.machine import keep_memory
if sys.argv[1] == "keep":
    assert keep_memory()
def work():
    for _ in range(3):
        tensors = [torch.ones(10_000_000) for _ in range(2)]
work()
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

    # Another test's trainer may have asked for huge pages in this process: the child must begin without.
    clean = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}

    def faults(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", code, how], env=clean, capture_output=True, text=True, timeout=60, check=True
        )
        return int(done.stdout)

    left = faults("leave")
    assert left > 50_000  # six times 40 MB, of 10,000 pages each
    assert faults("keep") < left / 2
