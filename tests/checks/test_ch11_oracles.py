"""What chapter 11's exercises call right, against the real all-to-all, autograd, the schedules, and the formulas."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_lib.checks.ch11 import MIXTRAL, _cost
from course_lib.checks.ch11_balance import BALANCE, _gradient, _rule
from course_lib.checks.ch11_capacity import CAPACITY, _kept
from course_lib.checks.ch11_exchange import EXCHANGE, _outputs
from course_lib.checks.ch11_next import STAGES, outcome
from course_lib.checks.ch11_place import BUBBLE, RUNS, _breaks, held, place
from course_lib.machine import material_dir
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.schedule import simulate
from course_lib.planning.clusters import MODELS
from course_lib.planning.communication import shard_bytes
from course_lib.planning.formulas import model_params

sys.path.insert(0, str(Path(__file__).parents[1] / "exercises"))
from mutants import references


def test_mixtral_has_its_published_sizes() -> None:
    """Jiang et al. 2024 print 47B and 13B; 46.7 and 12.9 are the release's own figures."""
    found = _cost(MIXTRAL)
    assert found["total"] == 46_702_792_704  # the parameters of the release
    assert round(found["total"] / 1e9, 1) == 46.7 and round(found["active"] / 1e9, 1) == 12.9


class _Real:
    """`me` of exercise 11.2, with torch's all-to-all."""

    def __init__(self, weights: np.ndarray) -> None:
        self.rank, self.ranks, self.n_experts = dist.get_rank(), dist.get_world_size(), len(weights)
        here = self.n_experts // self.ranks
        self.mine, self.weights = range(self.rank * here, (self.rank + 1) * here), torch.from_numpy(weights)

    def expert(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        return (rows @ self.weights[number]).tanh()

    def exchange(self, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        out = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), receive, send)
        return out


