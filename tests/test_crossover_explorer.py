"""The explorer of the crossover and what it stands on: models, clusters, the step, the pictures, goals, speed."""

import itertools
import math
import random
import re
import time
from dataclasses import replace

import pytest
from explorer_moves import press
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ConfigError
from course_lib.figures import crossover as figures
from course_lib.figures.style import png, title_of
from course_lib.parallel.overlap import LayerTimes, exposed, fsdp_tasks
from course_lib.parallel.timeline import simulate
from course_lib.planning.clusters import CLUSTERS, MODELS, fsdp_step
from course_lib.planning.communication import sent_by_kind
from course_lib.planning.formulas import matmul_flops, model_params
from course_lib.widgets import crossover as widget
from course_lib.widgets import crossover_explorer

BUDGET = 0.1
H100 = CLUSTERS["H100 nodes"]


@pytest.fixture(scope="module")
def made():
    return crossover_explorer()


# ------------------------------------------------------------------------------------------------------- what it uses


def test_the_models_have_their_published_sizes():
    sizes = {name: sum(model_params(model).values()) for name, model in MODELS.items()}
    assert sizes["Llama 3 8B"] == 8_030_261_248
    assert sizes["Llama 2 70B"] == 68_976_648_192
    assert sizes["Llama 3 405B"] == 405_853_388_800


def test_every_cluster_says_where_its_figures_are_from():
    assert {name: (c.peak / 1e12, c.bandwidth / 1e9) for name, c in CLUSTERS.items()} == {
        "laptops": (0.3, 0.125),
        "A100 nodes": (312, 200),
        "H100 nodes": (989, 400),
    }
    assert round(H100.peak * H100.reached / 1e12) == 791 and round(312 * CLUSTERS["A100 nodes"].reached) == 271
    for cluster in CLUSTERS.values():
        assert "data sheet" in cluster.source or "example" in cluster.source


def test_tokens_a_gpu_as_the_scaling_book_has_them():
    """Part 12 there: an H100 in a 400 GB/s network needs about 2,500 tokens, all in 16 bits and at its peak.

    Attention's own products, which they leave out, need a short sequence to be small.
    """
    ideal = replace(H100, reached=1.0, bytes_reduced=2, peak=990e12)
    tokens = 2**24
    step = fsdp_step(MODELS["Llama 2 70B"], 128, tokens, 64, ideal)
    assert tokens / step.crossover == pytest.approx(2475, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(list(CLUSTERS)),
    st.integers(0, 16),
    st.integers(7, 15),
    st.integers(11, 28),
    st.booleans(),
    st.sampled_from([0.0, 3e-6]),
)
def test_a_step_is_that_of_the_event_model(model, cluster, devices, sequence, batch, prefetch, latency):
    shape, machine, n = MODELS[model], CLUSTERS[cluster], 2**devices
    step = fsdp_step(shape, 2**sequence, 2**batch, n, machine, prefetch=prefetch, latency=latency)
    parameters, layers = sum(model_params(shape).values()), shape.n_layers
    sent = sent_by_kind("fsdp", parameters, n)
    gather = sent.get("all_gather", 0.0) * machine.bytes_gathered / machine.bandwidth / 2 / layers + (n - 1) * latency
    scatter = sent.get("reduce_scatter", 0.0) * machine.bytes_reduced / machine.bandwidth / layers + (n - 1) * latency
    layer = LayerTimes(step.computing / 3 / layers, 2 * step.computing / 3 / layers, gather, scatter)
    run = simulate(fsdp_tasks([layer] * layers, prefetch=int(prefetch)))
    assert step.seconds == pytest.approx(run.makespan, rel=1e-9)
    assert step.sending == pytest.approx(layers * (2 * gather + scatter), rel=1e-9, abs=1e-15)
    assert step.seconds - step.computing == pytest.approx(exposed(run), rel=1e-6, abs=1e-6 * step.seconds)
    sequences = max(1, 2**batch / 2**sequence)
    flops = sequences * matmul_flops(shape, 1, 2**sequence)
    assert step.computing == pytest.approx(flops / min(n, sequences) / (machine.peak * machine.reached))
    assert 0 < step.mfu <= machine.reached + 1e-9
    assert step.floor == sequences


def test_at_the_crossover_half_of_what_is_done_is_sending():
    step = fsdp_step(MODELS["Llama 2 70B"], 2048, 2**22, 1024, H100)
    n = round(step.crossover)
    at = fsdp_step(MODELS["Llama 2 70B"], 2048, 2**22, n, H100)
    assert at.sending == pytest.approx(at.computing, rel=2e-3)
    assert n < step.floor == 2048


@pytest.mark.parametrize("bad", [{"devices": 0}, {"sequence": 0}])
def test_what_cannot_be_says_so(bad):
    with pytest.raises(ConfigError, match="at least 1"):
        fsdp_step(MODELS["Llama 2 70B"], **{"sequence": 2048, "batch_tokens": 2**22, "devices": 8, **bad}, cluster=H100)


# ----------------------------------------------------------------------------------------------------------- the widget


def test_what_it_opens_with(made):
    made.reset()
    step = made.view.data["step"]
    assert made.view.alt.startswith("Computing limits 256 devices: MFU 80%")
    assert step.computing > step.sending and step.floor == 2048 and 1600 < step.crossover < 1700
    assert "wall 2,048" in made.view.picture and "crossover 1,647" in made.view.picture


