"""Long skips over a pipeline: the same model, and the bytes that the formula says."""

from functools import partial

import pytest
import torch

from course_lib.config import preset
from course_lib.errors import ConfigError
from course_lib.parallel.equivalence import equivalence, uneven_batches
from course_lib.parallel.pipeline import Pipeline
from course_lib.parallel.skips import SkipGPT, skip_traffic, split_skips
from course_lib.planning.communication import Boundary, boundary_bytes

SHAPE = preset("mini", n_layers=8, d_model=16, n_heads=2, d_ff=16, vocab_size=27, context=16, tie_embeddings=False)
SKIPS = {"none": [], "one": [(0, 7)], "three": [(0, 7), (0, 5), (2, 7)], "to the next": [(3, 4), (4, 5)]}


@pytest.mark.parametrize("skips", SKIPS.values(), ids=SKIPS)
@pytest.mark.parametrize("ranks", [4])
def test_bytes_over_each_boundary_are_as_the_formula_says(ranks: int, skips: list[tuple[int, int]]) -> None:
    found = skip_traffic(ranks, skips, micro_batches=3, sequences=2, shape=SHAPE, length=8)
    assert found == boundary_bytes([8 // ranks] * ranks, 3, 16, 16, skips=skips)


@pytest.mark.parametrize("stages", [1, 2, 3, 8, 9])
def test_stages_one_after_the_other_are_the_model(stages: int) -> None:
    model = SkipGPT(SHAPE, SKIPS["three"])
    x = tokens = torch.arange(16).view(2, 8)
    for place, stage in enumerate(split_skips(model, stages)):
        if place:
            assert stage.arrives(tokens).shape == x.shape
        x = stage(x)
    assert torch.equal(x, model(tokens))
    assert not torch.allclose(x, SkipGPT(SHAPE, [])(tokens))


@pytest.mark.parametrize(
    "options", [{}, {"schedule": "zbv"}, {"schedule": "interleaved", "chunks": 2, "by_torch": True}]
)
def test_a_skip_changes_nothing_of_what_is_learned(options: dict) -> None:
    strategy = partial(Pipeline, split=split_skips, **options)
    model = partial(SkipGPT, SHAPE, SKIPS["three"])
    found = equivalence(strategy, 2, micro_batches=4, make_model=model, batches=uneven_batches(2, 4, 3))
    assert found.equal and found.loss_error < 1e-5, found


def test_the_formula() -> None:
    assert boundary_bytes(2, 8, 2048, 1024, 2) == [Boundary(8 * 2048 * 1024 * 2, 8 * 2048 * 1024 * 2)]
    assert boundary_bytes(1, 8, 2048, 1024) == []

    def tensors(stages: int | list[int], skips: list[tuple[int, int]]) -> list[int]:
        return [each.forward for each in boundary_bytes(stages, 1, 1, 1, 1, skips)]

    assert tensors(4, [(0, 3)]) == [1, 2, 2]  # right behind block 0 its output is the stream
    assert tensors([2, 2, 2, 2], [(0, 7)]) == [2, 2, 2]
    assert tensors([2, 2, 2, 2], [(1, 7)]) == [1, 2, 2]
    assert tensors([2, 2, 2, 2], [(0, 3)]) == [2, 1, 1]
    assert tensors([2, 2, 2, 2], [(0, 1), (2, 3)]) == [1, 1, 1]  # inside a stage
    assert tensors([2, 2, 2, 2], [(0, 7), (0, 6), (1, 7)]) == [2, 3, 3]  # two from one block are one tensor
    dense = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    assert tensors(8, dense) == [1, 2, 3, 4, 5, 6, 7]  # every block reads every earlier one
    for stages, skips in ((4, [(3, 3)]), (4, [(0, 4)]), (4, [(-1, 2)]), ([2, -1], [])):
        with pytest.raises(ConfigError, match=r"must go from a block to a later one|at least 0"):
            tensors(stages, skips)
    with pytest.raises(ConfigError, match="tokens=0 must be above 0"):
        boundary_bytes(2, 1, 0, 1)
    with pytest.raises(ConfigError, match=r"skip \(3, 3\) must go to a later block"):
        SkipGPT(SHAPE, [(3, 3)])
