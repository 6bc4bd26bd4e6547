"""Running a function on many ranks: what goes in, what comes back, what is printed, and what cannot work."""

import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.errors import RankError
from course_lib.parallel._parcel import pack, unpack
from course_lib.parallel.launch import run_ranks


def test_results_come_in_rank_order_from_initialised_ranks() -> None:
    factor = 3

    def work(add: float, *, shape: tuple[int, ...]) -> dict[str, Any]:
        x = torch.full(shape, float(dist.get_rank()))
        dist.all_reduce(x)
        time.sleep(0.05 * (2 - dist.get_rank()))  # the last one is ready first
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS")
        return {
            "sum": (factor * x + add).tolist(),
            "rank": dist.get_rank(),
            "environment": [os.environ[name] for name in names],
            "threads": torch.get_num_threads(),
            "backend": dist.get_backend(),
        }

    found = run_ranks(work, 3, 1.0, shape=(2,))
    assert [one["rank"] for one in found] == [0, 1, 2]
    for rank, one in enumerate(found):
        assert one["sum"] == [10.0, 10.0] and one["threads"] == 1 and one["backend"] == "gloo"
        assert one["environment"] == [str(rank), "3", str(rank), "1"]
    assert run_ranks(lambda: dist.get_world_size(), 1) == [1]
    assert "RANK" not in os.environ and not dist.is_initialized()


@dataclass
class Pair:
    left: Any
    right: Any


def test_what_travels_arrives_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    sent = {
        "bf16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        "ints": torch.arange(3),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "grad": torch.ones(2, requires_grad=True),
    }

    def back(what: dict[str, torch.Tensor], model: nn.Module, pair: Pair) -> tuple[Any, ...]:
        return what, model, pair, model[1].weight is model[0].weight, dist.get_rank()  # type: ignore[index]

    for rank, (got, other, pair, tied, number) in enumerate(run_ranks(back, 2, sent, model, pair=Pair(model, [1]))):
        assert number == rank and tied and pair.right == [1] and pair.left is other
        for name, tensor in sent.items():
            assert torch.equal(got[name], tensor) and got[name].dtype == tensor.dtype
            assert got[name].requires_grad == tensor.requires_grad
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))


def test_a_view_travels_without_the_rest_of_its_storage() -> None:
    whole = torch.arange(1_000_000.0)
    data, _ = pack({"part": whole[10:13], "column": whole.view(1000, 1000)[:, 1]})
    assert len(data) < 20_000
    back = unpack(data)
    assert back["part"].tolist() == [10, 11, 12] and torch.equal(back["column"], whole[1::1000])
    assert len(pack(whole)[0]) > 4_000_000


def test_large_arguments_and_results_pass_the_pipe() -> None:
    """40 MB to each rank and 40 MB back from each at once: more than any pipe holds."""

    def double(x: torch.Tensor) -> torch.Tensor:
        print("y" * 300_000)
        return 2 * x + dist.get_rank()

    first, second = run_ranks(double, 2, torch.ones(10_000_000))
    assert first.sum() == 20_000_000 and second.sum() == 30_000_000


def test_prints_are_marked_whole_and_free_of_noise(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        dist.barrier()
        print("one\ntwo", 3)
        print("begun, ", end="", flush=True)
        print("ended")
        for step in range(4):
            sys.stdout.write(f"\rstep {step}")
        sys.stdout.write("\n")
        os.system("echo from a program")
        os.write(1, b"past Python\n")
        os.write(2, b"[W1130 00:51:00.981151760 socket.cpp:764] [c10d] The client socket has failed\n")
        print("careful", file=sys.stderr)
        print("no line end", end="")

    run_ranks(talk, 2)
    out, err = capfd.readouterr()
    for rank in range(2):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in out.splitlines() if line.startswith(f"[rank {rank}]")]
        spoken = [line for line in mine if line not in ("from a program", "past Python")]
        assert spoken == ["one", "two 3", "begun, ended", "step 3", "no line end"]
        assert {"from a program", "past Python"} < set(mine)
    assert all(re.match(r"\[rank [01]\] ", line) for line in out.splitlines()), out
    assert sorted(err.splitlines()) == ["[rank 0] careful", "[rank 1] careful"]


def test_random_numbers_are_those_of_a_new_process() -> None:
    """Ranks draw different numbers until they seed, and the caller's own stream is not touched."""

    def draw(seed: int | None) -> tuple[float, float]:
        import random

        import numpy as np

        if seed is not None:
            torch.manual_seed(seed)
        return torch.rand(1).item(), random.random() + float(np.random.rand())

    before = torch.get_rng_state()
    unseeded = [*run_ranks(draw, 2, None), *run_ranks(draw, 2, None)]
    assert len({one for one, _ in unseeded}) == len({other for _, other in unseeded}) == 4
    seeded = [*run_ranks(draw, 2, 5), *run_ranks(draw, 2, 5)]
    assert len({one for one, _ in seeded}) == 1
    assert torch.equal(before, torch.get_rng_state())


