"""Where there is no `fork`: ranks that stay alive between calls, are replaced after a fault, and see what is new."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib.errors import RankError
from course_lib.parallel import launch
from course_lib.parallel._pool import Pool
from course_lib.parallel.launch import run_ranks


@pytest.fixture(scope="module")
def only_pool() -> Iterator[Pool]:
    """A pool in place of the fork server."""
    pool = Pool()
    yield pool
    pids = list(pool._members)
    pool.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)], "a rank outlived its pool"


@pytest.fixture
def pool(only_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(launch, "_starter", only_pool)
    return only_pool


def test_a_pool_serves_call_after_call_and_forgets_each(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "edited_between_calls.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    factor = 2

    def work(x: torch.Tensor) -> tuple[int, int, float, list[float], str]:
        import edited_between_calls  # type: ignore[import-not-found]

        drawn = torch.rand(1).item()
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        os.environ["COURSE_TEST"] = "left behind"
        dist.all_reduce(x)
        print("value", edited_between_calls.value)
        return os.getpid(), edited_between_calls.value, drawn, (factor * x).tolist(), os.getcwd()

    def state() -> tuple[int, int, torch.dtype, str | None]:
        return os.getpid(), torch.get_num_threads(), torch.get_default_dtype(), os.environ.get("COURSE_TEST")

    module.write_text("value = 1\n", encoding="utf-8", newline="\n")
    first = run_ranks(work, 2, torch.ones(2))
    after = run_ranks(state, 2)
    module.write_text("value = 22\n", encoding="utf-8", newline="\n")
    began = time.monotonic()
    second = run_ranks(work, 2, torch.ones(2))
    assert time.monotonic() - began < 2  # importing torch takes longer
    assert [one[0] for one in first] == [one[0] for one in second] == [one[0] for one in after]
    assert [one[1] for one in first + second] == [1, 1, 22, 22]
    assert len({one[2] for one in first + second}) == 4
    assert all(one[3] == [4.0, 4.0] and one[4] == str(tmp_path) for one in first + second)
    assert [one[1:] for one in after] == [(1, torch.float32, None)] * 2
    out, err = capfd.readouterr()
    assert sorted(out.splitlines())[-1] == "[rank 1] value 22" and err == ""
    assert len(run_ranks(dist.get_rank, 1)) == 1 and len(pool._members) == 2


@pytest.mark.slow
def test_after_a_fault_the_pool_is_new_and_no_rank_is_left(pool: Pool) -> None:
    before = run_ranks(os.getpid, 2)

    def crash() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        dist.all_reduce(torch.ones(2))

    with pytest.raises(RankError, match="rank 1 of 2 was ended by SIGKILL") as caught:
        run_ranks(crash, 2)
    assert caught.value.rank == 1
    assert not [pid for pid in before if psutil.pid_exists(pid)]
    after = run_ranks(os.getpid, 2)
    assert not set(before) & set(after)

    def uneven() -> None:
        dist.all_reduce(torch.ones(2 + dist.get_rank()))

    with pytest.raises(RankError, match=r"rank 1 of 2 used another shape than rank 0 \(collective 1\)"):
        run_ranks(uneven, 2)

    def slow() -> None:
        time.sleep(60 * dist.get_rank())

    with pytest.raises(RankError, match="rank 1: is at") as caught:
        run_ranks(slow, 2, timeout=1)
    assert caught.value.ranks == (1,)
    assert run_ranks(dist.get_rank, 2) == [0, 1]


@pytest.mark.slow
def test_a_member_that_has_died_between_calls_is_replaced(pool: Pool) -> None:
    before = run_ranks(os.getpid, 2)
    psutil.Process(before[0]).kill()
    psutil.wait_procs([psutil.Process(before[1])], timeout=0.2)
    after = run_ranks(os.getpid, 2)
    assert before[0] not in after and before[1] in after


@pytest.mark.slow
def test_a_program_that_a_rank_starts_ends_with_the_pool(pool: Pool) -> None:
    def work() -> int:
        import subprocess

        return subprocess.Popen(["sleep", "100"]).pid

    (child,) = run_ranks(work, 1)
    pool.close()
    end = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert run_ranks(dist.get_rank, 1) == [0]


def test_the_environment_chooses_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_starter", None)
    monkeypatch.setenv("COURSE_RANKS", "pool")
    assert isinstance(launch._start(), Pool)


def test_a_rank_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_starter", Pool())
    monkeypatch.setattr("course_lib.parallel._pool.SCRIPT", "no_such_file.py")
    with pytest.raises(RankError, match=r"a rank could not be started \(exit code 2\): .*no_such_file"):
        run_ranks(dist.get_rank, 2)
    assert not launch._starter._members  # type: ignore[union-attr]
