"""Stated answers of chapter 14: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math

import numpy as np
from mutants import right, wrong

from course_lib.checks.ch14_kinds import tables
from course_lib.checks.ch14_logs import incident, log, number
from course_lib.checks.ch14_order import suspects
from course_lib.checks.ch14_roots import draw
from course_lib.checks.ch14_skip import past

# 14.1 the order of suspicion


def _order(variant, order=None, evidence=None):
    run = suspects(variant)
    value = run["evidence"] if evidence is None else evidence
    return {"variant": variant, "order": run["order"] if order is None else order, "evidence": value}


def _ordered(misconception=None, says="", answer=None):
    return wrong("order-of-suspicion", misconception, says=says, answer=answer)


LINES, ORDER = suspects(0)["lines"], suspects(0)["order"]
SPENT = [LINES[one][2] for one in ORDER]
RESTART = next(one for one in LINES if LINES[one][2] == 240)
ELSEWHERE = next(one for one in LINES if one not in ORDER + RESTART)
wrong_restart = _ordered("restart-first", answer=_order(0, RESTART + ORDER, 1))
wrong_all_checks = _ordered("check-everything", answer=_order(0, ORDER + ELSEWHERE, 1))
wrong_no_system = _ordered("the-system-moves-no-loss", answer=_order(0, ORDER[:-1], 1))
wrong_cheapest = _ordered("cheapest-first", answer=_order(0, sorted(ORDER, key=lambda one: LINES[one][2]), 1))
wrong_dear_first = _ordered("cost-does-not-matter", answer=_order(0, ORDER[1] + ORDER[0] + ORDER[2:], 1))
wrong_backwards = _ordered("from-the-machine-up", answer=_order(0, ORDER[::-1], 1))
wrong_optimizer_first = _ordered("a-symptom-shows-its-cause", answer=_order(0, ORDER[3] + ORDER[:3] + ORDER[4:], 1))
wrong_all_minutes = _ordered("the-last-one-it-is", answer=_order(0, evidence=sum(SPENT)))
wrong_own_minutes = _ordered("checks-before-cost-nothing", answer=_order(0, evidence=sum(SPENT) / 5))
wrong_before_it = _ordered(
    "found-before-it-is-looked", answer=_order(0, evidence=_order(0)["evidence"] - sum(SPENT) / 5)
)
wrong_half = _ordered("half-of-all", answer=_order(0, evidence=sum(SPENT) / 2))
wrong_order_empty = _ordered(says="`order` is still empty", answer=_order(0) | {"order": None})
wrong_order_letters = _ordered(says="holds letters", answer=_order(0, "data first"))
wrong_minutes_text = _ordered(says="one number", answer=_order(0, evidence="60"))
wrong_order_fp16 = _ordered(says="less than wanted", answer=_order(1, suspects(1)["order"].replace("G", "")))
right_whole_minutes = right("order-of-suspicion", answer=_order(3, evidence=round(suspects(3)["evidence"])))
right_as_list = right("order-of-suspicion", answer=_order(1, list(suspects(1)["order"].lower())))
right_rounded = right("order-of-suspicion", answer=_order(3, evidence=round(suspects(3)["evidence"], 1)))

# 14.2 from the log alone


def _log(variant, choice=None, evidence=None):
    letter, run = incident(variant)
    return {
        "variant": variant,
        "choice": choice or letter,
        "evidence": number(letter, run) if evidence is None else evidence,
    }


def _logged(misconception=None, says="", answer=None):
    return wrong("logs-alone", misconception, says=says, answer=answer)


wrong_padding = _logged("a-gap-is-padding", answer=_log(0, "A", 9))
wrong_noise = _logged("noise-is-a-spike", answer=_log(0, "B", 9))
wrong_scheduler = _logged("a-resume-is-always-guilty", answer=_log(0, "D", 9))
wrong_cursor = _logged("a-resume-is-always-guilty", answer=_log(2, "C", 9))
wrong_overflow = _logged("no-number-is-an-overflow", answer=_log(1, "E", 9))
wrong_memory = _logged("a-run-that-ends-is-out-of-memory", answer=_log(5, "F", 9))
wrong_ranks = _logged("loss-shows-all", answer=_log(6, "G", 9))
wrong_rate = _logged("it-is-always-the-learning-rate", answer=_log(4, "H", 9))
wrong_ratio = _logged("upside-down", answer=_log(4, evidence=1 / _log(4)["evidence"]))
wrong_sign = _logged("the-other-sign", answer=_log(6, evidence=-_log(6)["evidence"]))
wrong_step = _logged("where-for-how-much", answer=_log(4, evidence=int(np.nanargmax(log(4)["loss"]))))
wrong_first_skip = _logged("where-for-how-much", answer=_log(5, evidence=int(np.argmax(log(5)["skipped"]))))
wrong_held = _logged("all-that-is-held", answer=_log(1, evidence=log(1)["memory_bytes"][-1]))
wrong_mean_held = _logged(
    "the-start-was-kept-too", answer=_log(1, evidence=log(1)["memory_bytes"][-1] / len(log(1)["loss"]))
)
wrong_log_half = _logged(
    "a-resume-is-always-guilty", says="the evidence is right, the choice is not", answer=_log(0, "D")
)
wrong_log_empty = _logged(says="`evidence` is still empty", answer=_log(0) | {"evidence": None})
wrong_log_word = _logged(says="one letter", answer=_log(0) | {"choice": "cursor"})
wrong_never_resumed = _logged("a-resume-is-always-guilty", says="was this run resumed?", answer=_log(1, "C", 40))
wrong_all_alike = _logged("a-resume-is-always-guilty", says="which other steps", answer=_log(6, "C", 40))
wrong_both_resumes = _logged("any-resume", answer=_log(0, evidence=80))
wrong_difference = _logged(
    "a-difference-is-a-ratio", answer=_log(2, evidence=float(log(2)["lr"][40] - log(2)["lr"][39]))
)
HELD = log(1)["memory_bytes"]
wrong_all_added = _logged("all-that-was-added", answer=_log(1, evidence=float(HELD[-1] - HELD[0])))
wrong_gaps = _logged("as-many-gaps-as-rows", answer=_log(1, evidence=float(HELD[-1] - HELD[0]) / len(HELD)))
right_slope = right(
    "logs-alone",
    answer=_log(1, evidence=np.polyfit(range(len(log(1)["loss"])), log(1)["memory_bytes"], 1)[0]),
)
right_skips = right("logs-alone", answer=_log(5, "e", sum(np.isnan(log(5)["grad_norm"]))))
right_apart = right("logs-alone", answer=_log(3))
right_reset = right("logs-alone", answer=_log(2, evidence=round(_log(2)["evidence"], 3)))

# 14.3 a step that Adam cannot make


def _stepped(misconception=None, says="", answer=None):
    return wrong("impossible-step", misconception, says=says, answer=answer)


def _bound(betas):
    one, two = betas
    return (1 - one) / math.sqrt((1 - two) * (1 - one**2 / two))


def _rule(bound=_bound, decay=True, farthest=lambda far: np.abs(far).max(), unit=lambda before, lr: lr):
    def impossible(before, after, lr, betas, weight_decay):
        far = after - before * (1 - lr * weight_decay if decay else 1)
        return bool(not farthest(far) / unit(before, lr) <= 1.01 * bound(betas))

    return impossible


def _nan_passes(before, after, lr, betas, weight_decay):
    return bool(np.abs(after - before * (1 - lr * weight_decay)).max() > 1.01 * lr * _bound(betas))


wrong_one_rate = _stepped("large-is-wrong", answer=_rule(lambda betas: 0.5))
wrong_bound_of_one = _stepped("at-most-one-learning-rate", answer=_rule(lambda betas: 1.0))
wrong_one_bound = _stepped("one-bound-for-all-betas", answer=_rule(lambda betas: 1.165))
wrong_no_decay = _stepped("decay-is-no-move", answer=_rule(decay=False))
wrong_decay_without_rate = _stepped(
    "decay-is-no-move", says="how far in one step", answer=lambda b, a, lr, be, wd: _rule()(b, a, lr, be, wd / lr)
)
wrong_mean_step = _stepped("the-mean-tells", answer=_rule(farthest=lambda far: np.abs(far).mean()))
wrong_no_abs = _stepped("one-sided", answer=_rule(farthest=lambda far: far.max()))
wrong_other_side = _stepped("one-sided", answer=_rule(farthest=lambda far: -far.min()))
wrong_root_mean_square = _stepped("the-mean-tells", answer=_rule(farthest=lambda far: np.sqrt((far**2).mean())))
wrong_printed_pairs = _stepped(
    "one-bound-for-all-betas", answer=_rule(lambda betas: {0.95: 1.165, 0.999: 7.27}.get(betas[1], 1.165))
)
wrong_printed_or_more = _stepped(
    "one-bound-for-all-betas", answer=_rule(lambda betas: 1.165 if betas[1] == 0.95 else 7.27)
)
wrong_printed_and_third = _stepped(
    "one-bound-for-all-betas",
    answer=_rule(lambda betas: {(0.9, 0.95): 1.165, (0.9, 0.999): 7.27, (0.8, 0.99): 3.364}.get(betas, 3.364)),
)


@wrong("impossible-step", "decay-is-slack")
def wrong_decay_as_slack(before, after, lr, betas, weight_decay):
    far = np.abs(after - before) / lr - np.abs(weight_decay * before)
    return not bool((far <= 1.01 * _bound(betas)).all())


wrong_nan = _stepped("nan-compares", answer=_nan_passes)
wrong_loose = _stepped("any-step-goes", answer=_rule(lambda betas: 7.27))
wrong_formula = _stepped("any-step-goes", answer=_rule(lambda betas: 0.99 * math.sqrt((1 - betas[0]) / (1 - betas[1]))))
wrong_short_formula = _stepped(
    "one-bound-for-all-betas", answer=_rule(lambda betas: max(1.165, (1 - betas[0]) / math.sqrt(1 - betas[1])))
)
wrong_very_loose = _stepped("any-step-goes", answer=_rule(lambda betas: 1e9))
wrong_never = _stepped("any-step-goes", answer=lambda before, after, lr, betas, weight_decay: False)
wrong_step_nothing = _stepped(says="True or False; nothing came back", answer=lambda *step: None)
wrong_step_number = _stepped(says="True or False", answer=lambda before, after, lr, betas, weight_decay: 1.2)


@right("impossible-step")
def right_by_the_worst_gradients(before, after, lr, betas, weight_decay):
    """Adam itself, fed with the gradients that take it furthest."""
    m = v = 0.0
    for t in range(900):
        gradient = (betas[1] / betas[0]) ** t
        m, v = betas[0] * m + (1 - betas[0]) * gradient, betas[1] * v + (1 - betas[1]) * gradient**2
    largest = m / math.sqrt(v)
    far = after.astype(float) - before + lr * weight_decay * before
    return bool(np.isnan(far).any() or (abs(far) > lr * largest * 1.1).any())


@right("impossible-step")
def right_weight_by_weight(before, after, lr, betas, weight_decay):
    limit = 1.2 * _bound(betas)
    return any(
        math.isnan(new) or abs(float(new) - float(old) * (1 - lr * weight_decay)) > limit * lr
        for old, new in zip(before, after, strict=True)
    )


# 14.4 past the NaN


def _past(variant, choice=None, evidence=None):
    run = past(variant)
    return {
        "variant": variant,
        "choice": choice or run["choice"],
        "evidence": run["evidence"] if evidence is None else evidence,
    }


def _passed(misconception=None, says="", answer=None):
    return wrong("past-the-nan", misconception, says=says, answer=answer)


wrong_left_out = _passed("finite-is-healthy", answer=_past(0, "A", 1))
wrong_one_lost = _passed("finite-is-healthy", answer=_past(0, evidence=1))
wrong_no_step = _passed("no-gradient-no-step", answer=_past(1, "A", 99))
wrong_zero_step = _passed("no-gradient-no-step", answer=_past(3, "B", 99))
wrong_put_back = _passed("nan-is-over-when-it-is-gone", answer=_past(1, "C", 99))
wrong_not_rolled_back = _passed("a-roll-back-leaves-the-nan", answer=_past(0, "D", 99))
wrong_no_trace = _passed("a-skip-leaves-no-trace", answer=_past(4, "A", 99))
wrong_same_batches = _passed("the-cursor-is-the-step", answer=_past(2, "D", 99))
wrong_rolled_back = _passed("a-roll-back-leaves-the-nan", answer=_past(1, "D", 99))
wrong_moved = _passed("a-move-is-learning", answer=_past(1, evidence=0))
wrong_skip_free = _passed("a-skip-leaves-no-trace", answer=_past(3, evidence=0))
wrong_back_loses = _passed("a-roll-back-loses-work", answer=_past(4, evidence=5))
wrong_bad_alone = _passed("only-the-bad-batch", answer=_past(2, evidence=1))
wrong_off_by_one = _passed(says="count once more", answer=_past(0, evidence=past(0)["evidence"] - 1))
wrong_past_half = _passed("no-gradient-no-step", says="the evidence is right, the choice is not", answer=_past(3, "B"))
right_left_out = right("past-the-nan", answer=_past(3))
right_all_read = right("past-the-nan", answer=_past(4, "d", np.int64(0)))
right_from_rows = right("past-the-nan", answer=_past(2, evidence=past(2)["rows"][-1][1] - past(2)["rows"][-1][0]))
right_still = right("past-the-nan", answer=_past(5, evidence=sum(row[3] == 0 for row in past(5)["rows"])))

# 14.5 clip by z-score


def _clipper(
    uses=lambda norm, used: used,
    limit=lambda z, threshold: threshold**2 / z,
    outlier=lambda z, threshold: z > threshold,
    old=False,
    less=0,
    root=True,
    skips=True,
    place=False,
    early=False,
    flat="",
    stays_out=False,
):
    def clip(norms, threshold, keep, warm_up):
        seen, out, mean, variance = [], [], math.nan, math.nan
        for norm in norms:
            if not math.isfinite(norm) and skips:
                out.append(0.0)
                if place:
                    seen.append(None)
                continue
            known = [one for one in seen if one is not None]
            if len(seen) < warm_up:
                if early and len(known) > 1:
                    mean, deviation = np.mean(known), np.std(known)
                    if norm > mean + threshold * deviation:
                        norm = mean + threshold**2 / ((norm - mean) / deviation) * deviation
                seen.append(norm)
                known.append(norm)
                mean = sum(known) / len(known)
                variance = sum((one - mean) ** 2 for one in known) / max(len(known) - less, 1)
                out.append(norm)
                continue
            deviation = math.sqrt(variance) if root else variance
            if flat and deviation == 0:
                if flat == "nothing":
                    out.append(min(norm, mean))
                    continue
                norm = mean
            z = (norm - mean) / deviation if deviation > 0 else math.inf * np.sign(norm - mean) if norm != mean else 0.0
            used = (
                mean + (limit(z, threshold) * deviation if math.isfinite(z) else 0.0) if outlier(z, threshold) else norm
            )
            out.append(used)
            if stays_out and used != norm:
                continue
            enters = uses(norm, used)
            before = mean
            mean = keep * mean + (1 - keep) * enters
            variance = keep * variance + (1 - keep) * (enters - (before if old else mean)) ** 2
        return out

    return clip


def _clipped(misconception=None, says="", answer=None):
    return wrong("z-clip", misconception, says=says, answer=answer)


wrong_raw = _clipped("the-raw-norm-enters", answer=_clipper(uses=lambda norm, used: norm))
wrong_to_threshold = _clipped("clipped-to-the-threshold", answer=_clipper(limit=lambda z, threshold: threshold))
wrong_both_sides = _clipped("low-norms-are-outliers", answer=_clipper(outlier=lambda z, threshold: abs(z) > threshold))
wrong_old_mean = _clipped("the-old-mean-in-the-variance", answer=_clipper(old=True))
wrong_unbiased = _clipped("one-less-than-the-count", answer=_clipper(less=1))
wrong_no_square = _clipped("no-square", answer=_clipper(limit=lambda z, threshold: threshold / z))
wrong_variance = _clipped("z-is-a-distance", answer=_clipper(root=False))
wrong_above_mean = _clipped("everything-above-the-mean", answer=_clipper(outlier=lambda z, threshold: z > 0))
wrong_nan_place = _clipped("nan-takes-a-place", answer=_clipper(place=True))
wrong_nan_enters = _clipped("nan-is-a-number", answer=_clipper(skips=False))
wrong_early = _clipped("warm-up-is-clipped", answer=_clipper(early=True))
wrong_outliers_stay_out = _clipped("outliers-stay-out", answer=_clipper(stays_out=True))
wrong_keeps_the_new = _clipped("keep-is-for-the-new", answer=lambda n, t, keep, w: _clipper()(n, t, 1 - keep, w))
wrong_one_threshold = _clipped("defaults-for-all", answer=lambda n, t, keep, w: _clipper()(n, 2.5, keep, w))
wrong_one_keep = _clipped("defaults-for-all", answer=lambda n, t, keep, w: _clipper()(n, t, 0.97, w))
wrong_one_warm_up = _clipped("defaults-for-all", answer=lambda n, t, keep, w: _clipper()(n, t, keep, 25))


@wrong("z-clip", "nan-is-a-0-of-the-warm-up")
def wrong_nan_is_0(norms, threshold, keep, warm_up):
    """The entry of a norm that is not finite, 0, is one of the first norms; later ones are left out as they should."""
    known = [0.0 if not math.isfinite(one) and place < warm_up else one for place, one in enumerate(norms)]
    return _clipper()(known, threshold, keep, warm_up)


wrong_flat_mean = _clipped("without-deviation-all-is-the-mean", answer=_clipper(flat="mean"))
wrong_flat_nothing = _clipped("without-deviation-nothing-enters", answer=_clipper(flat="nothing"))


@wrong("z-clip", says="changed what it was given")
def wrong_in_place(norms, threshold, keep, warm_up):
    norms[:] = _clipper()(norms, threshold, keep, warm_up)
    return norms


wrong_clip_nothing = _clipped(says="nothing came back", answer=lambda norms, threshold, keep, warm_up: None)
wrong_clip_short = _clipped(says="one number for each norm", answer=lambda norms, threshold, keep, warm_up: norms[1:])
wrong_as_it_was = _clipped(says="left as it is", answer=lambda norms, threshold, keep, warm_up: norms)


@right("z-clip")
def right_with_an_epsilon(norms, threshold, keep, warm_up):
    """As ZClip's code does: 1e-6 beside the deviation; arrays."""
    norms = np.array(norms)
    finite, out = np.isfinite(norms), np.zeros(len(norms))
    places = np.flatnonzero(finite)
    out[places[:warm_up]] = norms[places[:warm_up]]
    if len(places) <= warm_up:
        return out
    mean, variance = norms[places[:warm_up]].mean(), norms[places[:warm_up]].var()
    for k in places[warm_up:]:
        deviation = variance**0.5 + 1e-6
        z = (norms[k] - mean) / deviation
        out[k] = mean + threshold**2 / z * deviation if z > threshold else norms[k]
        mean = keep * mean + (1 - keep) * out[k]
        variance = keep * variance + (1 - keep) * (out[k] - mean) ** 2
    return out


