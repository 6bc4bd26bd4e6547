"""Stated answers of chapter 4: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math
from fractions import Fraction

import torch
from mutants import right, wrong

from course_lib.checks.ch04_choices import activation_oom
from course_lib.precision import FORMATS as LIBRARY
from course_lib.precision import Format as Imported

# 04.1 a policy from probes


def _choose(
    rows, *, candidates=("bf16", "fp16"), needs=("multiplies", "autocast"), fp16_scaler=True, limit=1.5, unknown=0.0
):
    for name in candidates:
        row = rows[name]
        ok = all(row[need] for need in needs) and (limit is None or (row["speed"] or unknown) >= limit)
        if ok and (name != "fp16" or not fp16_scaler or row["scaler"]):
            return name, name == "fp16"
    return "fp32", False


@right("policy-from-probes")
def right_policy_as_a_loop(rows):
    return _choose(rows)


@right("policy-from-probes")
def right_policy_returns_a_list(rows):
    fit = [n for n in rows if n != "fp32" and rows[n]["multiplies"] and rows[n]["autocast"]]
    fit = [n for n in fit if rows[n]["speed"] is not None and rows[n]["speed"] >= 1.5]
    fit = [n for n in fit if n == "bf16" or rows[n]["scaler"]]
    return [min(fit, default="fp32"), min(fit, default="fp32") == "fp16"]


@wrong("policy-from-probes", "a-scaler-for-every-16-bits")
def wrong_scaler_always(rows):
    name, _ = _choose(rows)
    return name, name != "fp32"


@wrong("policy-from-probes", "fp16-without-a-scaler")
def wrong_no_scaler(rows):
    return _choose(rows, fp16_scaler=False)[0], False


@wrong("policy-from-probes", "fp16-without-a-scaler", says="which of FP16's probes failed")
def wrong_skips_the_scalers_probe(rows):
    return _choose(rows, fp16_scaler=False)


@wrong("policy-from-probes", "forgets-multiplies")
def wrong_no_multiplies(rows):
    return _choose(rows, needs=("autocast",))


@wrong("policy-from-probes", "forgets-multiplies")
def wrong_stores_instead(rows):
    return _choose(rows, needs=("stores", "autocast"))


@wrong("policy-from-probes", "unmeasured-is-fast")
def wrong_unmeasured(rows):
    return _choose(rows, unknown=9.0)


@wrong("policy-from-probes", says="TypeError")
def wrong_compares_with_none(rows):
    fit = [n for n in rows if n != "fp32" and rows[n]["multiplies"] and rows[n]["autocast"] and rows[n]["speed"] >= 1.5]
    fit = [n for n in fit if n == "bf16" or rows[n]["scaler"]]
    return min(fit, default="fp32"), min(fit, default="fp32") == "fp16"


@wrong("policy-from-probes", "any-gain-is-enough")
def wrong_any_gain(rows):
    return _choose(rows, limit=1.0001)


@wrong("policy-from-probes", "any-gain-is-enough")
def wrong_lower_limit(rows):
    return _choose(rows, limit=1.45)


@wrong("policy-from-probes", "any-gain-is-enough")
def wrong_as_fast(rows):
    return _choose(rows, limit=1)


def _fp16_needs(rows, *needs, limit=1.5):
    if _choose(rows, candidates=("bf16",))[0] == "bf16":
        return "bf16", False
    row = rows["fp16"]
    good = all(row[need] for need in needs) and (limit is None or (row["speed"] or 0) >= limit)
    return ("fp16", True) if good else ("fp32", False)


@wrong("policy-from-probes", "fewer-bits-are-faster")
def wrong_fp16_at_any_speed(rows):
    return _fp16_needs(rows, "multiplies", "autocast", "scaler", limit=None)


@wrong("policy-from-probes", "at-least-is-more-than")
def wrong_fp16_at_more_than(rows):
    return _fp16_needs(rows, "multiplies", "autocast", "scaler", limit=1.5000001)


@wrong("policy-from-probes", "any-gain-is-enough")
def wrong_fp16_at_any_gain(rows):
    return _fp16_needs(rows, "multiplies", "autocast", "scaler", limit=1)


@wrong("policy-from-probes", "forgets-autocast")
def wrong_fp16_without_autocast(rows):
    return _fp16_needs(rows, "multiplies", "scaler")


@wrong("policy-from-probes", "forgets-multiplies")
def wrong_fp16_without_multiplies(rows):
    return _fp16_needs(rows, "autocast", "scaler")


@wrong("policy-from-probes", says="fp32 without a scaler is not")
def wrong_never_fp16(rows):
    return _choose(rows, candidates=("bf16",))


@wrong("policy-from-probes", "storing-is-enough")
def wrong_stores(rows):
    return _choose(rows, needs=("stores",), limit=None, fp16_scaler=False)


@wrong("policy-from-probes", "forgets-autocast")
def wrong_no_autocast(rows):
    return _choose(rows, needs=("multiplies",))


@wrong("policy-from-probes", "fewer-bits-are-faster")
def wrong_no_speed(rows):
    return _choose(rows, limit=None)


@wrong("policy-from-probes", "takes-the-fastest")
def wrong_fastest(rows):
    order = sorted(("bf16", "fp16"), key=lambda name: -(rows[name]["speed"] or 0))
    return _choose(rows, candidates=order)


@wrong("policy-from-probes", "at-least-is-more-than")
def wrong_more_than(rows):
    return _choose(rows, limit=1.5000001)


@wrong("policy-from-probes", "bf16-needs-a-scaler")
def wrong_bf16_needs_scaler(rows):
    return _choose(rows, needs=("multiplies", "autocast", "scaler"))


@wrong("policy-from-probes", says="return two things")
def wrong_policy_returns_a_name(rows):
    return _choose(rows)[0]


@wrong("policy-from-probes", says="return two things")
def wrong_policy_forgets_return(rows):
    _choose(rows)


# 04.2 the last exact count


@right("last-exact-count")
def right_by_spacing(round_to):
    power = 0
    while round_to(2.0**power + 1) != round_to(2.0**power):
        power += 1
    return 2**power - 1


@right("last-exact-count")
def right_by_bisection_of_powers(round_to):
    low, high = 0, 60
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if round_to(2.0**middle + 1) == 2.0**middle + 1 else (low, middle)
    return 2.0**high - 1


@wrong("last-exact-count", "counts-one-by-one")
def wrong_loop(round_to):
    n = 1
    while round_to(n + 1) == n + 1:
        n += 1
    return n - 1


@wrong("last-exact-count", "n-is-where-it-stops")
def wrong_where_it_stops(round_to):
    n = 1
    while round_to(n + 1) == n + 1:
        n *= 2
    return n


@wrong("last-exact-count", "forgets-the-hidden-bit")
def wrong_half(round_to):
    n = 1
    while round_to(n + 1) == n + 1:
        n *= 2
    return n // 2


@wrong("last-exact-count", "any-exact-sum-will-do")
def wrong_even_sums(round_to):
    n = 1
    while round_to(n + 1) == n + 1:
        n *= 2
    while round_to(n + 2) == n + 2:
        n *= 2
    return n + 1


@wrong("last-exact-count", says="is not where the count stops")
def wrong_two_less(round_to):
    n = 1
    while round_to(n + 1) == n + 1:
        n *= 2
    return n - 2


@wrong("last-exact-count", says="return a number")
def wrong_last_forgets_return(round_to):
    round_to(1)


# 04.3 rounding by hand


def _rounded(x, exponent_bits, mantissa_bits, *, whole=round, limit=None, flush=False, floor=True, bits=0):
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = math.frexp(x)[1] - 1
    if flush and abs(x) < 2.0 ** (1 - bias):
        return 0.0
    if floor:
        exponent = max(exponent, 1 - bias)
    spacing = 2.0 ** (exponent - mantissa_bits + bits)
    value = whole(x / spacing) * spacing
    largest = (2 - 2.0**-mantissa_bits) * 2.0**bias
    if limit == "none":
        return value
    if limit == "early":
        return math.copysign(math.inf, x) if abs(x) > largest else value
    if limit == "saturate":
        return max(-largest, min(largest, value))
    return math.copysign(math.inf, x) if abs(value) > largest else value


@wrong("round-by-hand", "truncates")
def wrong_truncates(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, whole=math.trunc)


@wrong("round-by-hand", "ties-up")
def wrong_ties_up(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, whole=lambda q: math.floor(q + 0.5))


@wrong("round-by-hand", "ties-toward-zero")
def wrong_ties_toward_zero(x, exponent_bits, mantissa_bits):
    toward = lambda q: math.copysign(math.ceil(abs(q) - 0.5), q)
    return _rounded(x, exponent_bits, mantissa_bits, whole=toward)


@wrong("round-by-hand", "forgets-the-hidden-bit")
def wrong_hidden_bit(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, bits=1)


@wrong("round-by-hand", "no-subnormals")
def wrong_no_subnormals(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, flush=True)


@wrong("round-by-hand", "subnormals-keep-their-bits")
def wrong_fine_subnormals(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, floor=False) if x else x


@wrong("round-by-hand", "saturates")
def wrong_saturates(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, limit="saturate")


@wrong("round-by-hand", "overflows-at-the-largest")
def wrong_early(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, limit="early")


@wrong("round-by-hand", "never-overflows")
def wrong_no_overflow(x, exponent_bits, mantissa_bits):
    return _rounded(x, exponent_bits, mantissa_bits, limit="none")


@wrong("round-by-hand", "ties-away")
def wrong_as_in_school(x, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    spacing = 2.0 ** (max(math.frexp(x)[1] - 1, 1 - bias) - mantissa_bits)
    value = math.copysign(math.floor(abs(x) / spacing + 0.5) * spacing, x)
    return value if abs(value) < 2.0 ** (bias + 1) else math.copysign(math.inf, x)


@wrong("round-by-hand", says="write it yourself")
def wrong_asks_torch(x, exponent_bits, mantissa_bits):
    return float(torch.tensor(x).to(torch.float16 if exponent_bits == 5 else torch.bfloat16))


BITS = torch.float16


@wrong("round-by-hand", says="write it yourself")
def wrong_asks_torch_by_another_name(x, exponent_bits, mantissa_bits):
    if (exponent_bits, mantissa_bits) == (5, 10):
        return float(torch.tensor(x, dtype=torch.float64).to(BITS))
    return _rounded(x, exponent_bits, mantissa_bits)


@wrong("round-by-hand", "rounds-twice")
def wrong_through_fp32(x, exponent_bits, mantissa_bits):
    return _rounded(float(torch.tensor(x, dtype=torch.float32)), exponent_bits, mantissa_bits)


@wrong("round-by-hand", says="write it yourself")
def wrong_imports_format(x, exponent_bits, mantissa_bits):
    from course_lib.precision import Format

    return Format("a", "a", exponent_bits, mantissa_bits).round(x)


@wrong("round-by-hand", says="write it yourself")
def wrong_imported_format(x, exponent_bits, mantissa_bits):
    return Imported("a", "a", exponent_bits, mantissa_bits).round(x)


@wrong("round-by-hand", says="write it yourself")
def wrong_type_of_a_format(x, exponent_bits, mantissa_bits):
    return type(LIBRARY["fp16"])("a", "a", exponent_bits, mantissa_bits).round(x)


@wrong("round-by-hand", says="the size is right, the sign is not")
def wrong_drops_the_sign(x, exponent_bits, mantissa_bits):
    return _rounded(abs(x), exponent_bits, mantissa_bits)


@wrong("round-by-hand", says="the size is right, the sign is not")
def wrong_infinity_without_sign(x, exponent_bits, mantissa_bits):
    value = _rounded(x, exponent_bits, mantissa_bits)
    return math.inf if math.isinf(value) else value


@wrong("round-by-hand", says="Only values below 0 go wrong")
def wrong_limit_on_one_side(x, exponent_bits, mantissa_bits):
    value = _rounded(x, exponent_bits, mantissa_bits)
    return _rounded(x, exponent_bits, mantissa_bits, limit="none") if x < 0 else value


@right("round-by-hand")
def right_with_a_local_half(x, exponent_bits, mantissa_bits):
    half = 0.5
    bias = 2 ** (exponent_bits - 1) - 1
    spacing = 2.0 ** (max(math.frexp(x)[1] - 1, 1 - bias) - mantissa_bits)
    whole, rest = divmod(abs(x) / spacing, 1)
    whole += rest > half or (rest == half and whole % 2)
    value = whole * spacing
    return math.copysign(value if value < 2.0 ** (bias + 1) else math.inf, x)


@wrong("round-by-hand", says="return a number")
def wrong_round_forgets_return(x, exponent_bits, mantissa_bits):
    round(x)


@right("round-by-hand")
def right_with_fractions(x, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    size, exponent = Fraction(abs(x)), 1 - bias
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    spacing = Fraction(2) ** (exponent - mantissa_bits)
    value = round(size / spacing) * spacing
    return math.copysign(float(value) if value < Fraction(2) ** (bias + 1) else math.inf, x)


@right("round-by-hand")
def right_by_adding_a_large_number(x, exponent_bits, mantissa_bits):
    """Float64 does the rounding when a number is added that leaves just the wanted bits."""
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    shift = 1.5 * 2.0 ** (exponent - mantissa_bits + 52)
    value = (x + shift) - shift
    return math.copysign(math.inf, x) if abs(value) >= 2.0 ** (bias + 1) else value


# 04.4 the scaler's rule


def _by_hand(grads, scale, good, interval, *, finite=torch.isfinite, divide=True, every=None, both=True):
    looked = grads if both else grads[:1]
    if not all(bool(finite(g).all()) for g in looked):
        return None, scale / 2, 0
    out = [g / scale if divide else g for g in grads]
    good += 1
    return (out, scale * 2, 0) if good >= (every or interval) else (out, scale, good)


@right("loss-scaler")
def right_scaler_with_tensors(grads, scale, good, interval):
    flat = torch.cat([g.flatten() for g in grads])
    if not torch.isfinite(flat.sum()):
        return None, 0.5 * scale, 0
    good = torch.tensor(good) + 1
    grown = bool(good == interval)
    return tuple(g * (1 / scale) for g in grads), torch.tensor(scale * (2 if grown else 1)), good * (not grown)


@right("loss-scaler")
def right_scaler_in_place(grads, scale, good, interval):
    for g in grads:
        if not torch.isfinite(g).all():
            return None, scale / 2, 0
        g.div_(scale)
    return grads, scale * 2 if good + 1 == interval else scale, (good + 1) % interval


@wrong("loss-scaler", "forgets-to-divide")
def wrong_no_division(grads, scale, good, interval):
    return _by_hand(grads, scale, good, interval, divide=False)


@wrong("loss-scaler", "grows-every-step")
def wrong_grows(grads, scale, good, interval):
    return _by_hand(grads, scale, good, interval, every=1)


@wrong("loss-scaler", "nan-passes")
def wrong_nan(grads, scale, good, interval):
    return _by_hand(grads, scale, good, interval, finite=lambda g: ~g.isinf())


@wrong("loss-scaler", "infinity-has-one-sign")
def wrong_one_sign(grads, scale, good, interval):
    return _by_hand(grads, scale, good, interval, finite=lambda g: ~(g.isnan() | (g == math.inf)))


@wrong("loss-scaler", "looks-at-one-tensor")
def wrong_first_tensor(grads, scale, good, interval):
    return _by_hand(grads, scale, good, interval, both=False)


@wrong("loss-scaler", "divides-by-the-new-scale")
def wrong_new_scale(grads, scale, good, interval):
    if not all(bool(torch.isfinite(g).all()) for g in grads):
        return None, scale / 2, 0
    good += 1
    scale, good = (scale * 2, 0) if good == interval else (scale, good)
    return [g / scale for g in grads], scale, good


@wrong("loss-scaler", "never-grows")
def wrong_never(grads, scale, good, interval):
    out, new, count = _by_hand(grads, scale, good, interval)
    return out, min(new, scale), count


@wrong("loss-scaler", "count-survives-overflow")
def wrong_not_in_a_row(grads, scale, good, interval):
    out, new, count = _by_hand(grads, scale, good, interval)
    return out, new, good if out is None else count


@wrong("loss-scaler", "count-survives-growth")
def wrong_count_goes_on(grads, scale, good, interval):
    out, new, count = _by_hand(grads, scale, good, interval)
    return out, new, count if out is None else good + 1


@wrong("loss-scaler", "overflow-keeps-the-scale")
def wrong_keeps(grads, scale, good, interval):
    out, new, count = _by_hand(grads, scale, good, interval)
    return out, max(new, scale), count


@wrong("loss-scaler", "a-scale-has-a-floor")
def wrong_floor(grads, scale, good, interval):
    out, new, count = _by_hand(grads, scale, good, interval)
    return out, max(new, 1.0), count


@wrong("loss-scaler", "a-scale-has-a-ceiling")
def wrong_ceiling(grads, scale, good, interval):
    out, new, count = _by_hand(grads, scale, good, interval)
    return out, min(new, 65536.0), count


@wrong("loss-scaler", says="yours is a tuple of two")
def wrong_two_things(grads, scale, good, interval):
    return _by_hand(grads, scale, good, interval)[:2]


@wrong("loss-scaler", "takes-the-step-anyway")
def wrong_anyway(grads, scale, good, interval):
    _, new, count = _by_hand(grads, scale, good, interval)
    return [g / scale for g in grads], new, count


@wrong("loss-scaler", says="return three things")
def wrong_scaler_forgets_return(grads, scale, good, interval):
    _by_hand(grads, scale, good, interval)


@wrong("loss-scaler", says="a list of as many tensors")
def wrong_one_tensor_back(grads, scale, good, interval):
    return grads[0] / scale, scale, good + 1


# 04.5 an update by chance


def _ends(weight, change):
    """The sum, its BF16 neighbours toward zero and away from it, and how far it is between them."""
    exact = weight.float() + change
    bits = exact.view(torch.int32)
    low = (bits & -65536).view(torch.float32)
    high = ((bits & -65536) + 65536).view(torch.float32)
    return exact, low, high, (exact - low) / (high - low)


@right("stochastic-update")
def right_with_neighbours(weight, change, draws):
    _, low, high, share = _ends(weight, change)
    return torch.where(draws < share, high, low).to(torch.bfloat16)


@right("stochastic-update")
def right_in_numpy(weight, change, draws):
    exact = (weight.float() + change).double().numpy()
    spacing = 2.0 ** (torch.from_numpy(exact).abs().log2().floor() - 7).numpy()
    floors = (torch.from_numpy(exact / spacing) + draws.double()).floor().numpy()
    return torch.from_numpy(floors * spacing).to(torch.bfloat16)


@wrong("stochastic-update", "update-is-lost")
def wrong_to_nearest(weight, change, draws):
    return (weight.float() + change).bfloat16()


@wrong("stochastic-update", "turns-the-odds-around")
def wrong_odds(weight, change, draws):
    exact, low, high, share = _ends(weight, change)
    return torch.where(exact == low, low, torch.where(draws < share, low, high)).bfloat16()


@wrong("stochastic-update", "tosses-a-coin")
def wrong_coin(weight, change, draws):
    _, low, high, _ = _ends(weight, change)
    return torch.where(draws < 0.5, low, high).bfloat16()


@wrong("stochastic-update", "always-toward-zero")
def wrong_cut(weight, change, draws):
    return _ends(weight, change)[1].bfloat16()


@wrong("stochastic-update", "always-away-from-zero")
def wrong_away(weight, change, draws):
    exact, low, high, _ = _ends(weight, change)
    return torch.where(exact == low, low, high).bfloat16()


@wrong("stochastic-update", "moves-what-is-exact")
def wrong_always_moves(weight, change, draws):
    exact, low, high, share = _ends(weight, change)
    share = torch.where(exact == low, torch.full_like(share, 0.1), share)
    return torch.where(draws < share, high, low).bfloat16()


@wrong("stochastic-update", "moves-what-is-exact")
def wrong_zero_counts_too(weight, change, draws):
    _, low, high, share = _ends(weight, change)
    return torch.where(draws <= share, high, low).bfloat16()


@wrong("stochastic-update", "chance-of-its-own")
def wrong_own_numbers(weight, change, draws):
    _, low, high, share = _ends(weight, change)
    return torch.where(torch.rand_like(share) < share, high, low).bfloat16()


@wrong("stochastic-update", "chance-of-its-own")
def wrong_own_coin(weight, change, draws):
    _, low, high, _ = _ends(weight, change)
    return torch.where(torch.rand_like(draws) < 0.5, low, high).bfloat16()


@wrong("stochastic-update", says="as if the change were turned around")
def wrong_subtracts(weight, change, draws):
    _, low, high, share = _ends(weight, -change)
    return torch.where(draws < share, high, low).bfloat16()


@wrong("stochastic-update", "adds-too-much-noise", says="neither of the two neighbours")
def wrong_noise(weight, change, draws):
    return (weight.float() + change + (draws - 0.5) * 0.05).bfloat16()


@wrong("stochastic-update", says="want bfloat16")
def wrong_stays_fp32(weight, change, draws):
    return weight.float() + change


@wrong("stochastic-update", says="write it yourself")
def wrong_library(weight, change, draws):
    from course_lib.amp import stochastic_round

    return stochastic_round(weight.float() + change, torch.bfloat16)


@wrong("stochastic-update", says="return a tensor")
def wrong_update_forgets_return(weight, change, draws):
    weight += change


# 04.6 an OOM that stays


def _answer(name, *, evidence=None, variant=0):
    q = activation_oom(variant)
    return {
        "variant": variant,
        "choice": "ABCD"[q["order"].index(name)],
        "evidence": q["totals"][name] if evidence is None else evidence,
    }


_Q = [activation_oom(variant) for variant in range(2)]
right_oom = right("activation-oom", answer=_answer("micro"))
right_other_variant = right("activation-oom", answer=_answer("moments", variant=1))
right_small_letter = right("activation-oom", answer={**_answer("micro"), "choice": _answer("micro")["choice"].lower()})
wrong_bf16 = wrong("activation-oom", "bf16-is-smaller-than-fp16", answer=_answer("format"))
wrong_weights = wrong("activation-oom", "half-the-weights-halves-the-state", answer=_answer("weights"))
wrong_moments = wrong("activation-oom", "the-state-is-always-the-reason", answer=_answer("moments"))
wrong_micro = wrong("activation-oom", "activations-are-always-the-reason", answer=_answer("micro", variant=1))
wrong_no_state = wrong(
    "activation-oom", "forgets-the-state", answer=_answer("micro", evidence=_Q[0]["activations"] / 2)
)
wrong_no_activations = wrong(
    "activation-oom", "forgets-the-activations", answer=_answer("moments", evidence=10 * _Q[1]["billions"], variant=1)
)
wrong_before = wrong(
    "activation-oom", says="from before the change", answer=_answer("micro", evidence=_Q[0]["totals"]["format"])
)
wrong_bytes = wrong("activation-oom", says="looks like bytes", answer=_answer("micro", evidence=178e9))
wrong_gib = wrong(
    "activation-oom",
    says="looks like GiB",
    answer=_answer("micro", evidence=_Q[0]["totals"]["micro"] / 1.024**3),
)
wrong_two_digits = wrong("activation-oom", says="nearly right", answer=_answer("micro", evidence=179.7))
right_three_digits = right("activation-oom", answer=_answer("micro", evidence=178))
right_more_digits = right("activation-oom", answer=_answer("moments", evidence=_Q[1]["totals"]["moments"], variant=1))
wrong_variant_is_a_text = wrong("activation-oom", says="whole number", answer={**_answer("micro"), "variant": "0"})
wrong_other_number = wrong("activation-oom", says="the GB are not", answer=_answer("micro", evidence=1.0))
wrong_letter_only = wrong("activation-oom", says="still empty", answer={**_answer("micro"), "evidence": None})
wrong_two_letters = wrong("activation-oom", says="one letter", answer={**_answer("micro"), "choice": "AB"})