def test_the_presets_make_their_points(made):
    view = press(made, "Eight laptops")
    assert view.data["devices"] == 8 and "The network limits 8 devices" in view.alt
    assert "on laptops: 0.3 TFLOP/s by a device, 0.125 GB/s in a ring. 0.3 TFLOP/s: an FP32" in view.message
    assert "Computing limits" in press(made, "A100 nodes").alt
    assert "312 TFLOP/s at the peak, 271 reached by a device, 200 GB/s in a ring. 312" in made.view.message
    assert press(made, "H100 nodes").data["step"].crossover == pytest.approx(1647, abs=1)
    view = press(made, "Llama 3 405B's batch")
    step = view.data["step"]
    assert step.floor == view.data["devices"] == 2048 < step.crossover


def test_past_the_wall_devices_have_nothing(made):
    made.set(**{**made.defaults, "devices": 8192})
    assert "2,048 of 8,192 devices have a sequence, the others nothing" in made.view.alt
    wall = fsdp_step(MODELS["Llama 2 70B"], 2048, 2**22, 2048, H100)
    assert made.view.data["step"].computing == pytest.approx(wall.computing)


def test_without_a_prefetch_it_is_one_after_the_other(made):
    made.set(**{**made.defaults, "ahead": "no"})
    step = made.view.data["step"]
    assert step.seconds == pytest.approx(step.computing + step.sending) and "one after the other" in made.view.alt


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (0, {"sequence": 256, "devices": 8192}),
        (1, {"batch": 2**26, "devices": 16_384}),
        (2, {"sequence": 8192, "devices": 1024}),
    ],
)
def test_goals_can_be_reached(number, settings):
    fresh = crossover_explorer()
    fresh.set(**settings)
    assert fresh.reached == {number}


def test_no_preset_reaches_a_goal():
    fresh = crossover_explorer()
    for preset in fresh.presets:
        press(fresh, preset.label)
    assert not fresh.reached


def test_at_most_three_controls_are_open(made):
    assert [control.name for control in made.controls if not control.more] == ["devices", "batch", "sequence"]


EXTREMES = {
    "devices": (1, figures.LARGEST),
    "batch": (2**11, 2**28),
    "sequence": (128, 2**18),
    "bandwidth": (1 / 64, 64),
    "speed": (1 / 64, 64),
    "latency": (0, 20),
}


@pytest.mark.parametrize("machines", CLUSTERS)
@pytest.mark.parametrize("model", list(MODELS)[::3])
def test_no_extreme_raises_or_draws_nonsense(made, model, machines):
    chosen = {"model": model, "machines": machines}
    for values in itertools.product(*EXTREMES.values()):
        view = widget._draw(**{**made.defaults, **dict(zip(EXTREMES, values, strict=True)), **chosen})
        assert not re.search(r"\b(nan|inf)\b", view.picture + view.alt), values
        for x, y in re.findall(r"([\d.]+),([\d.]+)", " ".join(re.findall(r'points="([^"]*)"', view.picture))):
            assert 0 <= float(x) <= 768 and 0 <= float(y) <= 388
    made.set(**{**made.defaults, **{name: high for name, (_, high) in EXTREMES.items()}, **chosen})
    assert not made.error


def test_every_setting_is_drawn_in_time(made):
    rng = random.Random(3)

    def seconds(settings):
        begin = time.process_time()
        made.set(**settings)
        return time.process_time() - begin

    for _ in range(20):
        settings = {
            name: math.exp(rng.uniform(math.log(max(low, 0.01)), math.log(high)))
            for name, (low, high) in EXTREMES.items()
        }
        assert min(seconds({**settings, "model": rng.choice(list(MODELS))}) for _ in range(3)) < BUDGET
        assert not made.error


# --------------------------------------------------------------------------------------------------------- the pictures


def test_the_still_picture_is_that_of_the_default(made):
    made.reset()
    figure = widget._still(**made.defaults)
    assert title_of(figure) in made.view.alt
    said = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert {"wall: 2,048", "crossover: 1,647", "80%"} <= set(said)
    assert png(figure).data


@pytest.mark.parametrize("devices", [1, 2, 65_536])
def test_the_figure_draws_the_edges(devices):
    for batch, sequence in ((2**11, 2**18), (2**28, 128)):
        first = fsdp_step(MODELS["Llama 3 8B"], sequence, batch, devices, H100)
        steps = {
            n: fsdp_step(MODELS["Llama 3 8B"], sequence, batch, n, H100)
            for n in sorted({*figures.devices_to_draw(first.crossover, first.floor), devices})
        }
        assert png(figures.crossover_curves(steps, devices, title="t"), scale=1).data


def test_the_marks_are_among_the_points():
    points = figures.devices_to_draw(1647.3, 2048)
    assert {1, 1647, 1648, 2048, figures.LARGEST} <= set(points) and points == sorted(points) and len(points) < 60
    assert figures.devices_to_draw(1e30, 1)[-1] == figures.LARGEST


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "nothing"), (0.25, "250 ms"), (90, "1.5 min"), (2.5e-7, "0.25 µs"), (7200, "2 h"), (1e6, "11.6 d")],
)
def test_seconds_in_words(value, text):
    assert figures.seconds_text(value) == text
