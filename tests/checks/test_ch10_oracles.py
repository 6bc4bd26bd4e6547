"""What the checks of chapter 10 take for right is what PyTorch computes and what real ranks send."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks.ch10_blocks import Blocks, Processes
from course_lib.checks.ch10_group import Apart, Group, together
from course_lib.checks.ch10_linear import layer_cases, whole
from course_lib.checks.ch10_ring import _attention, _by_rank, ring_cases
from course_lib.checks.ch10_traffic import KINDS, calls, tensor_traffic_text
from course_lib.checks.ch10_zigzag import _folded
from course_lib.config import ModelConfig
from course_lib.model import GPT
from course_lib.parallel.context import zigzag_positions
from course_lib.parallel.equivalence import adamw
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.tensor import TensorParallel
from course_lib.parallel.traffic import count_traffic, fake_ranks


def numbers(rank: int) -> Tensor:
    return torch.arange(18.0).view(3, 6) * 10.0**rank


def on_real_ranks() -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    total, parts, own = numbers(rank), [torch.empty(3, 6) for _ in range(size)], torch.empty(1, 6)
    dist.all_reduce(total)
    dist.all_gather(parts, numbers(rank))
    dist.reduce_scatter_single(own, numbers(rank))
    return [total, torch.cat(parts, -1), own, *Processes(rank, size).rotate(numbers(rank), torch.tensor([rank]))]


def here(group: Group) -> list[Tensor]:
    x = numbers(group.rank)
    found = [group.all_gather(x), group.reduce_scatter(x, 0), *group.rotate(x, torch.tensor([group.rank]))]
    return [group.all_reduce(x), *found]


def test_ranks_in_one_process_compute_what_real_ones_do() -> None:
    for real, own in zip(run_ranks(on_real_ranks, 3), together(here, 3), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(real, own, strict=True))


def test_what_a_rank_prints_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    def work(group: Group) -> None:
        print(group.rank, "before")
        print(group.rank, float(group.all_reduce(torch.ones(1))))

    together(work, 2)
    assert capsys.readouterr().out == "0 before\n0 2.0\n1 before\n1 2.0\n"


def test_ranks_that_do_not_go_together_are_told() -> None:
    one = torch.ones(1)
    with pytest.raises(Apart, match=r"rank 0 waits in all_reduce of \(1,\).* and rank 1 has ended without such a call"):
        together(lambda group: group.all_reduce(one) if group.rank == 0 else None, 2)
    with pytest.raises(Apart, match=r"rank 0 calls all_reduce of \(1,\).*, rank 1 all_reduce of \(2,\)"):
        together(lambda group: group.all_reduce(torch.ones(1 + group.rank)), 2)
    with pytest.raises(Apart, match=r"rank 0 calls all_gather of \(1,\).*, rank 1 rotate of \(1,\)"):
        together(lambda group: group.all_gather(one) if group.rank == 0 else group.rotate(one), 2)
    with pytest.raises(ZeroDivisionError):
        together(lambda group: 1 // group.rank, 2)
    with pytest.raises(TypeError, match="takes tensors; yours is a float"):
        together(lambda group: group.all_reduce(1.0), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 ranks do not divide dimension 0"):
        together(lambda group: group.reduce_scatter(torch.ones(3), 0), 2)


@pytest.mark.parametrize("split", ["output", "input"])
def test_partial_products_of_the_ranks_add_up(split: str) -> None:
    for case in layer_cases(3, 9, {"any": (3, 6, 9, 2, 5)}):
        right = whole(case, split)
        wanted = right["x_grad"] if split == "output" else right["y"] - case["bias"]
        torch.testing.assert_close(right["partial"].sum(0), wanted)


def elements(layers: int, options: dict[str, str]) -> dict[str, int]:
    """Of the collectives of `layers` blocks on four pretended ranks; norms' gradients are sent at the step's end."""
    shape = ModelConfig(vocab_size=32, d_model=16, n_layers=layers, n_heads=4, d_ff=8, context=8)
    found: dict[str, int] = {}
    with fake_ranks(4):
        strategy = TensorParallel(GPT(shape), adamw, **options)  # type: ignore[arg-type]
        tokens = torch.zeros(3, 8, dtype=torch.long)
        with count_traffic() as traffic:
            strategy.forward_backward(*strategy.share(tokens, tokens), 24)
    for call in traffic.calls:
        if call.elements == 3 * 8 * 16:
            found[call.kind] = found.get(call.kind, 0) + 1
    return found


@pytest.mark.parametrize("kind", KINDS[1:3], ids=["gathered again", "kept"])
def test_blocks_call_what_the_check_says(kind: dict[str, object]) -> None:
    sequence = "regather" if kind["again"] else "keep"
    for options, split in (({}, False), ({"sequence": sequence}, True)):
        one, two = elements(1, options), elements(2, options)
        listed = list(calls(kind, sequence=split))
        told = {name: listed.count(name.replace("_", "-")) for name in two}
        assert {name: two[name] - one.get(name, 0) for name in two} == told


@pytest.mark.parametrize("variant", range(len(KINDS)))
def test_the_question_is_text_in_lines(variant: int) -> None:
    lines = tensor_traffic_text(variant).splitlines()
    assert all(not line or 15 <= len(line) <= 118 for line in lines), lines


def test_the_folded_strip_is_the_zig_zag() -> None:
    for ranks, chunk in ((1, 3), (2, 2), (5, 3)):
        length = 2 * ranks * chunk
        assert _folded(length, ranks) == [row.tolist() for row in zigzag_positions(length, ranks)]


def test_the_ring_s_oracle_and_its_parts_are_attention() -> None:
    for case in ring_cases(5):
        q, k, v = (case[name].double() for name in ("q", "k", "v"))
        wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        place = case["rows"].flatten()
        found = _attention(case, place <= place[:, None])
        torch.testing.assert_close(found, _by_rank(case, wanted[:, place]))
        blocks, seen = Blocks(), torch.ones(q.shape[1], k.shape[1]).tril().bool()
        halves = [blocks.attend(q, k[:, at], v[:, at], seen[:, at]) for at in torch.arange(k.shape[1]).tensor_split(2)]
        torch.testing.assert_close(blocks.finish(blocks.merge(halves[1], halves[0])), wanted)
