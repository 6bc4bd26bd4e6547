"""A run that is ruined by one accumulator: the twin is torch's AdamW, and nothing else differs."""

import math

import pytest
import torch

from course_lib.errors import ConfigError
from course_lib.failures import records, ruined
from course_lib.failures.bias import measure
from course_lib.failures.ruined import CURES, Accumulator, train
from course_lib.precision import FORMATS
from course_lib.trainer import Trainer, training_step


def test_the_healthy_twin_is_the_trainers_own_run(monkeypatch) -> None:
    made: list[Trainer] = []

    class Kept(Trainer):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            made.append(Trainer(*args, **kwargs))

    monkeypatch.setattr(ruined, "Trainer", Kept)
    ours = train("weights", "bf16", "wider", steps=25)
    (plain,) = made
    plain.model.train()
    theirs = [training_step(plain.parts, step).loss for step in range(25)]
    assert ours.loss == pytest.approx(theirs, rel=1e-4)  # FP32 rounding in another order, over 25 updates


def test_nothing_else_differs() -> None:
    """The first loss is that of the same weights and batch; with the cure "wider" every accumulator is the same run."""
    runs = [train(name, fmt, "wider", 3, steps=21).loss for name, fmt in (("weights", "bf16"), ("gradients", "fp16"))]
    assert runs[0] == runs[1]
    assert train("second_moment", "bf16", "plain", 3, steps=21).loss[0] == runs[0][0]
    assert train("second_moment", "bf16", "plain", 3, steps=21).loss == train("second_moment", seed=3, steps=21).loss


def test_accumulators_round_as_the_formats_do() -> None:
    generator = torch.Generator().manual_seed(0)
    changes = 1e-3 * torch.rand(300, 5, generator=generator)
    for fmt in ("bf16", "fp16"):
        kept = {cure: Accumulator(torch.ones(5), fmt, cure, generator) for cure in CURES}
        by_hand = torch.ones(5).double()
        for change in changes:
            for one in kept.values():
                one.add(change)
            by_hand = torch.tensor(FORMATS[fmt].round((by_hand + change.double()).numpy()))
        assert (kept["plain"].value.double() == by_hand).all()
        right = 1 + changes.double().sum(0)
        error = {cure: float((one.value - right).abs().max()) for cure, one in kept.items()}
        ulp = FORMATS[fmt].ulp(1.0)
        assert error["wider"] < 1e-5 and error["kahan"] < ulp and error["stochastic"] < 20 * ulp
        assert all(
            (one.value.to(one.dtype).float() == one.value).all() for name, one in kept.items() if name != "wider"
        )
    assert measure("weight_updates", "bf16", width=8, steps=500).kind == "bias"  # the same sum, on its own


def test_bf16_weights_stop_and_lag_and_kahan_repairs_them() -> None:
    healthy, plain, kahan = (train("weights", "bf16", cure, 0, steps=100) for cure in ("wider", "plain", "kahan"))
    assert plain.final > healthy.final + 0.05
    assert abs(kahan.final - healthy.final) < 0.03
    assert plain.still[-1] > 0.5 and healthy.still[-1] < 0.01
    # A gain begins at 1, where half a spacing of BF16 is 0.002 below and 0.004 above, and an update is about 0.001.
    assert min(plain.still_gains) == 1 and plain.still[0] < 0.5 and max(healthy.still_gains) < 0.01


def test_a_part_of_the_weights_is_narrow_and_the_rest_is_not() -> None:
    whole, gains, matrices = (train("weights", steps=21, part=part) for part in ("all", "gains", "matrices"))
    assert min(gains.still_gains) == 1 and max(gains.still) < 0.05  # few of all weights are gains
    assert max(matrices.still_gains) < 0.01 < 0.05 < max(matrices.still)
    assert len({run.loss[-1] for run in (whole, gains, matrices)}) == 3


def test_fp16_cannot_hold_a_second_moment() -> None:
    for cure in ("plain", "kahan", "stochastic"):
        broken = train("second_moment", "fp16", cure, 0, steps=24)
        # Infinite, or a loss past all use: which of the two, a last bit decides.
        assert not broken.final < 1e3 and len(broken.loss) == len(broken.size) == 24
    assert math.isfinite(train("second_moment", "bf16", "plain", 0, steps=24).final)


def test_bad_input_says_what_there_is() -> None:
    for arguments in (("x",), ("weights", "fp8"), ("weights", "bf16", "x")):
        with pytest.raises(ConfigError, match="there are"):
            train(*arguments)


def test_recorded_over_ten_seeds() -> None:
    found = records.load("ruined")["final"]
    healthy, plain = found["weights bf16 wider"], found["weights bf16 plain"]
    assert len(healthy) == 10 and all(bad > good + 0.03 for bad, good in zip(plain, healthy, strict=True))
    for cure in ("kahan", "stochastic"):
        assert all(abs(a - b) < 0.03 for a, b in zip(found[f"weights bf16 {cure}"], healthy, strict=True))
    assert found["second_moment fp16 plain"] == [None] * 10
    beside = records.load("ruined")["beside"]
    low, high = beside["lr 0.001"], beside["lr 0.01"]
    assert low["behind"] == [round(bad - good, 4) for bad, good in zip(plain[:3], healthy[:3], strict=True)]
    assert sorted(high["behind"])[1] < 0.03 < min(low["behind"]) and low["still_gains"] == [1, 1, 1]
    assert all(
        0 < share < whole
        for part in ("gains", "matrices")
        for share, whole in zip(beside[part]["behind"], low["behind"], strict=True)
    )


@pytest.mark.stress
def test_the_gap_holds_over_ten_seeds() -> None:
    for seed in range(10):
        assert train("weights", "bf16", "plain", seed).final > train("weights", "bf16", "wider", seed).final + 0.03
