"""A run that is stopped three times arrives at the same bits, and virtual time undoes the steps that it undid."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from course_lib.errors import ConfigError
from course_lib.failures import miniature, runbook
from course_lib.failures.miniature import CADENCE, LOOKS, STEPS, Done, Strike, draw, replay
from course_lib.planning.cadence import expected_lost


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return miniature.run_through(tmp_path_factory.mktemp("miniature") / "new", draw())


def test_it_arrives_at_the_same_bits(done: Done) -> None:
    assert done.same_bits and len(done.digest) == 64
    assert [stop.strike.kind for stop in done.stops] == list(miniature.KINDS)
    assert len(done.passes) == STEPS + done.lost and done.passes[-1][0] == STEPS - 1
    assert [stop.line for stop in done.stops] == [runbook.STOPS[kind] for kind in miniature.KINDS]


def test_virtual_time_undoes_what_the_real_run_undid(done: Done) -> None:
    assert replay(draw()).lost == tuple(stop.lost for stop in done.stops)


def test_what_is_passed_over_is_told(done: Done) -> None:
    killed, corrupt, nan = done.stops
    assert killed.passed_over == () and "rank 1 of 2 was ended by SIGKILL" in killed.said
    assert len(corrupt.passed_over) == 1 and "its checksum differs" in corrupt.passed_over[0]
    assert len(nan.passed_over) == 1 and "complete, but" in nan.passed_over[0] and "not finite" in nan.passed_over[0]
    assert "the loss is nan since step 20, seen after step 24" in nan.said
    assert all(0 < stop.down < 60 for stop in done.stops) and done.seconds_a_step > 0 and done.seconds_a_save > 0


def test_a_nan_is_in_the_log_until_it_is_seen(done: Done) -> None:
    bad = [k for k, (_, loss) in enumerate(done.passes) if not np.isfinite(loss)]
    stop = done.stops[2]
    assert len(bad) == stop.noticed - (16 + draw()[2].after + 1) and bad == list(range(bad[0], bad[0] + len(bad)))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_with_a_nan_is_not_usable(name: str, tmp_path: Path) -> None:
    """Also one whose checksums are right: the marker says how it was written, not what was in it."""
    from course_lib.store import write_folder
    from course_lib.trainer import Trainer

    config = miniature.config(tmp_path / "out")
    trainer = Trainer(type(config)(**{**vars(config), "parallel": "none"}))
    good = trainer.save(tmp_path / "good")
    assert miniature.usable(good) is None
    for path in good.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / name) or {"only": torch.zeros(1)}
    key = sorted(tensors)[0]
    tensors[key] = torch.full_like(tensors[key], float("nan"), dtype=torch.float32)
    save_file(tensors, tmp_path / name)
    names = [path.name for path in good.iterdir() if path.name != "COMPLETE.json"]
    bad = write_folder(tmp_path / "bad", {each: [(tmp_path / each).read_bytes()] for each in names})
    assert miniature.usable(bad) == f"complete, but 1 tensors of {name} are not finite"


def test_the_rules_of_virtual_time_by_hand() -> None:
    assert replay([Strike("killed", CADENCE + 3)]).lost == (3,)
    assert replay([Strike("killed", 3)]).lost == (3,)  # no checkpoint yet: from the start
    assert replay([Strike("corrupt", 2 * CADENCE + 3)]).lost == (CADENCE + 3,)
    assert replay([Strike("corrupt", CADENCE + 3)]).lost == (CADENCE + 3,)
    assert replay([Strike("nan", CADENCE)]).lost == (10 - CADENCE,) and LOOKS == 5  # loss nan in step 9, seen after it
    assert replay([Strike("killed", 10), Strike("killed", 1)]).lost == (2, 1)
    assert replay([Strike("killed", STEPS)]).lost == ()
    assert replay([Strike("nan", STEPS - 1)]).lost == ()  # nobody looks again before the end


def test_whether_a_nan_is_saved_before_it_is_seen(done: Done) -> None:
    """It is looked for after steps 5, 10, 15 ..., and before a step's own save."""
    assert replay(draw()).saved_nan and "complete, but" in done.stops[2].passed_over[0]
    for after, saved in (
        (6, True),
        (7, True),
        (8, False),
        (13, False),
        (14, True),
        (32, False),
        (38, False),
        (39, True),
    ):
        assert replay([Strike("nan", after)]).saved_nan is saved, after
    assert not replay(draw(), every=10_000).saved_nan
    assert not replay([Strike("killed", 7)]).saved_nan


def test_clean_stops_undo_what_the_formula_says() -> None:
    """In whole steps: half a step less than in continuous time, on average."""
    lost = [replay(miniature.only(draw(seed), "killed"), steps_of_run=10**6).total / 3 for seed in range(4000)]
    wanted = expected_lost(CADENCE, 0.0, miniature.MEAN) - 0.5
    # Exactly, an exponential gap rounded down has a mean remainder of 3.18; the difference to 3.17 is of second order.
    assert np.mean(lost) == pytest.approx(wanted, abs=0.06 + 3 * np.std(lost) / np.sqrt(len(lost)))


def test_an_unknown_kind() -> None:
    with pytest.raises(ConfigError, match="kind='rain' is unknown"):
        miniature.run_through(Path("nowhere"), [Strike("rain", 3)])