right_by_parts = right("z-clip", answer=_clipper())

# 14.6 another rate, or another kind


def _kind(variant, choice=None, evidence=None):
    run = tables(variant)
    value = run["evidence"] if evidence is None else evidence
    return {"variant": variant, "choice": choice or run["choice"], "evidence": value}


def _sorted(misconception=None, says="", answer=None):
    return wrong("rate-or-kind", misconception, says=says, answer=answer)


def _row(variant, wanted):
    """The letter of the first row that is not the answer and fits."""
    run = tables(variant)
    return next(
        letter
        for letter, row in zip("ABCDE", run["rows"], strict=True)
        if letter != run["choice"] and wanted(row, run["rows"])
    )


COUNT = tables(0)["rows"]["ABCDE".index(tables(0)["choice"])][1]
SHARE, TIMES = tables(0)["devices"] / 16_384, tables(0)["days"] / 54
wrong_unseen = _sorted("unseen-is-new", answer=_kind(0, _row(0, lambda row, rows: row[2] == 0), 99))
wrong_unseen_gone = _sorted("unseen-is-new", answer=_kind(1, _row(1, lambda row, rows: row[2] == 0), 99))
wrong_most = _sorted(
    "more-stops-are-another-kind",
    answer=_kind(1, _row(1, lambda row, rows: row[1] == max(one[1] for one in rows)), 99),
)
wrong_differs = _sorted(
    "any-difference-counts",
    answer=_kind(0, _row(0, lambda row, rows: row[2] and row[1] < max(one[1] for one in rows)), 99),
)
wrong_devices = _sorted("devices-alone", answer=_kind(0, evidence=COUNT * SHARE))
wrong_days = _sorted("days-alone", answer=_kind(0, evidence=COUNT * TIMES))
wrong_longer = _sorted("longer-is-rarer", answer=_kind(0, evidence=COUNT * SHARE / TIMES))
wrong_counts = _sorted("counts-compare", answer=_kind(0, evidence=COUNT))
wrong_as_seen = _sorted("what-was-seen-was-expected", answer=_kind(0, evidence=0))
wrong_as_seen_there = _sorted(
    "what-was-seen-was-expected", answer=_kind(1, evidence=tables(1)["rows"]["ABCDE".index(tables(1)["choice"])][2])
)
FOUND = tables(1)["rows"]["ABCDE".index(tables(1)["choice"])][2]
wrong_other_way = _sorted(
    "the-other-way-round",
    answer=_kind(1, evidence=FOUND * 16_384 * 54 / tables(1)["devices"] / tables(1)["days"]),
)
wrong_kind_half = _sorted(
    "unseen-is-new", says="the evidence is right", answer=_kind(0, _row(0, lambda row, rows: row[2] == 0))
)
right_rate = right(
    "rate-or-kind", answer=_kind(0, evidence=COUNT / (16_384 * 54) * tables(0)["devices"] * tables(0)["days"])
)
right_gone = right("rate-or-kind", answer=_kind(1, tables(1)["choice"].lower(), round(tables(1)["evidence"], 2)))
right_later = right("rate-or-kind", answer=_kind(6))

