"""The picture of the two lanes says what the timelines say."""

from course_lib.figures.overlap import overlap_lanes
from course_lib.figures.style import png
from course_lib.parallel.overlap import LayerTimes, ddp_tasks, fsdp_tasks
from course_lib.parallel.timeline import simulate

LAYERS = [LayerTimes(0.003, 0.005, 0.002, 0.001)] * 2


def words(fig):
    return [text.get_text() for text in fig.axes[0].texts]


def test_each_run_has_its_length_and_what_is_exposed():
    runs = {"late": simulate(fsdp_tasks(LAYERS, prefetch=0)), "early": simulate(fsdp_tasks(LAYERS))}
    fig = overlap_lanes(runs, title="t")
    said = words(fig)
    assert {"late", "26 ms", "10 ms exposed", "early", "21 ms", "5 ms exposed"} <= set(said)
    legend = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    assert legend == ["forward", "backward", "all-gather", "reduce-scatter", "exposed: computing waits"]
    assert [tick.get_text() for tick in fig.axes[0].get_yticklabels()] == ["compute", "network"] * 2
    assert png(fig).data


def test_bars_are_where_the_slots_are():
    run = simulate(fsdp_tasks(LAYERS))
    fig = overlap_lanes({"": run}, title="t", unit="s", scale=1)
    bars = sorted((round(bar.get_x(), 9), round(bar.get_width(), 9)) for bar in fig.axes[0].patches)
    wanted = [(slot.start, slot.end - slot.start) for slot in run.slots] + [(0, 0.002), (0.008, 0.002), (0.02, 0.001)]
    assert bars == sorted((round(start, 9), round(width, 9)) for start, width in wanted)


def test_data_parallel_one_layer_and_nothing_at_all():
    assert png(overlap_lanes({"ddp": simulate(ddp_tasks(LAYERS * 20))}, title="t")).data
    assert png(overlap_lanes({"one": simulate(fsdp_tasks([LayerTimes(0, 0, 0, 0)]))}, title="t")).data
    assert png(overlap_lanes({"none": simulate([])}, title="t")).data
    assert png(overlap_lanes({}, title="t")).data