def test_right_programs_raise_no_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups with different numbers of calls, uneven and asynchronous ones, DDP, HSDP, tensor parallel, objects.

    The recorder is so small here that it forgets most of it.
    """
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "16")

    def everything() -> list[Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        rank, ranks = dist.get_rank(), dist.get_world_size()
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        for _ in range(30 if rank < 2 else 2):
            dist.all_reduce(torch.ones(3 + rank // 2), group=pairs[rank // 2])
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        turn = [dist.P2POp(dist.isend, torch.ones(rank + 1), (rank + 1) % ranks)]
        turn.append(dist.P2POp(dist.irecv, torch.ones((rank - 1) % ranks + 1), (rank - 1) % ranks))
        for request in dist.batch_isend_irecv(turn):
            request.wait()
        parts = [(rank + other) % ranks for other in range(ranks)]
        dist.all_to_all_single(torch.empty(sum(parts)), torch.ones(sum(parts)), parts, parts)
        dist.gather(torch.ones(2), [torch.empty(2) for _ in range(ranks)] if rank == 0 else None)
        dist.scatter(torch.ones(2), [torch.ones(2)] * ranks if rank == 1 else None, src=1)
        objects = [None] * ranks
        dist.all_gather_object(objects, {"rank": rank})
        model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(torch.ones(2, 7)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        replica = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
        with replica.no_sync():
            replica(torch.ones(2, 3)).sum().backward()
        replica(torch.ones(2, 3)).sum().backward()
        columns = parallelize_module(nn.Linear(8, 8), init_device_mesh("cpu", (ranks,)), ColwiseParallel())
        columns(torch.ones(2, 8)).sum().backward()
        if rank == 3:  # a rank may go on alone after the last common call
            time.sleep(0.8)
        return objects

    assert run_ranks(everything, 4) == [[{"rank": rank} for rank in range(4)]] * 4


def test_calls_that_the_recorder_has_forgotten_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has met rank 1 so long ago that only rank 1's recorder still knows it."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "16")

    def work() -> None:
        first, second = dist.new_group([0, 1]), dist.new_group([0, 2])
        if dist.get_rank() != 2:
            dist.all_reduce(torch.ones(2), group=first)
        for _ in range(40 if dist.get_rank() != 1 else 0):
            dist.all_reduce(torch.ones(2), group=second)

    assert run_ranks(work, 3) == [None, None, None]


def test_what_was_told_before_the_recorder_forgot_the_rest_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is late, so that both tell what they called so far; rank 1's second call in the pair is told by nobody."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "16")

    def work() -> None:
        pair = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(2), group=pair)
        time.sleep(1.2 * dist.get_rank())
        dist.all_reduce(torch.ones(2), group=pair)
        for _ in range(40):
            dist.all_reduce(torch.ones(2))

    assert run_ranks(work, 2) == [None, None]


def test_the_record_is_read_beside_groups_that_a_rank_is_not_in() -> None:
    """With one rank late; and a call after such a group that the other does not make is told of at once."""

    def work(calls: int) -> None:
        dist.all_reduce(torch.ones(2))
        time.sleep(1.2 * dist.get_rank())
        dist.all_reduce(torch.ones(2))
        for rank in range(2):
            dist.new_group([rank])
        for _ in range(calls if dist.get_rank() else 1):
            dist.all_reduce(torch.ones(2))

    assert run_ranks(work, 2, 1) == [None, None]
    with pytest.raises(RankError, match="rank 0 of 2 returned without the all_reduce that rank 1 called"):
        run_ranks(work, 2, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a rank of the pool would keep what is replaced here")
def test_a_rank_that_returns_while_it_tells_where_it_stood() -> None:
    """Its return does not overtake the calls that another thread of it is about to tell."""

    def work() -> None:
        from types import SimpleNamespace

        from course_lib.parallel import _rank

        asked, dumps = threading.Event(), _rank.cloudpickle.dumps

        def slow(what: Any) -> bytes:
            if what[0] == "place":
                asked.set()
                time.sleep(1.5)
            return bytes(dumps(what))

        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 1:
            setattr(_rank, "cloudpickle", SimpleNamespace(dumps=slow))  # noqa: B010
            asked.wait()

    assert run_ranks(work, 2) == [None, None]


def test_the_function_may_end_the_group_itself_as_a_script_does() -> None:
    def script() -> int:
        dist.all_reduce(torch.ones(2))
        dist.barrier()
        dist.destroy_process_group()
        return 7

    assert run_ranks(script, 2) == [7, 7]


def test_folder_path_environment_and_modules_are_those_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    (folder / "learners_own.py").write_text("value = 1\n", encoding="utf-8", newline="\n")

    def look() -> tuple[int, str, str | None, bool]:
        import learners_own  # type: ignore[import-not-found]

        return learners_own.value, os.getcwd(), os.environ.get("COURSE_TEST"), "course_lib.trainer" in sys.modules

    run_ranks(lambda: None, 1)  # the fork server is there, with the path of before
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("COURSE_TEST", "one")
    assert run_ranks(look, 1) == [(1, str(folder), "one", False)]
    (folder / "learners_own.py").write_text("value = 22\n", encoding="utf-8", newline="\n")
    monkeypatch.delenv("COURSE_TEST")
    assert run_ranks(look, 2) == [(22, str(folder), None, False)] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be removed there")
def test_a_removed_working_directory_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_ranks(dist_rank, 2) == [0, 1]


def dist_rank() -> int:
    """Of this module: a rank imports it by name."""
    return dist.get_rank()


def test_after_a_threaded_backward_and_from_two_threads() -> None:
    """Forking this process would hang now; the fork server's threads are not these."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(400, 400, requires_grad=True).matmul(torch.ones(400, 400)).sum().backward()
    torch.set_num_threads(before)
    found: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda one=ranks: found.update({one: run_ranks(dist_rank, one)}))  # type: ignore[misc]
               for ranks in (1, 2, 3)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {1: [0], 2: [0, 1], 3: [0, 1, 2]}


