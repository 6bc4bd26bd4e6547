"""Chapter 1's pictures: what their titles say follows from the data, and every one of them renders."""

import numpy as np
import pytest

from course_lib.checks.ch01 import leak_curves
from course_lib.figures import objective
from course_lib.figures.style import png, title_of


def levels(peek: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    first = rng.dirichlet(np.ones(3))
    return [first, first[:, None] * rng.dirichlet(np.ones(3), size=3) * peek]


def test_the_tree_claims_a_width_of_1_only_when_it_has_it() -> None:
    assert "exactly as wide as 1" in title_of(objective.continuation_tree(levels(), "abc", "a"))
    assert "not as wide as 1" in title_of(objective.continuation_tree(levels(peek=1.2), "abc", "a"))


def test_the_order_turns_round_only_when_it_does() -> None:
    assert "turns round" in title_of(objective.two_units(["bpe", "bytes"], [4.1, 2.0], [2.3, 2.9]))
    assert "one order" in title_of(objective.two_units(["bpe", "bytes"], [4.1, 2.0], [3.3, 2.9]))


def test_titles_carry_the_numbers_of_the_run() -> None:
    assert "86 nats" in title_of(objective.surprise(["a", "b"], np.array([80.0, 6.0])))
    assert "Not shifted, the loss falls to 0.02" in title_of(
        objective.shift_curves({"right": [5, 3], "not shifted": [4, 0.02]})
    )
    assert "1.7 to 4.5" in title_of(objective.many_means([("a", "b", 1.66), ("c", "d", 4.45)], right=1))
    kinds = {"grammar": 0.1, "fact": 0.4, "noise": 2.0}
    assert "2.00 nats" in title_of(objective.memorised(kinds, {kind: 5.0 for kind in kinds}, kinds))
    curves = {kind: [5.0, value] for kind, value in kinds.items()}
    figure = objective.floor_curves([1, 400], curves, kinds, {"grammar": 20, "fact": 310, "noise": 25})
    assert title_of(figure) == "Facts come within 0.2 nats of the floor last, at step 310"
    assert "fact: 0.40, floor 0.40" in [text.get_text() for text in figure.axes[0].texts]
    never = objective.floor_curves([1, 400], curves, kinds, {"grammar": 20, "fact": 310, "noise": float("inf")})
    assert title_of(never) == "Noise comes within 0.2 nats of the floor at no step"
    assert "never" in [text.get_text() for text in never.texts]


@pytest.mark.parametrize("variant", [0, 1])
def test_the_four_runs_render(variant: int) -> None:
    picture = png(objective.four_runs(leak_curves(variant)))
    assert picture.width == 800 and picture.height > 400
