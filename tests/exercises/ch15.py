"""Stated answers of chapter 15: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math

import numpy as np
from mutants import right, wrong

from course_lib.checks.ch15_cadence import cadence_cases, mean_time
from course_lib.checks.ch15_diagnose import incident
from course_lib.checks.ch15_estimate import configuration
from course_lib.checks.ch15_hand import hand, hours
from course_lib.checks.ch15_layout import cheapest
from course_lib.checks.ch15_ranks import most, ranks
from course_lib.checks.ch15_runbook import book

# 15.1 1B x 100B by hand


def _hand(variant, flops=1.0, days=1.0):
    """Both as multiples of what is right."""
    run = hand(variant)
    return {"variant": variant, "flops": run["flops"] * flops, "days": run["days"] * days}


def _by_hand(misconception=None, says="", answer=None):
    return wrong("one-billion-by-hand", misconception, says=says, answer=answer)


wrong_forward = _by_hand("forward-is-all", answer=_hand(0, 1 / 3))
wrong_equal_passes = _by_hand("backward-costs-as-forward", answer=_hand(0, 2 / 3, 2 / 3))
wrong_multiply_add = _by_hand("a-product-is-one-flop", answer=_hand(3, 0.5, 0.5))
wrong_all_experts = _by_hand("all-experts-count", answer=_hand(1, hand(1)["all"] / hand(1)["active"]))
wrong_one_reading = _by_hand("a-text-counts-once", answer=_hand(2, 1 / hand(2)["epochs"]))
wrong_at_peak = _by_hand("peak-is-reached", answer=_hand(0, days=0.4))
wrong_mfu_shortens = _by_hand("mfu-shortens", answer=_hand(0, days=0.16))
wrong_one_device = _by_hand("one-device-works", answer=_hand(0, days=8))
wrong_hours_for_days = _by_hand("per-day-is-per-hour", answer=_hand(0, days=24))
wrong_seconds_for_days = _by_hand(says="unit", answer=_hand(0, days=86_400))
wrong_one_reading_of_many = [
    _by_hand("a-text-counts-once", answer=_hand(n, 1 / hand(n)["epochs"], 1 / hand(n)["epochs"])) for n in (5, 8, 11)
]
wrong_five_readings, wrong_seven_readings, wrong_readings_again = wrong_one_reading_of_many
wrong_decimal_point = _by_hand(says="off by a factor of ten: count the zeros", answer=_hand(0, 10, 10))
wrong_endless = _by_hand(says="a finite number", answer=_hand(0) | {"flops": 10**400})
wrong_hand_text = _by_hand(says="one number", answer=_hand(0) | {"flops": "6e20"})
wrong_hand_empty = _by_hand(says="still empty: days", answer=_hand(0) | {"days": None})
wrong_hand_key = _by_hand(says="`hours` is not one of them", answer=_hand(0) | {"hours": 3})
right_two_digits = right("one-billion-by-hand", answer={"variant": 0, "flops": 6e20, "days": 2.2})
right_experts = right("one-billion-by-hand", answer=_hand(1, 1.004, np.float64(0.99)))
right_whole_number = right("one-billion-by-hand", answer={"variant": 0, "flops": 6 * 10**20, "days": 2.19})

# 15.2 6ND, and what is counted


def _counter(
    forward=2, passes=3, scores=2, square=1.0, kv=None, inside=None, embedding=True, tied=None, lookup=0, head=1,
    matrices=3, router=True, every=False, score_heads="heads", n_factor=6, score_width=False,
):  # fmt: skip
    def training_flops(shape, sequence, tokens):
        d, h = shape["width"], shape["heads"]
        e = inside(shape) if inside else shape["head_dim"]
        k = h if kv else shape["kv_heads"]
        visits = (shape["experts"] if every else shape["active"]) if shape["experts"] else 1
        weights = d * (h + 2 * k) * e + h * e * d + matrices * d * shape["ffn"] * visits
        weights += d * shape["experts"] if router else 0
        is_tied = shape["tied"] if tied is None else tied
        n = shape["layers"] * (weights + 2 * d) + d + shape["vocab"] * d * ((not is_tied) + bool(embedding))
        if not embedding:
            n = shape["layers"] * (weights + 2 * d) + d + (0 if is_tied else shape["vocab"] * d)
        mix = scores * 2 * sequence * (d if score_width else shape[score_heads] * e) * square
        one = (
            shape["layers"] * (forward * weights + mix)
            + forward * d * shape["vocab"] * head
            + lookup * 2 * d * shape["vocab"]
        )
        return n_factor * n * tokens, passes * tokens * one

    return training_flops


def _counted(misconception=None, says="", answer=None):
    return wrong("counted-flops", misconception, says=says, answer=answer)


wrong_6nd_forward = _counted("forward-is-all", answer=_counter(n_factor=2))
wrong_6nd_four = _counted("backward-costs-as-forward", answer=_counter(n_factor=4))
wrong_exact_forward = _counted("forward-is-all", answer=_counter(passes=1))
wrong_exact_twice = _counted("backward-costs-as-forward", answer=_counter(passes=2))
wrong_exact_single = _counted("a-product-is-one-flop", answer=_counter(passes=1.5))
wrong_6nd_three = _counted("a-product-is-one-flop", says="6ND", answer=_counter(n_factor=3, passes=1.5))
wrong_one_sequence = _counted(
    says="that is one sequence",
    answer=lambda shape, s, tokens: (_counter()(shape, s, tokens)[0], _counter()(shape, s, s)[1]),
)
wrong_rounded_count = _counted(
    says="Was it rounded", answer=lambda *given: [float(f"{one:.3g}") for one in _counter()(*given)]
)
wrong_no_scores = _counted("attention-is-free", answer=_counter(scores=0))
wrong_scores_alone = _counted("half-of-attention", answer=_counter(scores=1))
wrong_causal_half = _counted("half-of-attention", answer=_counter(square=0.5))
wrong_few_scores = _counted("few-keys-few-scores", answer=_counter(score_heads="kv_heads"))
wrong_many_keys = _counted("every-head-has-its-keys", answer=_counter(kv=True))
wrong_head_dim = _counted("heads-share-the-width", answer=_counter(inside=lambda s: s["width"] // s["heads"]))
wrong_score_width = _counted("heads-share-the-width", says="scores and mix", answer=_counter(score_width=True))
wrong_lookup = _counted("a-lookup-multiplies", answer=_counter(lookup=1))
wrong_no_head = _counted("the-head-is-free", answer=_counter(head=0))
wrong_two_matrices = _counted("two-matrices", answer=_counter(matrices=2))
wrong_no_router = _counted("the-router-is-free", answer=_counter(router=False))
wrong_every_expert = _counted("all-experts-count", answer=_counter(every=True))
wrong_never_tied = _counted("tied-counts-twice", answer=_counter(tied=False))
wrong_always_tied = _counted("one-table-for-both", answer=_counter(tied=True))
wrong_no_embedding = _counted("the-embedding-is-no-parameter", answer=_counter(embedding=False))
wrong_swapped = _counted(says="in the other order", answer=lambda *given: _counter()(*given)[::-1])
wrong_one_number = _counted(says="two numbers", answer=lambda *given: _counter()(*given)[0])
wrong_count_nothing = _counted(says="nothing came back", answer=lambda *given: None)


@wrong("counted-flops", says="write it yourself")
def wrong_calls_the_planner(shape, sequence, tokens):
    from course_lib.planning.formulas import train_flops

    return train_flops(1e9, tokens), 1.0


@right("counted-flops")
def right_by_multiplying(shape, sequence, tokens):
    """Every product of one layer, from the shapes of its two factors."""
    s, d, h, k, e = sequence, shape["width"], shape["heads"], shape["kv_heads"], shape["head_dim"]
    factors = [((s, d), (d, h * e), 1), ((s, d), (d, k * e), 2), ((s, h * e), (h * e, d), 1)]
    visits = shape["active"] or 1
    factors += [((s, d), (d, shape["ffn"]), 2 * visits), ((s, shape["ffn"]), (shape["ffn"], d), visits)]
    if shape["experts"]:
        factors.append(((s, d), (d, shape["experts"]), 1))
    table = shape["vocab"] * d
    n = (
        shape["layers"] * (sum(times * b[0] * b[1] for _, b, times in factors) + 2 * d)
        + d
        + table * (2 - shape["tied"])
    )
    factors += [((s, e), (e, s), h), ((s, s), (s, e), h)]
    one = shape["layers"] * sum(2 * times * a[0] * a[1] * b[1] for a, b, times in factors) + 2 * s * table
    return 6 * n * tokens, one * 3 * (tokens // s)


@right("counted-flops")
def right_without_norms(shape, sequence, tokens):
    six, exact = _counter()(shape, sequence, tokens)
    return [np.float64(six - 6 * tokens * (2 * shape["layers"] + 1) * shape["width"]), float(exact)]


# 15.3 device-hours, days, goodput


def _hours(variant, device_hours=1.0, days=1.0, goodput=1.0):
    run = hours(variant)
    given = {"device_hours": device_hours, "days": days, "goodput": goodput}
    return {"variant": variant} | {key: run[key] * value for key, value in given.items()}


def _billed(misconception=None, says="", answer=None):
    return wrong("hours-of-devices", misconception, says=says, answer=answer)


G, M = hours(0)["plan"]["goodput"] / 100, hours(0)["plan"]["mfu"] / 100
RATE, LOG = hours(1)["rate"], hours(1)["over"]["log"]
wrong_all_counts = _billed("all-time-counts", answer=_hours(0, G, G))
wrong_goodput_shortens = _billed("goodput-shortens", answer=_hours(0, G * G, G * G))
wrong_hours_at_peak = _billed("peak-is-reached", answer=_hours(0, M, M))
wrong_wall_hours = _billed("devices-divide-twice", answer=_hours(0, 1 / hours(0)["plan"]["devices"]))
wrong_days_of_one = _billed("one-device-works", answer=_hours(0, days=hours(0)["plan"]["devices"]))
wrong_mfu_of_bill = _billed("mfu-of-the-bill", answer=_hours(0, goodput=hours(0)["over"]["mfu"] / 100))
wrong_upside_down = _billed("upside-down", answer=_hours(0, goodput=1 / hours(0)["goodput"] ** 2))
wrong_log_counts_all = _billed("recomputed-work-is-progress", answer=_hours(1, goodput=RATE / LOG))
wrong_eight_nd = _billed("recompute-counts-twice", answer=_hours(1, goodput=LOG / RATE))
wrong_eight_nd_again = _billed("recompute-counts-twice", answer=_hours(7, goodput=4 / 3))
wrong_plans_goodput = _billed("one-goodput-for-all", answer=_hours(0) | {"goodput": G})
wrong_percent = _billed(says="unit", answer=_hours(0, goodput=100))
wrong_hours_empty = _billed(says="still empty: goodput", answer=_hours(0) | {"goodput": None})
right_rounded_hours = right(
    "hours-of-devices", answer={k: float(f"{v:.3g}") for k, v in _hours(0).items()} | {"variant": 0}
)
right_with_recomputation = right("hours-of-devices", answer=_hours(1))
right_another_run = right("hours-of-devices", answer=_hours(6, 1.01, 0.99))

# 15.4 state on the fullest device


def _state(
    sizes=(2, 4, 12), shared=None, split="even", ends=True, which=max, cut_ends=True, ranks=lambda d, t, p: d
):  # fmt: skip
    rules = {"ddp": (0, 0, 0), "zero1": (0, 0, 1), "fsdp": (1, 1, 1)} | (shared or {})

    def state_bytes(embedding, layer, layers, head, strategy, data, tensor, pipeline):
        each = sum(
            size / (ranks(data, tensor, pipeline) if s else 1) for size, s in zip(sizes, rules[strategy], strict=True)
        )
        if split == "mean":
            return (embedding + layer * layers + head) / pipeline / tensor * each
        found = []
        for n in range(pipeline):
            count = layers // pipeline + (n < layers % pipeline if split == "even" else 0)
            if split == "last":
                count += n >= pipeline - layers % pipeline
            if split == "full":
                count = min(-(-layers // pipeline), layers - n * -(-layers // pipeline))
            size = count * layer / tensor
            if ends:
                size += ((embedding if n == 0 else 0) + (head if n == pipeline - 1 else 0)) / (
                    tensor if cut_ends else 1
                )
            found.append(size * each)
        return which(found)

    return state_bytes


def _held(misconception=None, says="", answer=None):
    return wrong("state-per-device", misconception, says=says, answer=answer)


wrong_mean_stage = _held("stages-are-equal", answer=_state(split="mean"))
wrong_no_ends = _held("ends-hold-layers-alone", answer=_state(ends=False))
wrong_first_stage = _held("the-first-is-fullest", answer=_state(which=lambda found: found[0]))
wrong_last_stage = _held("the-last-is-fullest", answer=_state(which=lambda found: found[-1]))
wrong_floor = _held("one-more-is-nothing", answer=_state(split="floor"))
wrong_whole_ends = _held("the-ends-are-not-cut", answer=_state(cut_ends=False))
wrong_zero3 = _held("zero1-shards-all", answer=_state(shared={"zero1": (1, 1, 1)}))
wrong_zero2 = _held("zero1-shards-gradients", answer=_state(shared={"zero1": (0, 1, 1)}))
wrong_all_devices = _held("zero1-over-all-devices", answer=_state(ranks=lambda d, t, p: d * t * p))
wrong_whole_weights = _held("fsdp-keeps-weights", answer=_state(shared={"fsdp": (0, 1, 1)}))
wrong_ddp_shards = _held("copies-share-a-model", answer=_state(shared={"ddp": (1, 1, 1)}))
wrong_nothing_shared = _held(
    "nothing-is-shared", answer=_state(shared={"zero1": (0, 0, 0), "fsdp": (0, 0, 0)})
)  # fmt: skip
wrong_short_gradients = _held("gradients-in-16-bit", answer=_state(sizes=(2, 2, 12)))
wrong_no_master = _held("forgets-the-master", answer=_state(sizes=(2, 4, 8)))
wrong_last_have_more = _held(says="which stages have one more", answer=_state(split="last"))
wrong_filled_up = _held(says="as evenly as can be", answer=_state(split="full"))
wrong_no_gradients = _held(says="where are the gradients", answer=_state(sizes=(2, 0, 12)))
wrong_no_tensor = _held(
    says="what do the tensor ranks share", answer=lambda e, n, ns, h, s, d, t, p: _state()(e, n, ns, h, s, d, 1, p)
)
wrong_gigabytes = _held(says="those are GB", answer=lambda *given: _state()(*given) / 1e9)
wrong_state_nothing = _held(says="nothing came back", answer=lambda *given: None)


@wrong("state-per-device", "zero1-shards-all")
def wrong_everything_once(embedding, layer, layers, head, strategy, data, tensor, pipeline):
    if strategy == "ddp" and pipeline == 1:
        return 18 * (embedding + layer * layers + head)
    return 18 * (embedding + layer * layers + head) / (data * tensor * pipeline)


@right("state-per-device")
def right_layer_by_layer(embedding, layer, layers, head, strategy, data, tensor, pipeline):
    stages = [[] for _ in range(pipeline)]
    for n in np.array_split(np.arange(layers), pipeline):
        stages[len([s for s in stages if s])].extend([layer] * len(n))
    stages[0].insert(0, embedding)
    stages[-1].append(head)
    shared = {"ddp": 0, "zero1": 12, "fsdp": 18}[strategy]
    return np.float64(max(sum(x / tensor * (18 - shared) + x / tensor / data * shared for x in s) for s in stages))


right_with_lists = right("state-per-device", answer=_state())

# 15.5 the most data-parallel ranks


def _most(variant, number=None, devices=None):
    run = ranks(variant)
    found = {
        "ranks": run["ranks"] if number is None else number,
        "devices": run["devices"] if devices is None else devices,
    }
    return {"variant": variant} | found


def _ranked(misconception=None, says="", answer=None):
    return wrong("most-ranks", misconception, says=says, answer=answer)


PIPE, MICRO, ROUNDS, CONTEXT = (ranks(n) for n in (1, 2, 3, 4))
wrong_tokens = _ranked("a-token-is-enough", answer=_most(0, 10_000_000, 99))
wrong_sequences = _ranked("micro-batches-are-sequences", answer=_most(2, MICRO["sequences"], 99))
wrong_full_pipe = _ranked("a-pipeline-needs-nothing", answer=_most(1, PIPE["sequences"] // PIPE["micro"], 99))
wrong_stages_enough = _ranked(
    "as-many-as-stages", answer=_most(1, PIPE["sequences"] // PIPE["micro"] // PIPE["pipeline"], 99)
)
wrong_uneven_ranks = _ranked("ranks-may-differ", answer=_most(1, most(PIPE, **{"ranks may differ": True}), 99))
wrong_no_chunks = _ranked("chunks-change-nothing", answer=_most(3, most(ROUNDS, chunks=1), 99))
wrong_context_ranks = _ranked("context-makes-ranks", answer=_most(4, CONTEXT["ranks"] * CONTEXT["context"], 99))
wrong_devices_for_ranks = _ranked("devices-are-ranks", answer=_most(0, 8_000, 8_000 * 8))
wrong_ranks_for_devices = _ranked("devices-are-ranks", answer=_most(0, devices=1_000))
wrong_no_stages = _ranked("stages-share-devices", answer=_most(1, devices=PIPE["ranks"] * PIPE["tensor"]))
wrong_tensor_alone = _ranked("a-rank-is-a-tensor-group", answer=_most(4, devices=CONTEXT["ranks"] * CONTEXT["tensor"]))
wrong_ranks_fraction = _ranked(says="has a fraction: 1000.4", answer=_most(0, 1000.4, 8003.2))
wrong_full_rounds = _ranked("a-pipeline-needs-nothing", answer=_most(3, ROUNDS["sequences"] // ROUNDS["micro"], 99))
wrong_one_round = _ranked("as-many-as-stages", answer=_most(3, most(ROUNDS, target=ROUNDS["target"] ** 0), 99))
wrong_idle_over_work = _ranked("idle-over-work", answer=_most(1, most(PIPE, of="ideal"), 99))
wrong_any_number = _ranked("any-number-will-do", answer=_most(3, most(ROUNDS, **{"whole rounds": False}), 99))
_IDLE = (ROUNDS["pipeline"] - 1) / ROUNDS["chunks"]
wrong_real_micro_batches = _ranked(
    "ranks-may-differ",
    answer=_most(3, math.floor(ROUNDS["sequences"] / ROUNDS["micro"] / (_IDLE / ROUNDS["target"] - _IDLE)), 99),
)
wrong_no_tensor_group = _ranked(
    says="what else multiplies", answer=_most(4, devices=CONTEXT["ranks"] * CONTEXT["context"])
)
wrong_no_tensor_stages = _ranked(says="what else multiplies", answer=_most(1, devices=PIPE["ranks"] * PIPE["pipeline"]))
wrong_ranks_text = _ranked(says="without quotes", answer=_most(0, "1000"))
right_plain_ranks = right("most-ranks", answer=_most(5))
right_float_ranks = right("most-ranks", answer=_most(6, float(ranks(6)["ranks"])))
right_by_hand_ranks = right(
    "most-ranks", answer={"variant": 4, "ranks": CONTEXT["sequences"], "devices": CONTEXT["devices"]}
)

# 15.6 when to save


def _between(rate, devices):
    return 365 * 86_400 / (rate * devices)


def _saver(interval):
    def save_every(write_seconds, failures_per_device_year, devices, restart_seconds):
        return interval(write_seconds, _between(failures_per_device_year, devices), devices, restart_seconds)

    return save_every


def _saved(misconception=None, says="", answer=None):
    return wrong("when-to-save", misconception, says=says, answer=answer)


wrong_alone = _saved("one-device-alone", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * m * n)))
wrong_times_devices = _saved("more-devices-fail-less", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * m * n * n)))
wrong_no_two = _saved("all-work-is-lost", answer=_saver(lambda w, m, n, r: math.sqrt(w * m)))
wrong_four = _saved("a-quarter-is-lost", answer=_saver(lambda w, m, n, r: math.sqrt(4 * w * m)))
wrong_restart_counts = _saved("the-restart-counts", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * (m + r))))
wrong_restart_written = _saved("the-restart-counts", answer=_saver(lambda w, m, n, r: math.sqrt(2 * (w + r) * m)))
wrong_slip = _saved(says="a longer interval make smaller", answer=_saver(lambda w, m, n, r: math.sqrt(w * m / 2)))
wrong_hours_and_seconds = _saved(
    says="mixes hours and seconds", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * m / 3600))
)
wrong_once = _saved("once-a-failure", answer=_saver(lambda w, m, n, r: m))
wrong_half_time = _saved("half-a-mean-time", answer=_saver(lambda w, m, n, r: m / 2))
wrong_no_root = _saved("no-root", answer=_saver(lambda w, m, n, r: 2 * w * m))
wrong_all_the_time = _saved("as-long-as-it-takes", answer=_saver(lambda w, m, n, r: w))
wrong_rate_a_year = _saved(
    "failures-a-year", answer=lambda write, rate, devices, restart: math.sqrt(2 * write / rate / devices)
)
wrong_day = _saved("a-day-is-a-year", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * m / 365)))
wrong_ten_minutes = _saved("safe-is-free", answer=lambda *given: 600.0)
wrong_a_month = _saved("failures-are-rare", answer=lambda *given: 30 * 86_400.0)
wrong_minutes = _saved(says="those are minutes", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * m) / 60))
wrong_negative = _saved(says="no time between", answer=lambda *given: -5.0)
wrong_save_nothing = _saved(says="nothing came back", answer=lambda *given: None)


@wrong("when-to-save", says="interval make smaller")
def wrong_six_numbers(write_seconds, failures_per_device_year, devices, restart_seconds):
    """The best intervals of another seed, by the number of devices."""
    case = next(case for case in cadence_cases(5) if case["devices"] == devices)
    return math.sqrt(2 * case["write_seconds"] * mean_time(case))


@wrong("when-to-save", says="write it yourself")
def wrong_planned(write_seconds, failures_per_device_year, devices, restart_seconds):
    from course_lib.planning import cadence

    return cadence.young(write_seconds, _between(failures_per_device_year, devices))


@right("when-to-save")
def right_daly(write_seconds, failures_per_device_year, devices, restart_seconds):
    mean = _between(failures_per_device_year, devices)
    x = write_seconds / (2 * mean)
    return math.sqrt(2 * write_seconds * mean) * (1 + math.sqrt(x) / 3 + x / 9) - write_seconds


@right("when-to-save")
def right_by_trying(write_seconds, failures_per_device_year, devices, restart_seconds):
    """The exact mean of the exponential model, tried on a grid."""
    mean = _between(failures_per_device_year, devices)
    grid = np.geomspace(write_seconds / 3, mean, 400)
    return grid[np.argmin(np.expm1((grid + write_seconds) / mean) / grid)]


right_years_of_quarter_days = right(
    "when-to-save", answer=_saver(lambda w, m, n, r: math.sqrt(2 * w * m * 365.25 / 365) * 1.1)
)

# 15.7 the cheapest layout


def _layout(variant, **changes):
    layout = cheapest(variant)[0].run.layout
    names = ("data", "tensor", "pipeline", "micro_batch", "sharding", "recompute")
    return {"variant": variant} | {name: getattr(layout, name) for name in names} | changes


def _laid(misconception=None, says="", answer=None):
    return wrong("cheapest-layout", misconception, says=says, answer=answer)


wrong_copies = _laid("a-model-is-its-weights", answer=_layout(0, data=64, tensor=1, sharding="ddp"))
wrong_plain_fsdp = _laid("activations-are-small", answer=_layout(0, data=64, tensor=1))
wrong_always_again = _laid("recompute-to-be-safe", answer=_layout(0, data=64, tensor=1, recompute="all"))
wrong_wide_tensor = _laid("tensor-goes-anywhere", answer=_layout(1, data=16, tensor=16, sharding="zero1"))
wrong_node_tensor = _laid("tensor-goes-anywhere", answer=_layout(0, data=8, tensor=8, sharding="zero1"))
wrong_many_stages = _laid("stages-are-free", answer=_layout(2, data=16, tensor=1, pipeline=8))
wrong_quarter = _laid("fits-is-finishes", says="there are", answer=_layout(2, data=32, tensor=1, sharding="fsdp"))
wrong_more_devices = _laid("devices-grow", answer=_layout(0, data=128))
wrong_seven = _laid("heads-divide", answer=_layout(3, data=8, tensor=16))
wrong_too_many_ranks = _laid("batches-divide", answer=_layout(2, data=128, tensor=1))
wrong_many_layers = _laid("layers-divide", answer=_layout(0, data=1, tensor=1, pipeline=64))
wrong_layout_half = _laid(says="whole number", answer=_layout(0, data=3.5))
wrong_layout_word = _laid(says="one of none, all", answer=_layout(0, recompute="some"))
wrong_layout_empty = _laid(says="`tensor` is still empty", answer=_layout(0, tensor=None))
wrong_layout_key = _laid(says="`chunks` is not one of them", answer=_layout(0, chunks=2))
right_other_sharding = right("cheapest-layout", answer=_layout(2, sharding="fsdp"))
right_searched = right("cheapest-layout", answer=_layout(4))
right_capitals = right("cheapest-layout", answer=_layout(0, sharding="FSDP", data=32.0))
right_searched_later = right("cheapest-layout", answer=_layout(11))

# 15.8 capstone: estimate

ASKED = ("parameters", "steps", "flops", "days", "state_gb", "checkpoint_gb", "cadence_minutes")


def _estimate(variant, **changes):
    """What is right, numbers times what is given for them, letters as they are given."""
    run = configuration(variant)
    answer = {"variant": variant, "risk": run["risk"]} | {key: run[key] for key in ASKED}
    answer |= {key: run[key] * times for key, times in changes.items() if key in ASKED}
    return answer | {key: value for key, value in changes.items() if key not in ASKED}


def _estimated(misconception=None, says="", answer=None):
    return wrong("capstone-estimate", misconception, says=says, answer=answer)


C = configuration(0)
wrong_no_gqa = _estimated(
    "every-head-has-its-keys",
    answer=_estimate(0, parameters=1 + 2 * 64 * 7168 * 128 * (56 - 8) / C["parameters"]),
)
wrong_two_ffn = _estimated("two-matrices", answer=_estimate(0, parameters=1 - 64 * 7168 * 20_480 / C["parameters"]))
wrong_one_table = _estimated("one-table-for-both", answer=_estimate(0, parameters=1 - 128_000 * 7168 / C["parameters"]))
wrong_rank_steps = _estimated("a-rank-steps-alone", answer=_estimate(0, steps=C["data"]))
wrong_sequence_steps = _estimated("a-sequence-is-a-step", answer=_estimate(0, steps=C["batch"]))
wrong_flops_forward = _estimated("forward-is-all", answer=_estimate(0, flops=1 / 3))
wrong_no_goodput = _estimated("all-time-counts", answer=_estimate(0, days=C["goodput"] / 100))
wrong_peak_days = _estimated("peak-is-reached", answer=_estimate(0, days=C["mfu"] / 100))
wrong_data_days = _estimated("only-data-ranks-work", answer=_estimate(0, days=C["tensor"] * C["pipeline"]))
wrong_state_shared = _estimated(
    "nothing-twice", answer=_estimate(0, state_gb=18 * C["parameters"] / C["devices"] / 1e9 / C["state_gb"])
)
wrong_weights_saved = _estimated("weights-are-a-checkpoint", answer=_estimate(0, checkpoint_gb=2 / 14))
wrong_gradients_saved = _estimated("gradients-are-saved", answer=_estimate(0, checkpoint_gb=18 / 14))
wrong_master_unsaved = _estimated("forgets-the-master", answer=_estimate(0, checkpoint_gb=10 / 14))
wrong_replicas_saved = _estimated("every-rank-saves-all", answer=_estimate(0, checkpoint_gb=C["data"]))
wrong_cadence_alone = _estimated("one-device-alone", answer=_estimate(0, cadence_minutes=math.sqrt(C["devices"])))
wrong_cadence_mean = _estimated(
    "once-a-failure", answer=_estimate(0, cadence_minutes=C["mean"] / 60 / C["cadence_minutes"])
)
wrong_cadence_seconds = _estimated(says="unit", answer=_estimate(0, cadence_minutes=60))
wrong_seconds_near_the_mean = _estimated(says="unit", answer=_estimate(1, cadence_minutes=60))
wrong_state_gib = _estimated(says="a GiB is 2^30", answer=_estimate(0, state_gb=1e9 / 2**30))
wrong_checkpoint_gib = _estimated(says="a GiB is 2^30", answer=_estimate(1, checkpoint_gb=1e9 / 2**30))
wrong_risk_memory = _estimated("memory-is-always-it", answer=_estimate(0, risk="A"))
wrong_risk_time = _estimated("time-is-short", answer=_estimate(0, risk="D"))
wrong_risk_stages = _estimated("stages-wait", answer=_estimate(2, risk="B"))
wrong_risk_word = _estimated(says="one letter", answer=_estimate(0, risk="bubble"))
wrong_estimate_part = _estimated(says="still empty: days, risk", answer=_estimate(0) | {"days": None, "risk": None})
wrong_other_variant = _estimated(says="`parameters`", answer=_estimate(0) | {"variant": 700})
right_estimates = [_estimate(n) for n in range(1, 7)]
right_time = right("capstone-estimate", answer=right_estimates[0])
right_memory = right("capstone-estimate", answer=right_estimates[1])
right_network = right("capstone-estimate", answer=right_estimates[2])
right_failures = right("capstone-estimate", answer=right_estimates[3])
right_batch = right("capstone-estimate", answer=right_estimates[4])
right_shapes = right("capstone-estimate", answer=right_estimates[5])
right_rounded = right(
    "capstone-estimate",
    answer={
        k: float(f"{v:.3g}") if k in ASKED and k != "steps" else v
        for k, v in _estimate(4321, cadence_minutes=0.93).items()
    },
)

# 15.9 capstone: diagnose


def _diagnosis(variant, **changes):
    run = incident(variant)
    return {"variant": variant} | {key: run[key] for key in ("first", "fault", "remedy", "never")} | changes


def _diagnosed(misconception=None, says="", answer=None):
    return wrong("capstone-diagnose", misconception, says=says, answer=answer)


def _check(variant, wanted):
    return next(
        letter for letter, row in incident(variant)["checks"].items() if wanted(incident(variant), letter, *row)
    )


def _other(variant, what, key):
    return next(letter for letter in incident(variant)[what] if letter != incident(variant)[key])


def _named(variant, words):
    """The letter of the check whose text holds these words."""
    return _check(variant, lambda run, k, one, m: one is not None and words in one.check)


LOADER = next(
    n
    for n in range(2, 200, 5)
    if "loader" not in incident(n)["culprit"].fault and incident(n)["first"] != _named(n, "waits for")
)
"""A slow run in which the loader's check is not the cheap one, and not the one that finds it."""
LEAST = min(minutes for _, minutes in incident(0)["checks"].values())
wrong_restart = _diagnosed("restart-first", answer=_diagnosis(0, first=_check(0, lambda run, k, one, m: one is None)))
wrong_cheapest = _diagnosed("cheapest-first", answer=_diagnosis(0, first=_check(0, lambda run, k, one, m: m == LEAST)))
wrong_anything = _diagnosed(
    "check-everything",
    answer=_diagnosis(0, first=_check(0, lambda run, k, one, m: one in run["out"] and m > LEAST)),
)
wrong_hindsight = _diagnosed(
    "hindsight-is-an-order", answer=_diagnosis(0, first=_check(0, lambda run, k, one, m: one is run["culprit"]))
)
wrong_machine_first = _diagnosed(
    "from-the-machine-up",
    answer=_diagnosis(0, first=_check(0, lambda run, k, one, m: k in run["own"] and one.kind == 3)),
)
wrong_dear_check = _diagnosed(
    "cost-does-not-matter",
    answer=_diagnosis(
        2, first=_check(2, lambda run, k, one, m: k in run["own"] and k != run["first"] and one is not run["culprit"])
    ),
)
wrong_middle = _diagnosed(
    "any-order-will-do",
    answer=_diagnosis(5, first=_check(5, lambda run, k, one, m: k in run["own"] and one.kind == 1)),
)
wrong_dear_data = _diagnosed(
    "cost-does-not-matter",
    answer=_diagnosis(0, first=_check(0, lambda run, k, one, m: one and one.kind == 0 and k != run["first"])),
)
wrong_loader_first = _diagnosed("cost-does-not-matter", answer=_diagnosis(LOADER, first=_named(LOADER, "waits for")))
wrong_sound = _diagnosed("sound-findings-accuse", answer=_diagnosis(0, fault=_other(0, "faults", "fault")))
wrong_remedy = _diagnosed("any-remedy-will-do", answer=_diagnosis(1, remedy=_other(1, "remedies", "remedy")))
wrong_note = _diagnosed("notes-cost-time", answer=_diagnosis(3, never=_other(3, "acts", "never")))
wrong_diagnosis_word = _diagnosed(says="one letter", answer=_diagnosis(0, first="hash"))
wrong_diagnosis_empty = _diagnosed(says="still empty: never", answer=_diagnosis(0, never=None))
right_nan = right("capstone-diagnose", answer=_diagnosis(1))
right_slow = right("capstone-diagnose", answer=_diagnosis(2))
right_small_letters = right("capstone-diagnose", answer=_diagnosis(3, fault=incident(3)["fault"].lower()))
right_incidents = [_diagnosis(n) for n in (4, 10, LOADER)]
right_plateau = right("capstone-diagnose", answer=right_incidents[0])
right_after_another_resume = right("capstone-diagnose", answer=right_incidents[1])
right_cheap_of_three = right("capstone-diagnose", answer=right_incidents[2])
right_own_incident = right("capstone-diagnose", answer=_diagnosis(8_765))