def test_later_calls_take_half_a_second_at_most() -> None:
    run_ranks(lambda: None, 4)
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        run_ranks(lambda: None, 4)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5, seconds


def give_generator() -> Any:
    return (number for number in range(3))


def nested() -> Any:
    return run_ranks(dist_rank, 2)


def uses(value: Any) -> Callable[[], Any]:
    def function() -> Any:
        return value

    return function


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("no ranks", lambda: run_ranks(dist_rank, 0), "ranks=0 has to be from 1 to 64"),
    ("less", lambda: run_ranks(dist_rank, -2), "ranks=-2 has to be from 1 to 64"),
    ("half", lambda: run_ranks(dist_rank, 1.5), "ranks=1.5 has to be a whole number"),  # type: ignore[arg-type]
    ("text", lambda: run_ranks(dist_rank, "2"), "ranks='2' has to be a whole number"),  # type: ignore[arg-type]
    ("bool", lambda: run_ranks(dist_rank, True), "ranks=True has to be from 1"),
    ("too many", lambda: run_ranks(dist_rank, 1024), "fake_ranks simulates them"),
    ("called", lambda: run_ranks(3, 2), "calls a function, and 3 is none"),  # type: ignore[arg-type]
    ("no time", lambda: run_ranks(dist_rank, 2, timeout=0), "timeout=0 has to be a number of seconds above 0"),
    ("endless", lambda: run_ranks(dist_rank, 2, timeout=float("inf")), "timeout=inf has to be"),
    ("argument", lambda: run_ranks(dist_rank, 2, 5, threading.Lock()), "argument 2 of dist_rank cannot be sent"),
    ("keyword", lambda: run_ranks(dist_rank, 2, lock=threading.Lock()), "argument 'lock' of dist_rank cannot be"),
    ("captured", lambda: run_ranks(uses(threading.Lock()), 2), "'value', which function uses, cannot be sent"),
    ("result", lambda: run_ranks(give_generator, 2), "returned something that cannot be sent back: generator"),
    ("nested", lambda: run_ranks(nested, 1), "run_ranks was called on rank 0 of another run_ranks"),
]


@pytest.mark.parametrize("call, text", [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_wrong_use_is_one_clear_line(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(RankError) as caught:
        call()
    assert text in str(caught.value).splitlines()[0]
    assert run_ranks(dist_rank, 2) == [0, 1]


def test_a_module_that_a_rank_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_up_here")
    exec("def work():\n    return 1\n", module.__dict__)
    module.work.__module__ = "made_up_here"
    monkeypatch.setitem(sys.modules, "made_up_here", module)
    with pytest.raises(RankError) as caught:
        run_ranks(module.work, 2)
    first, second, *_ = str(caught.value).splitlines()
    assert re.match(
        r"rank \d of 2 could not read the function or its arguments: ModuleNotFoundError: .*made_up_", first
    )
    assert "importable" in second and caught.value.ranks == (0, 1)


def test_a_result_of_a_class_that_only_the_rank_knows(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("class Thing:\n    pass\n", encoding="utf-8", newline="\n")

    def work() -> Any:
        sys.path.insert(0, str(tmp_path))
        import only_there  # type: ignore[import-not-found]

        return only_there.Thing()

    with pytest.raises(RankError, match="rank 0 returned something that cannot be read here: ModuleNotFoundError"):
        run_ranks(work, 1)


def test_under_torchrun_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(RankError, match="torchrun has started the ranks already; use `with join_ranks"):
        run_ranks(dist_rank, 2)


def test_no_gloo_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(RankError, match="no gloo"):
        run_ranks(dist_rank, 2)