def test_the_reference_is_right_with_the_real_all_to_all() -> None:
    """On three ranks, all cases of three ranks: an unused expert, a rank that nobody chooses, a rank without tokens."""
    layer = references("11", material_dir() / "solutions")["all-to-all"]["layer"]
    cases = [case for case in EXCHANGE.cases(3) if len(case["tokens"]) == 3]
    assert len(cases) == 3

    def work() -> list[Any]:
        found = []
        for case in cases:
            given = (torch.from_numpy(case[key][dist.get_rank()]) for key in ("tokens", "chosen", "gates"))
            found.append(layer(*given, _Real(case["weights"])).numpy())
        return found

    ranks = run_ranks(work, 3, timeout=90)
    for number, case in enumerate(cases):
        for rank, right in enumerate(_outputs(case)):
            assert np.allclose(ranks[rank][number], right, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_the_gates_is_autograds(seed: int) -> None:
    for case in BALANCE.cases(seed):
        if "scores" not in case:
            continue
        scores = torch.tensor(case["scores"], dtype=torch.float64, requires_grad=True)
        mask = torch.tensor(_rule(case)[1])
        gates = scores * mask / (scores * mask).sum(1, keepdim=True)
        weights = torch.linspace(-1, 1, gates.numel(), dtype=torch.float64).view_as(gates).cos()
        (gates * weights).sum().backward()
        assert scores.grad is not None and np.allclose(scores.grad.numpy(), _gradient(case), atol=1e-6)


def test_only_the_order_of_the_sequence_keeps_the_past_from_the_future() -> None:
    """Claim 36's bound, in the exercise's rules: another last token, and what of the earlier ones changes."""
    changed = {}
    for case in CAPACITY.cases(0):
        before, seen = _kept(case), 0
        for expert in range(case["n_experts"]):
            other = case | {"experts": case["experts"].copy()}
            k = other["experts"].shape[2]
            other["experts"][0, -1] = [(expert + j) % case["n_experts"] for j in range(k)]
            seen += int((_kept(other)[0, :-1] != before[0, :-1]).sum())
        changed[case["name"]] = (case["priority"], seen)
    assert all(seen == 0 for priority, seen in changed.values() if priority == "token")
    assert any(seen for priority, seen in changed.values() if priority == "choice")


def test_sizes_of_the_70b_models_are_the_courses() -> None:
    for variant, run in enumerate(RUNS):
        if run["name"] in MODELS:
            size, run = sum(model_params(MODELS[run["name"]]).values()), place(variant)
            assert run["layers"] * run["layer"] + 2 * run["embedding"] == size - run["width"]  # the last norm


@pytest.mark.parametrize(("zero", "name"), [(0, "ddp"), (1, "zero1"), (3, "fsdp")])
def test_state_is_that_of_the_formulas(zero: int, name: str) -> None:
    """One stage and no tensor parallel: all parameters, and what FSDP has whole for a while."""
    run, at = place(0), {"data": 64, "tensor": 1, "pipeline": 1, "micro_batch": 1, "micro_batches": 2, "zero": zero}
    parameters = run["layers"] * run["layer"] + 2 * run["embedding"]
    whole = 6 * run["layer"] if zero == 3 else 0
    assert held(run, at)["state"] == pytest.approx(sum(shard_bytes(name, parameters, 64).values()) + whole, rel=1e-12)


def test_every_first_stage_holds_what_1f1b_holds() -> None:
    for pipeline, micro_batches in ((1, 4), (2, 8), (4, 2), (4, 16)):
        peak = simulate("1f1b", pipeline, micro_batches).peak_in_flight[0]
        at = {"data": 1, "tensor": 1, "pipeline": pipeline, "micro_batch": 1, "micro_batches": micro_batches, "zero": 0}
        run = place(0)
        one = run["kept"] * run["sequence"] * (run["layers"] // pipeline)
        assert held(run, at)["activations"] == pytest.approx(peak * one, rel=1e-12)
    line = simulate("1f1b", 4, 48)
    assert pytest.approx(line.bubble_fraction) == (4 - 1) / (48 + 4 - 1) and line.bubble_fraction < BUBBLE


@pytest.mark.parametrize("variant", range(8))
def test_there_are_several_right_layouts_and_many_wrong_ones(variant: int) -> None:
    run, fits, tried = place(variant), [], 0
    for tensor in (1, 2, 4, 8):
        for pipeline in (1, 2, 4, 8, 16):
            data = 64 // tensor // pipeline
            for micro_batch in (1, 2, 4):
                if data and data * tensor * pipeline == 64 and run["batch"] % (data * micro_batch) == 0:
                    for zero in (0, 1, 3):
                        at = {"data": data, "tensor": tensor, "pipeline": pipeline, "micro_batch": micro_batch}
                        at |= {"micro_batches": run["batch"] // data // micro_batch, "zero": zero}
                        tried += 1
                        fits += [at] if _breaks(run, at) is None else []
    assert 2 <= len(fits) < tried / 5
    assert not any(at["tensor"] == 1 for at in fits), "activations alone want tensor parallel here"


def test_interleaving_does_what_the_question_says() -> None:
    """Half the bubble at 1 + (p-1)/(2p) times the activations of the first stage, in the simulator."""
    plain, two = simulate("1f1b", STAGES, 16), simulate("interleaved", STAGES, 16, chunks=2)
    growth = two.peak_in_flight[0] / 2 / plain.peak_in_flight[0]  # a chunk is half a stage
    assert growth == 1 + (STAGES - 1) / (2 * STAGES)
    assert two.idle_over_ideal == pytest.approx(plain.idle_over_ideal / 2)
    run: dict[str, Any] = {
        "compute": 1000,
        "waits": {"gather": 200, "stage": 300, "expert": 50},
        "whole": 200,
        "data": 64,
        "activations": 30,
        "sends": {"A": 3.0, "B": 45.0, "C": 20.0, "D": 2.0},
    }
    assert outcome(run, "D") == (1440, 200 / 64 + 41.25) and outcome(run, "B")[0] == 1500  # the hint's numbers