# 14.7 two roots, and none


def _roots(variant, causality=None, bias=None):
    run = draw(variant)
    return {
        "variant": variant,
        "causality": run["causality"] if causality is None else causality,
        "bias": run["bias"] if bias is None else bias,
    }


def _rooted(misconception=None, says="", answer=None):
    return wrong("two-roots", misconception, says=says, answer=answer)


RUN = draw(0)
wrong_all_roots = _rooted("two-roots-explain-all", answer=_roots(0, bias=RUN["bias"] + RUN["neither"]))
wrong_one_more = _rooted("two-roots-explain-all", answer=_roots(0, bias=RUN["bias"] + RUN["neither"][0]))
wrong_no_leak = _rooted("only-a-missing-mask-leaks", answer=_roots(0, RUN["causality"][1:]))
wrong_no_bias = _rooted("small-errors-even-out", answer=_roots(0, bias=""))
wrong_leak_bias = _rooted("a-leak-is-a-bias", answer=_roots(0, RUN["causality"][1:], RUN["bias"] + RUN["causality"][0]))
wrong_bias_leak = _rooted("an-error-is-an-error", answer=_roots(0, RUN["causality"] + RUN["bias"], ""))
wrong_both = _rooted(says="under both roots", answer=_roots(0, bias=RUN["bias"] + RUN["causality"]))
wrong_roots_empty = _rooted(says="still empty", answer=_roots(0) | {"bias": None})
wrong_roots_words = _rooted(says="holds letters", answer=_roots(0, "the mask"))
right_spaced = right("two-roots", answer=_roots(1, ", ".join(draw(1)["causality"][::-1].lower())))
right_lists = right("two-roots", answer=_roots(3, list(draw(3)["causality"]), tuple(draw(3)["bias"])))
