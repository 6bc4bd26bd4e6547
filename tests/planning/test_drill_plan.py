"""The drill: what each failure costs is what the cadence says, and the drills do not get in each other's way."""

from dataclasses import replace

import pytest

from course_lib.errors import ConfigError
from course_lib.planning.drill import COMPARED, fewer_data_ranks
from course_lib.planning.plan import plan
from course_lib.planning.presets import preset, presets
from course_lib.planning.rules import check


@pytest.mark.parametrize("name", presets())
def test_drills_of_every_preset(name):
    made = plan(preset(name))
    steps = [one.at_step for one in made.drill]
    assert steps == sorted(steps) and len({one.key for one in made.drill}) == len(made.drill)
    assert made.drill and all(0 < step <= made.amount.steps for step in steps)
    for one in made.drill:
        assert one.inject and one.expect and one.proof and one.lost_steps >= 0 and one.minutes >= 0
        assert one.lost_steps <= one.at_step


def test_what_a_killed_rank_costs():
    """From the failure to where the run was: a restart, and the steps since the last checkpoint."""
    made = plan(preset("7b-on-64-a100"))
    every, seconds = made.cadence.every_steps, made.time.step_seconds
    drills = {one.key: one for one in made.drill}
    killed = drills["killed_rank"]
    since = killed.at_step - 2 * every
    assert killed.lost_steps == since == every // 2  # halfway: about what the plan expects of a failure
    assert killed.lost_steps * seconds == pytest.approx(made.cadence.lost_seconds, rel=0.05)
    assert killed.minutes == pytest.approx(10 + since * seconds / 60)
    assert f"from step {2 * every}" in killed.expect and f"{COMPARED} after" in killed.proof
    assert drills["resume"].lost_steps == 0 and drills["resume"].at_step == every
    writing = drills["killed_while_writing"]
    assert writing.lost_steps == every and f"from step {writing.at_step - every}" in writing.expect


def test_a_corrupt_checkpoint_costs_nearly_two_cadences():
    made = plan(preset("70b-on-512-h100"))
    every = made.cadence.every_steps
    one = next(each for each in made.drill if each.key == "corrupt_checkpoint")
    whole = int(one.expect.rsplit("step ", 1)[1])
    newest = one.at_step // every * every
    assert newest - whole == every and one.at_step - whole == one.lost_steps == 2 * every - 1


def test_a_nan_is_not_skipped_and_forgotten():
    """It stops the run before a checkpoint can hold it, and costs a restart; only a loss scale skips."""
    made = plan(preset("7b-on-64-a100"))
    one = next(each for each in made.drill if each.key == "nan")
    every = made.cadence.every_steps
    assert f"restarts from step {7 * every}" in one.expect and "before a checkpoint is written" in one.expect
    assert one.at_step - one.lost_steps == 7 * every
    assert one.minutes == pytest.approx(10 + made.time.step_seconds / 60) and "not finite" in one.proof


def test_each_begins_after_the_last_has_caught_up():
    """By then the run is past where it was, and has a new checkpoint to fall back to."""
    made = plan(preset("7b-on-64-a100"))
    every = made.cadence.every_steps
    for before, after in zip(made.drill, made.drill[1:], strict=False):
        assert after.at_step - before.at_step >= every / 2 and after.at_step > before.at_step


@pytest.mark.parametrize("name", presets())
def test_fewer_ranks_are_a_legal_layout(name):
    made = plan(preset(name))
    fewer, layout = fewer_data_ranks(made), made.run.layout
    drills = {one.key: one for one in made.drill}

    def legal(data: int) -> bool:
        devices = data * layout.tensor * layout.pipeline * layout.context
        try:
            check(
                replace(
                    made.run,
                    hardware=replace(made.run.hardware, devices=devices),
                    layout=replace(layout, data=data),
                )
            )
        except ConfigError:
            return False
        return True

    smaller = [data for data in range(1, layout.data) if legal(data)]
    assert fewer == max(smaller, default=None)
    if fewer is not None and "lost_node" in drills:
        assert f"{fewer} data-parallel ranks of {layout.data}" in drills["lost_node"].expect


def test_a_short_run_has_fewer_drills():
    run = preset("7b-on-64-a100")
    short = plan(replace(run, data=replace(run.data, tokens=300 * run.batch_tokens)))
    assert [one.key for one in short.drill] != [one.key for one in plan(run).drill]
    assert all(one.at_step <= 300 for one in short.drill)
