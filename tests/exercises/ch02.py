"""Stated answers of chapter 2: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math

import torch
from mutants import right, wrong

from course_lib.checks.ch02_nine import NineLines
from course_lib.checks.ch02_published import published_run

# 02.1 bytes a parameter

_SIZE = {"fp32": 4, "bf16": 2, "fp16": 2}


def _bytes(recipe, *, moment=4, master=True):
    total = _SIZE[recipe["weights"]] + sum(_SIZE[g] for g in recipe["gradients"])
    moments = {"adamw": 2, "sgd-momentum": 1}.get(recipe["optimizer"], 0)
    low = recipe["weights"] != "fp32" and recipe["optimizer"] is not None
    return total + moment * moments + (4 if master and low else 0)


@wrong("bytes-a-parameter", "forgets-the-master-copy")
def wrong_no_master(recipe):
    return _bytes(recipe, master=False)


@wrong("bytes-a-parameter", "a-master-for-every-recipe")
def wrong_master_always(recipe):
    fp32 = recipe["weights"] == "fp32" and recipe["optimizer"]
    return _bytes(recipe) + (4 if fp32 else 0)


@wrong("bytes-a-parameter", "counts-weights-only")
def wrong_weights_only(recipe):
    return _SIZE[recipe["weights"]]


@wrong("bytes-a-parameter", "serving-is-training")
def wrong_serving_costs_as_much(recipe):
    return _bytes(recipe) if recipe["optimizer"] else _SIZE[recipe["weights"]] * 2 + 12


@wrong("bytes-a-parameter", "moments-in-16-bit")
def wrong_small_moments(recipe):
    return _bytes(recipe, moment=_SIZE[recipe["weights"]])


@wrong("bytes-a-parameter", "one-gradient-copy")
def wrong_first_gradient_only(recipe):
    return _bytes({**recipe, "gradients": recipe["gradients"][:1]})


@wrong("bytes-a-parameter", "one-moment")
def wrong_one_average(recipe):
    return _bytes(recipe) - (4 if recipe["optimizer"] == "adamw" else 0)


@wrong("bytes-a-parameter", says="What does momentum remember")
def wrong_no_average_at_all(recipe):
    return _bytes(recipe, moment=0)


@wrong("bytes-a-parameter", says="is not what this recipe holds")
def wrong_no_gradients(recipe):
    return _bytes({**recipe, "gradients": []})


@wrong("bytes-a-parameter", says="is not what this recipe holds")
def wrong_master_for_adamw_with_one_gradient_only(recipe):
    return _bytes(recipe, master=recipe["optimizer"] != "adamw" or len(recipe["gradients"]) > 1)


@wrong("bytes-a-parameter", says="plain SGD): 4 bytes are missing", misconception="forgets-the-master-copy")
def wrong_master_for_averages_only(recipe):
    return _bytes(recipe, master=recipe["optimizer"] != "sgd")


@wrong("bytes-a-parameter", says="return a number; yours is of type NoneType")
def wrong_bytes_forgets_return(recipe):
    _bytes(recipe)


@wrong("bytes-a-parameter", says="return a number; yours is of type str")
def wrong_says_it_in_words(recipe):
    return "16"


@right("bytes-a-parameter")
def right_as_a_list(recipe):
    kept = [recipe["weights"], *recipe["gradients"]]
    if recipe["optimizer"]:
        kept += ["fp32"] * {"adamw": 2, "sgd-momentum": 1, "sgd": 0}[recipe["optimizer"]]
        kept += [] if recipe["weights"] == "fp32" else ["fp32"]
    return sum(4 if name == "fp32" else 2 for name in kept)


# 02.2 the learning rate at a step


@wrong("rate-at-a-step", "first-step-at-zero")
def wrong_starts_at_zero(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * step / warmup
    return right_cosine.value(step, peak, warmup, steps, floor)


@wrong("rate-at-a-step", "cosine-from-step-0")
def wrong_cosine_under_warmup(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, step / (steps - 1))
    return floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2


@wrong("rate-at-a-step", "never-arrives")
def wrong_one_step_short(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / (steps - warmup))
    return floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2


@wrong("rate-at-a-step", "floor-is-zero")
def wrong_ends_at_zero(step, peak, warmup, steps, floor):
    return right_cosine.value(step, peak, warmup, steps, 0.0)


@wrong("rate-at-a-step", "half-a-cosine")
def wrong_quarter_period(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / (steps - 1 - warmup))
    return floor + (peak - floor) * math.cos(math.pi / 2 * done)


@wrong("rate-at-a-step", "adds-the-floor")
def wrong_floor_on_top(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / (steps - 1 - warmup))
    return floor + peak * (1 + math.cos(math.pi * done)) / 2


@wrong("rate-at-a-step", "runs-past-the-end")
def wrong_no_end(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / (steps - 1 - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2


@wrong("rate-at-a-step", "raw-cosine")
def wrong_cosine_as_it_is(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    return floor + (peak - floor) * math.cos(math.pi * min(1.0, (step - warmup) / (steps - 1 - warmup)))


@wrong("rate-at-a-step", "straight-line")
def wrong_linear(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    return floor + (peak - floor) * (1 - min(1.0, (step - warmup) / (steps - 1 - warmup)))


@wrong("rate-at-a-step", says="is of type list")
def wrong_a_list(step, peak, warmup, steps, floor):
    return [right_cosine.value(step, peak, warmup, steps, floor)]


@wrong("rate-at-a-step", says="is of type NoneType")
def wrong_rate_forgets_return(step, peak, warmup, steps, floor):
    if step < warmup:
        return peak * (step + 1) / warmup


@wrong("rate-at-a-step", says="not the schedule described (during warm-up).")
def wrong_at_step_0(step, peak, warmup, steps, floor):
    return 2 * right_cosine.value(step, peak, warmup, steps, floor)


@right("rate-at-a-step")
def right_as_a_tensor(step, peak, warmup, steps, floor):
    return torch.tensor(right_cosine.value(step, peak, warmup, steps, floor), dtype=torch.float64)


@wrong("rate-at-a-step", says="write it yourself")
def wrong_asks_the_library(step, peak, warmup, steps, floor):
    from course_lib.config import OptimConfig
    from course_lib.optim import lr_at

    return lr_at(step, OptimConfig(lr=peak, warmup_steps=warmup, min_lr_ratio=floor / peak), steps)


@right("rate-at-a-step")
def right_cosine(step, peak, warmup, steps, floor):
    if warmup > 0 and step + 1 <= warmup:
        return peak / warmup * (step + 1)
    left = max(steps - 1 - step, 0) / (steps - 1 - warmup)
    return floor + (peak - floor) * math.sin(math.pi * left / 2) ** 2


# 02.3 clip by global norm


def _norm(gradients):
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))


@wrong("clip-by-global-norm", "each-tensor-alone")
def wrong_tensor_by_tensor(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = _norm(p.grad for p in parameters)
    for p in parameters:
        p.grad *= min(1.0, max_norm / (float(p.grad.norm()) + 1e-12))
    return total


@wrong("clip-by-global-norm", "clips-by-value")
def wrong_by_value(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = _norm(p.grad for p in parameters)
    for p in parameters:
        p.grad.clamp_(-max_norm, max_norm)
    return total


@wrong("clip-by-global-norm", "scales-up")
def wrong_sets_the_norm(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = _norm(p.grad for p in parameters)
    for p in parameters:
        p.grad *= max_norm / (total + 1e-12)
    return total


@wrong("clip-by-global-norm", "sum-of-norms")
def wrong_adds_norms(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = sum(float(p.grad.norm()) for p in parameters)
    for p in parameters:
        p.grad *= min(1.0, max_norm / (total + 1e-12))
    return total


@wrong("clip-by-global-norm", "generator-used-twice")
def wrong_loops_twice(parameters, max_norm):
    total = _norm(p.grad for p in parameters if p.grad is not None)
    if math.isfinite(total) and total > max_norm:
        for p in parameters:
            if p.grad is not None:
                p.grad *= max_norm / total
    return total


@wrong("clip-by-global-norm", "divides-by-zero")
def wrong_no_guard(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = torch.cat([p.grad.flatten() for p in parameters]).norm()
    for p in parameters:
        p.grad *= torch.clamp(max_norm * total / total**2, max=1.0)
    return total


@wrong("clip-by-global-norm", "not-in-place")
def wrong_new_tensors(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = _norm(gradients)
    gradients = [g * min(1.0, max_norm / total) for g in gradients]
    return total


@wrong("clip-by-global-norm", "norm-after-clipping")
def wrong_logs_the_clipped_norm(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = _norm(p.grad for p in parameters)
    if total > max_norm:
        for p in parameters:
            p.grad *= max_norm / total
    return _norm(p.grad for p in parameters)


@wrong("clip-by-global-norm", "scales-by-infinity")
def wrong_scales_infinity(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = _norm(p.grad for p in parameters)
    for p in parameters:
        p.grad *= min(1.0, max_norm / (total + 1e-6))
    return total


@wrong("clip-by-global-norm", "not-in-place")
def wrong_rebinds_the_gradient(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = _norm(p.grad for p in parameters)
    if math.isfinite(total) and total > max_norm:
        for p in parameters:
            p.grad = p.grad * (max_norm / total)
    return total


@wrong("clip-by-global-norm", "nan-is-no-infinity")
def wrong_isinf_only(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.cat([g.flatten() for g in gradients]).norm()
    if not torch.isinf(total):
        for g in gradients:
            g.mul_(torch.clamp(max_norm / (total + 1e-6), max=1.0))
    return total


@wrong("clip-by-global-norm", "hides-the-infinity")
def wrong_ignores_infinity(parameters, max_norm):
    total = right_squares_first.value(parameters, max_norm)
    return total if torch.isfinite(total) else 0.0


@wrong("clip-by-global-norm", says="return a number; yours is of type NoneType")
def wrong_clip_forgets_return(parameters, max_norm):
    right_squares_first.value(parameters, max_norm)


@wrong("clip-by-global-norm", says="write it yourself")
def wrong_calls_torch(parameters, max_norm):
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


@wrong("clip-by-global-norm", says="must stay without one")
def wrong_fills_in_zeros(parameters, max_norm):
    parameters = list(parameters)
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    total = _norm(p.grad for p in parameters)
    if math.isfinite(total) and total > max_norm:
        for p in parameters:
            p.grad *= max_norm / total
    return total


@right("clip-by-global-norm")
def right_squares_first(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.stack([g.pow(2).sum() for g in gradients]).sum().sqrt()
    if torch.isfinite(total) and total > max_norm:
        for g in gradients:
            g.mul_(max_norm / total)
    return total


# 02.4 AdamW by hand


def _adamw(weights, grads, state, lr, beta1, beta2, eps, weight_decay, rule=""):
    t = state["t"] = state.get("t", 0) + (rule != "each")
    lr = state.setdefault("lr", lr) if rule == "first lr" else lr
    for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
        if rule == "each":
            t = state["t"] = state["t"] + 1
        if rule == "skip" and not g.any():
            continue
        dtype = torch.float32 if rule == "float32" else w.dtype
        key = w.shape if rule == "shape" else i
        m, v = state.setdefault(key, (torch.zeros(w.shape, dtype=dtype), torch.zeros(w.shape, dtype=dtype)))
        if rule == "l2":
            g = g + weight_decay * w
        elif rule == "no lr":
            w.mul_(1 - weight_decay)
        elif rule == "sign":
            w.mul_(1 + lr * weight_decay)
        elif rule != "after":
            w.mul_(1 - lr * weight_decay)
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).add_(g * g, alpha=1 - beta2)
        k = t - 1 if rule == "from zero" else t
        mean, square = (m, v) if rule == "raw" else (m / (1 - beta1**k), v / (1 - beta2**k))
        w.sub_(lr * mean / ((square + eps).sqrt() if rule == "eps" else square.sqrt() + eps))
        if rule == "after":
            w.mul_(1 - lr * weight_decay)


def _variant(rule, misconception=None, says=""):
    def adamw(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
        try:
            _adamw(weights, grads, state, lr, beta1, beta2, eps, weight_decay, rule)
        except ZeroDivisionError:
            for w in weights:
                w.fill_(math.nan)

    return wrong("adamw-by-hand", misconception, says=says, answer=adamw)


wrong_l2_penalty = _variant("l2", "decay-through-the-gradient")
wrong_raw_averages = _variant("raw", "no-bias-correction")
wrong_eps_under_the_root = _variant("eps", "eps-inside-the-root")
wrong_decay_without_lr = _variant("no lr", "decay-without-lr")
wrong_decay_afterwards = _variant("after", "decay-after-the-update")
wrong_counts_from_zero = _variant("from zero", "counts-steps-from-zero")
wrong_counts_every_tensor = _variant("each", "counts-every-tensor", "how often does your step count grow")
wrong_keeps_the_first_rate = _variant("first lr", "keeps-the-first-rate", "rate halves at every step")
wrong_state_by_shape = _variant("shape", "state-is-lost-or-shared", "tell tensors apart")
wrong_decay_grows = _variant("sign", "decay-grows", "without decay you are right")
wrong_skips_quiet_tensors = _variant("skip", "decay-needs-a-gradient", "but decay still acts")
wrong_float32_averages = _variant("float32", None, "which dtype have your averages")


@wrong("adamw-by-hand", "not-in-place", says="the model still holds the old ones")
def wrong_replaces_the_entries(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    moved = [w.clone() for w in weights]
    _adamw(moved, grads, state, lr, beta1, beta2, eps, weight_decay)
    for i, w in enumerate(moved):
        weights[i] = w


@wrong("adamw-by-hand", says="your code changed `grads`")
def wrong_zeroes_the_gradients(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    _adamw(weights, grads, state, lr, beta1, beta2, eps, weight_decay)
    for g in grads:
        g.zero_()


@wrong("adamw-by-hand", "state-is-lost-or-shared", says="when call 2 begins")
def wrong_loses_the_averages(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    _adamw(weights, grads, {"t": state.setdefault("n", 0)}, lr, beta1, beta2, eps, weight_decay)
    state["n"] += 1


@wrong("adamw-by-hand", "state-is-lost-or-shared")
def wrong_forgets_between_calls(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    _adamw(weights, grads, {}, lr, beta1, beta2, eps, weight_decay)


@wrong("adamw-by-hand", "not-in-place")
def wrong_rebinds(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    weights = [w.clone() for w in weights]
    _adamw(weights, grads, state, lr, beta1, beta2, eps, weight_decay)


@wrong("adamw-by-hand", says="write it yourself")
def wrong_asks_torch(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    torch.optim.AdamW(weights, lr=lr)


@right("adamw-by-hand")
def right_written_as_in_the_paper(weights, grads, state, lr, beta1, beta2, eps, weight_decay):
    state.setdefault("m", [w * 0 for w in weights])
    state.setdefault("v", [w * 0 for w in weights])
    state["t"] = t = state.get("t", 0) + 1
    for i in range(len(weights)):
        state["m"][i] = beta1 * state["m"][i] + (1 - beta1) * grads[i]
        state["v"][i] = beta2 * state["v"][i] + (1 - beta2) * grads[i] ** 2
        step = state["m"][i] / (1 - beta1**t) / ((state["v"][i] / (1 - beta2**t)) ** 0.5 + eps)
        weights[i].copy_(weights[i] - lr * (step + weight_decay * weights[i]))


# 02.5 nine parts

_PARTS = ["batch", "input_ids", "forward", "loss", "backward", "clip", "optimizer", "scheduler", "record"]


def _nine(variant, parts=_PARTS, **changes):
    program = NineLines(variant)
    answer = {
        "variant": variant,
        "order": "".join(program.letters[part] for part in parts),
        "choice": program.letters[program.fault],
        "evidence": program.run(mended=True)[program.fault][0],
    }
    return {**answer, **changes}


def _moved(part, place):
    rest = [name for name in _PARTS if name != part]
    return [*rest[:place], part, *rest[place:]]


wrong_loss_first = wrong("nine-parts", "uses-what-is-not-there", answer=_nine(0, _moved("loss", 1)))
wrong_clips_the_loss = wrong("nine-parts", "clip-before-backward", answer=_nine(0, _moved("clip", 4)))
wrong_clips_too_late = wrong("nine-parts", "clip-after-the-step", answer=_nine(1, _moved("clip", 6)))
wrong_steps_first = wrong("nine-parts", "steps-on-old-gradients", answer=_nine(1, _moved("optimizer", 0)))
wrong_schedules_first = wrong("nine-parts", "scheduler-before-the-step", answer=_nine(2, _moved("scheduler", 0)))
wrong_records_early = wrong("nine-parts", "uses-what-is-not-there", answer=_nine(2, _moved("record", 4)))
wrong_logs_before_used = wrong(
    "nine-parts", "uses-what-is-not-there", says="uses `used`", answer=_nine(0, _moved("record", 7))
)
wrong_blames_another = wrong(
    "nine-parts",
    "blames-a-sound-line",
    answer=_nine(3, choice=next(letter for part, letter in NineLines(3).letters.items() if part != NineLines(3).fault)),
)
wrong_copies_the_log = wrong(
    "nine-parts", "repeats-the-log", answer=_nine(4, evidence=NineLines(4).run()[NineLines(4).fault][0])
)
wrong_no_number = wrong("nine-parts", says="`evidence` is still empty", answer=_nine(4, evidence=None))
wrong_no_choice = wrong("nine-parts", says="`choice` is still empty", answer=_nine(4, choice=None))
wrong_choice_in_words = wrong("nine-parts", says="`choice` is one letter, A to I", answer=_nine(0, choice="line H"))
wrong_quoted_number = wrong("nine-parts", says="without quotes", answer=_nine(0, evidence="12"))
wrong_key = wrong("nine-parts", says="`oder` is not one of them", answer={"variant": 0, "oder": "A", "choice": "B"})
wrong_number_alone = wrong("nine-parts", says="Work it out", answer=_nine(1, evidence=1234.5))
wrong_letters_missing = wrong("nine-parts", says="A to I once", answer=_nine(0, order="ABC"))
right_with_arrows = right("nine-parts", answer=_nine(0, order=" -> ".join(NineLines(0).letters[p] for p in _PARTS)))
right_as_a_list_of_letters = right(
    "nine-parts", answer=_nine(5, order=[NineLines(5).letters[p].lower() for p in _PARTS])
)
right_variant_7, right_variant_8, right_variant_9 = (right("nine-parts", answer=_nine(v)) for v in (7, 8, 9))

# 02.6 a published run


def _published(variant, **changes):
    run = published_run(variant)
    return {"variant": variant, "choice": run["cards"], "evidence": run["mfu"], **changes}


def _cards(variant, size):
    run = published_run(variant)
    return math.ceil(size(run["bytes"]) * run["parameters"] / run["memory"])


wrong_weights_alone = wrong(
    "published-run", "counts-weights-only", answer=_published(2, choice=_cards(2, lambda size: 2))
)
wrong_master_forgotten = wrong(
    "published-run",
    says="4 bytes a parameter are missing",
    answer=_published(2, choice=_cards(2, lambda size: size - 4)),
)
wrong_optimizer_forgotten = wrong(
    "published-run", "no-optimizer-state", answer=_published(2, choice=_cards(2, lambda size: size - 12))
)
wrong_floor = wrong("published-run", "rounds-down", answer=_published(2, choice=_cards(2, lambda size: size) - 1))
wrong_forward_only = wrong("published-run", "forward-only", answer=_published(0, evidence=published_run(0)["mfu"] / 3))
wrong_recomputed = wrong(
    "published-run", "counts-recomputation", answer=_published(1, evidence=published_run(1)["mfu"] * 4 / 3)
)
wrong_hours = wrong("published-run", "hours-as-seconds", answer=_published(1, evidence=published_run(1)["mfu"] * 3600))
wrong_in_percent = wrong("published-run", "percent", answer=_published(3, evidence=published_run(3)["mfu"] * 100))
wrong_quoted_cards = wrong("published-run", says="`choice` is one whole number", answer=_published(0, choice="5"))
wrong_quoted_mfu = wrong("published-run", says="without quotes", answer=_published(0, evidence="39%"))
wrong_mfu_missing = wrong("published-run", says="the cards are right; `evidence`", answer=_published(0, evidence=None))
wrong_cards_in_parts = wrong("published-run", says="cards come whole", answer=_published(0, choice=8.98))
wrong_key_of_cards = wrong(
    "published-run", says="`cards` is not one", answer={"variant": 0, "cards": 5, "evidence": 0.3}
)
right_to_three_digits = right("published-run", answer=_published(4, evidence=round(published_run(4)["mfu"], 3)))
right_another_variant = right("published-run", answer=_published(11))
# variants in which rounding down once met the number of another mistake
wrong_floor_0, wrong_floor_3, wrong_floor_5 = (
    wrong("published-run", "rounds-down", answer=_published(v, choice=_cards(v, lambda size: size) - 1))
    for v in (0, 3, 5)
)
wrong_no_optimizer_0, wrong_no_optimizer_3, wrong_no_optimizer_5 = (
    wrong("published-run", "no-optimizer-state", answer=_published(v, choice=_cards(v, lambda size: size - 12)))
    for v in (0, 3, 5)
)