# 15.10 your runbook, completed


def _book(variant, change=lambda lines: lines):
    return {"variant": variant, "lines": change([tuple(line) for line in book(variant)["lines"]])}


def _entered(misconception=None, says="", answer=None):
    return wrong("my-runbook", misconception, says=says, answer=answer)


def _number(question, value):
    """A book in which the line whose question holds these words has another number; the first variant that has one."""
    for variant in range(60):
        for letter, row in book(variant)["questions"].items():
            if question in row.question and not math.isclose(row.right, value(book(variant)["plan"], row.right)):
                number = value(book(variant)["plan"], row.right)
                return _book(
                    variant, lambda lines, k=letter, n=number: [(a, n if a == k else b, c) for a, b, c in lines]
                )
    raise LookupError(question)


wrong_padding = _entered("padding-counts", answer=_number("targets", lambda p, x: x / (1 - p["padding"] / 100)))
wrong_one_rank = _entered("one-rank-is-the-batch", answer=_number("targets", lambda p, x: x / p["ranks"]))
wrong_steps_read = _entered("a-step-is-a-sequence", answer=_number("sequences has the run", lambda p, x: p["resume"]))
wrong_little_leak = _entered("a-little-leak-is-none", answer=_number("a logit move", lambda p, x: 0.01))
wrong_leak_of_any_size = _entered(says="what comes after it", answer=_number("a logit move", lambda p, x: 65504))
wrong_other_format = _entered("one-format-for-all", answer=_number("stop in BF16", lambda p, x: 2048))
wrong_range = _entered("range-is-precision", answer=_number("stop in FP16", lambda p, x: 65504))
wrong_power = _entered("a-range-is-a-power-of-two", answer=_number("activation be", lambda p, x: 65536))
wrong_peak_rate = _entered("the-peak-is-the-rate", answer=_number("learning rate of", lambda p, x: p["peak_rate"]))
wrong_one_step = _entered("at-most-one-learning-rate", answer=_number("can Adam move", lambda p, x: 1.0))
wrong_no_shards = _entered("nothing-is-shared", answer=_number("GB", lambda p, x: 18 * p["parameters"] / 1e9))
wrong_state_in_gib = _entered(says="that is GiB", answer=_number("GB", lambda p, x: x * 1e9 / 2**30))
wrong_twice_too_far = _entered(says="for the fraction", answer=_number("stop in BF16", lambda p, x: 512))
wrong_step_of_a_weight = _entered(
    says="in learning rates", answer=_number("can Adam move", lambda p, x: x * p["peak_rate"])
)
wrong_all_shared = _entered(
    "everything-is-shared",
    answer=_number("GB", lambda p, x: 18 * p["parameters"] / p["ranks"] / 1e9),
)
wrong_seconds_at_peak = _entered("peak-is-reached", answer=_number("seconds does", lambda p, x: x * p["mfu"] / 100))
wrong_whole_interval = _entered("all-work-is-lost", answer=_number("a stop undo", lambda p, x: 2 * x))
wrong_checks_swapped = _entered(
    "any-check-will-do",
    answer=_book(0, lambda lines: [(*lines[0][:2], lines[1][2]), (*lines[1][:2], lines[0][2]), *lines[2:]]),
)
wrong_backwards = _entered("from-the-machine-up", answer=_book(0, lambda lines: lines[::-1]))
wrong_any_order = _entered("any-order-will-do", answer=_book(0, lambda lines: lines[4:6] + lines[:4] + lines[6:]))
wrong_one_missing = _entered(says="each question has one line", answer=_book(0, lambda lines: lines[1:]))
wrong_pairs = _entered(says="a list of", answer=_book(0, lambda lines: [line[:2] for line in lines]))
wrong_text_number = _entered(
    says="where a number is wanted", answer=_book(0, lambda lines: [(a, str(b), c) for a, b, c in lines])
)
wrong_check_letter = _entered(says="1 to 8", answer=_book(0, lambda lines: [(a, b, c + 10) for a, b, c in lines]))
right_other_order = right("my-runbook", answer=_book(1, lambda lines: [lines[k] for k in (1, 0, 3, 2, 5, 4, 7, 6)]))
right_lists = right(
    "my-runbook", answer=_book(2, lambda lines: [[a.lower(), float(f"{b:.5g}"), c] for a, b, c in lines])
)
right_own_book = right("my-runbook", answer=_book(4_242))
