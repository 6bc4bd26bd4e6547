"""The pictures of chapter 9's runs say what they are given."""

import pytest

from course_lib.figures import pipeline_runs as figures
from course_lib.figures.style import png
from course_lib.parallel.schedule import simulate
from course_lib.parallel.updates import training_timeline


def words(fig):
    return [text.get_text() for text in fig.axes[0].texts]


def names(fig):
    return [text.get_text() for text in fig.axes[0].get_legend().get_texts()]


def test_lanes_are_where_the_slots_are():
    done = simulate("1f1b", 2, 2)
    fig = figures.run_lanes({"one": figures.bars_of(done.slots)}, title="t", unit="s", scale=10, row=[("1", "one")])
    boxes = {
        (round(float(path.vertices[:, 0].min()), 6), round(float(path.vertices[:, 0].max()), 6))
        for collection in fig.axes[0].collections
        for path in collection.get_paths()
    }
    assert boxes == {(0.0, 10 * done.makespan)} | {(10 * slot.start, 10 * slot.end) for slot in done.slots}
    assert "one" in words(fig) and "90 s" in words(fig)
    assert names(fig) == ["forward", "backward", "idle"]
    assert png(fig).data


def test_receives_end_where_the_action_begins_and_no_action_has_one_without_a_neighbour():
    done = simulate("1f1b", 2, 2)
    waits = [0.25 * (place + 1) for place in range(len(done.slots))]
    bars = figures.receives(done.slots, waits)
    wanted = [
        (slot, wait)
        for slot, wait in zip(done.slots, waits, strict=True)
        if (slot.kind, slot.stage) in {("B", 0), ("F", 1)}
    ]
    assert [(bar.rank, bar.end, bar.end - bar.start) for bar in bars] == [
        (slot.rank, slot.start, pytest.approx(wait)) for slot, wait in wanted
    ]
    fig = figures.run_lanes({"": [*figures.bars_of(done.slots), *bars]}, title="t")
    assert "in a receive" in names(fig)


def test_forwards_before_their_update_have_a_colour_of_their_own():
    eager = training_timeline("1f1b", 4, 8, steps=2, flush=False, sync=False)
    kinds = [bar.kind for bar in figures.step_bars(eager)]
    assert kinds.count("F2") == len(eager.stale) == 6 and kinds.count("U") == 8
    fig = figures.run_lanes({"eager": figures.step_bars(eager)}, title="t", remarks={"eager": "59"})
    assert names(fig) == ["forward", "backward", "update", "forward on old weights", "idle"]
    assert "59" in words(fig) and png(fig).data


def test_curves_dots_and_measured_ranges():
    fig = figures.bubble_by_micro_batches(
        {2: [(1, 0.5), (2, 1 / 3)]}, {2: [(1, 0.5), (2, 1 / 3)]}, [(2, 0.4, 0.35, 0.45)], title="t"
    )
    drawn = [(list(line.get_xdata()), [float(y) for y in line.get_ydata()]) for line in fig.axes[0].lines]
    assert ([2, 2], [35, 45]) in drawn and ([2], [40]) in drawn
    assert png(fig).data
    assert png(figures.bubble_by_micro_batches({2: [(1, 0.5)]}, {2: [(1, 0.5)]}, [], title="t")).data


def test_bars_of_memory_and_of_boundaries():
    fig = figures.held_by_rank({"GPipe": [8e6, 8e6], "1F1B": [2e6, 1e6]}, {"GPipe": [8, 8], "1F1B": [2, 1]}, title="t")
    assert sorted(bar.get_height() for bar in fig.axes[0].patches) == [1, 2, 8, 8]
    assert words(fig) == ["8", "8", "2", "1"] and names(fig) == ["GPipe", "1F1B"]
    fig = figures.boundary_bars({"plain": [2048, 2048], "skip": [4096, 6144]}, title="t")
    assert words(fig) == ["2", "2", "4", "6"] and png(fig).data
    assert [tick.get_text() for tick in fig.axes[0].get_xticklabels()] == ["0 | 1", "1 | 2"]


def test_lines_are_in_percent_and_named():
    fig = figures.share_lines({"a": [(1, 0.5), (2, 0.25)]}, title="t", x="m", ticks=(1, 2))
    (line,) = fig.axes[0].lines
    assert list(line.get_ydata()) == [50, 25] and words(fig) == ["a"]
    assert png(fig).data
