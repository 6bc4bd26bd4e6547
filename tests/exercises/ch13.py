"""Stated answers of chapter 13: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math
from fractions import Fraction

import numpy as np
import torch
from mutants import right, wrong

from course_lib.checks.ch13_cure import BITS, cure
from course_lib.checks.ch13_trace import trace

# 13.1 where a sum stops


def _up(addend):
    """The addend, up to a power of two."""
    return 2.0 ** math.ceil(math.log2(addend) - 1e-12)


def _stops(misconception=None, says="", answer=None):
    return wrong("where-it-stops", misconception, says=says, answer=answer)


wrong_ties_up = _stops(
    "ties-go-up", answer=lambda a, m: 2.0 ** (m + 1) * _up(a) * (2 if math.frexp(a)[0] == 0.5 else 1)
)
wrong_multiple = _stops("the-stop-is-a-multiple", answer=lambda a, m: 2 ** (m + 1) * a)
wrong_hidden_bit = _stops("forgets-the-hidden-bit", answer=lambda a, m: 2.0**m * _up(a))
wrong_any_addend = _stops("ones-stand-for-all", answer=lambda a, m: 2.0 ** (m + 1))
wrong_too_far = _stops("only-under-a-quarter", answer=lambda a, m: 2.0 ** (m + 3) * _up(a))
wrong_next_power = _stops(
    "half-of-a-spacing-still-counts",
    answer=lambda a, m: 2.0 ** (m + 1) * _up(a) * (1 if math.frexp(a)[0] == 0.5 else 2),
)
wrong_rounded_addend = _stops(
    "the-addend-is-rounded-down", answer=lambda a, m: 2.0 ** (m + 1) * 2.0 ** math.floor(math.log2(a))
)
wrong_rounded_log = _stops(
    "the-addend-is-rounded-down",
    says="a little more than 4)",
    answer=lambda a, m: 2.0 ** (m + 1) * 2.0 ** (round(math.log2(a) + 0.49) if a >= 1 else math.ceil(math.log2(a))),
)
wrong_short_log = _stops(
    "the-addend-is-rounded-down",
    says="35 bits",
    answer=lambda a, m: 2.0 ** (m + 1 + math.ceil(float(np.log2(np.float32(a))))),
)
wrong_in_bits = _stops(says="how far apart are the values", answer=lambda a, m: m + 1)
wrong_stop_nothing = _stops(says="nothing came back", answer=lambda a, m: None)
wrong_stop_text = _stops(says="a number is wanted", answer=lambda a, m: "2048")


@wrong("where-it-stops", says="does this exercise's work")
def wrong_asks_the_library(addend, bits):
    from course_lib.failures.bias import stops_at

    return stops_at(addend, {10: "fp16", 7: "bf16", 3: "fp8_e4m3", 23: "fp32"}[bits])


@right("where-it-stops")
def right_climbs(addend, bits):
    """Power by power, with exact halves of spacings."""
    at = 1.0
    while at / 2 >= addend:
        at /= 2
    while at < addend:
        at *= 2
    while at / 2 ** (bits + 1) < addend:
        at *= 2
    return at


@right("where-it-stops")
def right_by_trying(addend, bits):
    """The first power of two that rounds back to itself with the addend, in fractions; a numpy number is fine."""
    power = -40
    while True:
        spacing = Fraction(2) ** (power - bits)
        if round(Fraction(addend) / spacing) == 0 and Fraction(2) ** power >= Fraction(addend):  # ties to even
            return np.float64(2.0**power)
        power += 1


# 13.2 bias or variance


def _trace(variant, choice=None, evidence=None):
    run = trace(variant)
    value = run["evidence"] if evidence is None else evidence
    return {"variant": variant, "choice": choice or run["choice"], "evidence": value}


def _told(misconception=None, says="", answer=None):
    return wrong("bias-or-variance", misconception, says=says, answer=answer)


def _last(variant):
    run = trace(variant)
    return abs(float(run["mean"][-1])), float(run["spread"][-1])


MEAN, STD = _last(0)
wrong_no_bias = _told("less-than-the-noise-is-no-bias", answer=_trace(0, "A", 99))
wrong_sign_is_bias = _told("a-mean-that-is-not-0-is-a-bias", answer=_trace(1, "B", 99))
wrong_no_snowball = _told("bias-is-always-linear", answer=_trace(3, "B", 99))
wrong_snowball = _told("growth-is-a-snowball", answer=_trace(4, "C", 99))
wrong_noise_snowball = _told("growth-is-a-snowball", answer=_trace(1, "C", 99))
wrong_never_forgets = _told("errors-always-add-up", answer=_trace(2, "B", 99))
wrong_forgets = _told("what-is-small-settles", answer=_trace(0, "D", 99))
wrong_all_doubles = _told("errors-always-add-up", answer=_trace(0, evidence=2 * math.hypot(MEAN, STD)))
wrong_all_by_root = _told("noise-is-all", answer=_trace(0, evidence=math.sqrt(2) * math.hypot(MEAN, STD)))
wrong_same = _told("nothing-grows", answer=_trace(0, evidence=math.hypot(MEAN, STD)))
wrong_only_bias = _told("bias-is-all", answer=_trace(0, evidence=2 * MEAN))
wrong_only_noise = _told("bias-does-not-matter", answer=_trace(0, evidence=math.sqrt(2) * STD))
wrong_sum = _told("they-add-up", answer=_trace(0, evidence=2 * MEAN + math.sqrt(2) * STD))
wrong_linear_feedback = _told(
    "bias-is-always-linear", answer=_trace(3, evidence=math.hypot(2 * _last(3)[0], math.sqrt(2) * _last(3)[1]))
)
C_LAST, C_FACTOR = math.hypot(*_last(3)), _last(3)[0] / abs(float(trace(3)["mean"][-2]))
wrong_same_factor = _told("the-same-factor-again", answer=_trace(3, evidence=C_LAST * C_FACTOR))
wrong_only_what_comes = _told("what-is-there-is-forgotten", answer=_trace(3, evidence=C_LAST * (C_FACTOR - 1) ** 2))
wrong_never_settles = _told("errors-always-add-up", answer=_trace(2, evidence=1.4 * trace(2)["evidence"]))
wrong_trace_half = _told(
    "what-is-small-settles", says="the evidence is right, the choice is not", answer=_trace(0, "D")
)
wrong_trace_empty = _told(says="`evidence` is still empty", answer=_trace(0) | {"evidence": None})
wrong_trace_letter = _told(says="one letter", answer=_trace(0) | {"choice": "bias"})

right_variance = right("bias-or-variance", answer=_trace(1, evidence=math.sqrt(2) * _last(1)[1]))
right_forgotten = right("bias-or-variance", answer=_trace(2))
right_feedback = right("bias-or-variance", answer=_trace(3, evidence=trace(3)["evidence"] * 1.04))
right_loud_bias = right("bias-or-variance", answer=_trace(4) | {"choice": "b"})
right_from_all_rows = right("bias-or-variance", answer=_trace(6, evidence=trace(6)["evidence"] * 0.98))

# 13.3 choose the cure


def _cure(variant, choice=None, evidence=None):
    run = cure(variant)
    value = run["evidence"] if evidence is None else evidence
    return {"variant": variant, "choice": choice or run["choice"], "evidence": value}


def _chose(misconception=None, says="", answer=None):
    return wrong("choose-the-cure", misconception, says=says, answer=answer)


def _lost(variant, stop):
    run = cure(variant)
    end = run["start"] + run["n"] * run["a"]
    return 100 * (end - min(end, max(run["start"], stop))) / end


wrong_plain = _chose("small-addends-make-small-errors", answer=_cure(0, "A", 1.0))
wrong_by_chance = _chose("unbiased-is-exact", answer=_cure(0, "B", 1.0))
wrong_master = _chose("wider-is-the-cure", answer=_cure(0, "D", 1.0))
wrong_fp32_for_chance = _chose("wider-is-the-cure", answer=_cure(1, "D", 1.0))
wrong_kahan_for_chance = _chose("the-surest-is-the-best", answer=_cure(1, "C", 1.0))
wrong_pairs_in_time = _chose("any-order-is-possible", answer=_cure(0, "E", 1.0))
wrong_kahan_for_fp32 = _chose("memory-is-the-only-cost", answer=_cure(2, "C", 1.0))
wrong_chance_for_pairs = _chose("memory-is-the-only-cost", answer=_cure(3, "B", 1.0))
wrong_cure_for_health = _chose("wider-is-the-cure", answer=_cure(4, "D", 1.0))
wrong_reached = _chose("what-is-reached-is-the-error", answer=_cure(0, evidence=100 - cure(0)["evidence"]))
wrong_of_what_came_out = _chose(
    "per-cent-of-the-wrong-sum", answer=_cure(1, evidence=100 * cure(1)["evidence"] / (100 - cure(1)["evidence"]))
)
wrong_half_stop = _chose(
    "forgets-the-hidden-bit", answer=_cure(1, evidence=_lost(1, 2 ** BITS[cure(1)["format"]] * cure(1)["a"]))
)
wrong_none_lost = _chose("nothing-is-lost", answer=_cure(2, evidence=0.0))
wrong_cure_share = _chose(says="in per cent", answer=_cure(0, evidence=cure(0)["evidence"] / 100))
wrong_cure_half = _chose("wider-is-the-cure", says="the evidence is right, the choice is not", answer=_cure(0, "D"))
wrong_share_of_addends = _chose("per-cent-of-the-wrong-sum", answer=_cure(0, evidence=100.0))
wrong_cure_a_point = _chose(says="the number is not", answer=_cure(0, evidence=cure(0)["evidence"] + 0.7))
wrong_cure_empty = _chose(says="`choice` is still empty", answer=_cure(0) | {"choice": None})

right_by_chance = right("choose-the-cure", answer=_cure(1))
right_fp32 = right("choose-the-cure", answer=_cure(2, evidence=round(cure(2)["evidence"], 1)))
right_pairs = right("choose-the-cure", answer=_cure(3))
right_no_cure = right("choose-the-cure", answer=_cure(4) | {"evidence": 0})
right_kahan_again = right("choose-the-cure", answer=_cure(5) | {"choice": "c"})
right_rounded = right("choose-the-cure", answer=_cure(1, evidence=float(round(cure(1)["evidence"]))))
right_rounded_down = right("choose-the-cure", answer=_cure(0, evidence=cure(0)["evidence"] - 0.4))
right_later = right("choose-the-cure", answer=_cure(7))

# 13.4 an update that is not lost


def _kahan(misconception=None, says="", answer=None):
    return wrong("kahan-step", misconception, says=says, answer=answer)


wrong_plain_sum = _kahan("what-is-lost-is-not-kept", answer=lambda w, lost, u: (w + u, lost))
wrong_kept_unused = _kahan("forgets-what-was-lost", answer=lambda w, lost, u: (w + u, u - ((w + u) - w)))
wrong_sign = _kahan("adds-what-was-lost-twice", answer=lambda w, lost, u: _missing(w, u - lost))
wrong_update_alone = _kahan(
    "the-update-not-what-was-added", answer=lambda w, lost, u: (w + (u + lost), u - ((w + (u + lost)) - w))
)
wrong_adds_losses = _kahan(
    "adds-up-what-was-lost", answer=lambda w, lost, u: (_missing(w, u + lost)[0], lost + _missing(w, u + lost)[1])
)
wrong_subtracts = _kahan("takes-the-update-away", answer=lambda w, lost, u: _add(w, -u - lost))
wrong_simplified = _kahan("what-is-lost-is-not-kept", answer=lambda w, lost, u: (w + (u - lost), torch.zeros_like(u)))
wrong_wider = _kahan(says="does this exercise's work", answer=lambda w, lost, u: (w.float() + u).bfloat16())
wrong_promoted = _kahan(says="is BF16", answer=lambda w, lost, u: (w * torch.ones(12)).bfloat16())
wrong_default_type = _kahan(says="is BF16", answer=lambda w, lost, u: w.to(torch.get_default_dtype()))
wrong_complex = _kahan(says="is BF16", answer=lambda w, lost, u: w.to(torch.complex64).real)
wrong_float_tensor = _kahan(says="is BF16", answer=lambda w, lost, u: w.type(torch.FloatTensor))
wrong_python_numbers = _kahan(says="does this exercise's work", answer=lambda w, lost, u: w.tolist())
wrong_chapters_sign = _kahan("what-was-too-much-is-missing", answer=lambda w, lost, u: _add(w, u - lost))
wrong_record = _kahan("lost-is-a-record", answer=lambda w, lost, u: (w + u, lost + (u - ((w + u) - w))))
wrong_twice = _kahan(
    "counts-what-was-lost-twice",
    answer=lambda w, lost, u: (w + (u + lost), lost + (u + lost) - ((w + (u + lost)) - w)),
)
wrong_only_weight = _kahan(says="step returns a pair", answer=lambda w, lost, u: w + u)
wrong_fp32_lost = _kahan(says="is BF16", answer=lambda w, lost, u: (w, lost * torch.ones(()).new_zeros(12)))
wrong_kahan_nothing = _kahan(says="nothing came", answer=lambda w, lost, u: None)


@wrong("kahan-step", "the-weight-is-still-there")
def wrong_overwrites(w, lost, u):
    wanted = u + lost
    new = w + wanted
    w.copy_(new)
    return new, wanted - (new - w)


@right("kahan-step")
def right_in_place(weight, lost, update):
    """Changes what it is given, and prints on the way."""
    wanted, old = update + lost, weight.clone()
    weight += wanted
    print(weight)
    lost.copy_(wanted).sub_(weight - old)
    return weight, lost


def _add(w, wanted):
    new = w + wanted
    return new, (new - w) - wanted


def _missing(w, wanted):
    new = w + wanted
    return new, wanted - (new - w)


@right("kahan-step")
def right_missing_part(weight, lost, update):
    """With torch's function."""
    wanted = update + lost
    new = torch.add(weight, wanted)
    return new, wanted - (new - weight)


@right("kahan-step")
def right_two_sum(weight, lost, update):
    """Knuth's, which does not ask which of the two is larger."""
    wanted = update + lost
    new = weight + wanted
    back = new - weight
    return [new, (weight - (new - back)) + (wanted - back)]


# 13.5 truncated importance sampling


def _tis(trainer, sampler, advantage, mask, cap, *, weight=None, reduce=None, detach=True, flip=False, sign=-1):
    gap = torch.where(mask, (trainer.detach() if detach else trainer) - sampler, 0.0)
    ratio = (-gap if flip else gap).exp()
    w = ratio.clamp(max=cap) if weight is None else weight(ratio, gap, mask, cap, advantage)
    terms = torch.where(mask, w * advantage[:, None] * trainer, 0.0)
    return sign * (terms.sum() / mask.sum().clamp(min=1) if reduce is None else reduce(terms, mask))


def _weighs(misconception=None, says="", **changes):
    return wrong("truncated-sampling", misconception, says=says, answer=lambda *a: _tis(*a, **changes))


wrong_no_detach = _weighs("weights-have-gradients", detach=False)
wrong_other_way = _weighs("the-other-way-round", flip=True)
wrong_reward = _weighs("a-loss-is-a-reward", sign=1)
wrong_no_cap = _weighs("never-truncated", weight=lambda r, g, m, c, a: r)
wrong_clipped_twice = _weighs("both-ends", weight=lambda r, g, m, c, a: r.clamp(1 / c, c))
wrong_dropped = _weighs("what-is-above-is-dropped", weight=lambda r, g, m, c, a: torch.where(r > c, 0.0, r))
wrong_no_weight = _weighs("no-weights", weight=lambda r, g, m, c, a: torch.ones_like(r))
wrong_log_ratio = _weighs("nearly-the-ratio", weight=lambda r, g, m, c, a: (1 + g).clamp(max=c))
wrong_normalised = _weighs(
    "weights-add-up",
    weight=lambda r, g, m, c, a: r.clamp(max=c) / (r.clamp(max=c) * m).sum() * m.sum(),
)
wrong_product = _weighs(
    "one-weight-a-sequence", weight=lambda r, g, m, c, a: g.sum(1, keepdim=True).exp().clamp(max=c).expand_as(r)
)
wrong_geometric = _weighs(
    "the-mean-of-the-sequence",
    weight=lambda r, g, m, c, a: (
        (g.sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1)).exp().clamp(max=c).expand_as(r)
    ),
)
wrong_ppo = _weighs(
    "the-smaller-of-two",
    weight=lambda r, g, m, c, a: torch.where(r * a[:, None] <= r.clamp(1 / c, c) * a[:, None], r, r.clamp(1 / c, c)),
)
wrong_mean_over_all = _weighs("padding-counts", reduce=lambda t, m: t.mean())
wrong_mean_of_means = _weighs("a-mean-of-means", reduce=lambda t, m: (t.sum(1) / m.sum(1).clamp(min=1)).mean())
wrong_plain_sum_of_terms = _weighs("a-sum", reduce=lambda t, m: t.sum())
wrong_mean_of_sequences = _weighs("a-mean-over-sequences", reduce=lambda t, m: t.sum() / len(m))
wrong_cumulated = _weighs("all-tokens-before", weight=lambda r, g, m, c, a: g.cumsum(1).exp().clamp(max=c))
wrong_larger = _weighs("the-larger-of-two", weight=lambda r, g, m, c, a: r.clamp(min=c))
wrong_cap_of_2 = _weighs("the-cap-is-2", weight=lambda r, g, m, c, a: r.clamp(max=2.0))
wrong_clipped_gap = _weighs(says="by hand", weight=lambda r, g, m, c, a: g.clamp(-5, 5).exp().clamp(max=c))
wrong_clipped_above = _weighs(says="by hand", weight=lambda r, g, m, c, a: g.clamp(max=5).exp().clamp(max=c))
wrong_empty = _weighs("empty-is-nan", reduce=lambda t, m: t.sum() / m.sum())
wrong_detached = wrong("truncated-sampling", "nothing-to-learn", answer=lambda p, *a: _tis(p.detach(), *a))
wrong_tis_nothing = wrong("truncated-sampling", says="a tensor of one number", answer=lambda *a: None)
wrong_per_sequence = wrong(
    "truncated-sampling", says="one number is wanted", answer=lambda *a: _tis(*a, reduce=lambda t, m: t.sum(1))
)


@wrong("truncated-sampling", "zero-times-anything-is-zero")
def wrong_times_mask(trainer, sampler, advantage, mask, cap):
    weight = (trainer.detach() - sampler).exp().clamp(max=cap)
    return -(weight * advantage[:, None] * trainer * mask).sum() / mask.sum().clamp(min=1)


def _objective(p, q, A, mask, cap, smaller):
    ratio = torch.where(mask, p - q, 0.0).exp()
    terms = ratio.clamp(max=cap) * A[:, None]
    terms = torch.minimum(ratio * A[:, None], terms) if smaller else terms
    return -torch.where(mask, terms, 0.0).sum() / mask.sum().clamp(min=1)


def _of_probabilities(p, q, A, mask, cap, small):
    """Divides probabilities, where the text takes the logarithms' difference."""
    p, q = torch.where(mask, p, -1.0), torch.where(mask, q, -1.0)
    weight = (p.detach().exp() / (q.exp() + small)).clamp(max=cap)
    return -torch.where(mask, weight * A[:, None] * p, 0.0).sum() / mask.sum().clamp(min=1)


def _by_lengths(p, q, A, mask, cap):
    counted = torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True)
    return _tis(p, q, A, counted, cap)


def _times_zero(p, q, A, mask, cap):
    return _tis(p, q, A, mask, cap) if mask.any() else (p * 0).sum()


def _sampling(misconception=None, says="", answer=None):
    return wrong("truncated-sampling", misconception, says=says, answer=answer)


wrong_ratio_alone = _sampling("the-ratio-is-the-objective", answer=lambda *a: _objective(*a, False))
wrong_ppo_loss = _sampling("the-ratio-is-the-objective", answer=lambda *a: _objective(*a, True))
wrong_of_probabilities = _sampling(says="probabilities themselves", answer=lambda *a: _of_probabilities(*a, 0.0))
wrong_small_number = _sampling(says="by hand", answer=lambda *a: _of_probabilities(*a, 1e-8))
wrong_small_number_more = _sampling(says="by hand", answer=lambda *a: _of_probabilities(*a, 1e-6))
wrong_prefix = _sampling("zero-times-anything-is-zero", says="holes", answer=_by_lengths)
wrong_zero_times = _sampling("empty-is-nan", says="no token at all", answer=_times_zero)


@right("truncated-sampling")
def right_only_the_tokens(trainer, sampler, advantage, mask, cap):
    """Without padding at all: picked by the mask."""
    if not mask.any():
        return trainer.new_zeros(())
    p, q, A = trainer[mask], sampler[mask], advantage[:, None].expand_as(trainer)[mask]
    with torch.no_grad():
        weight = torch.minimum((p - q).exp(), torch.tensor(cap))
    return (-weight * A * p).mean()


@right("truncated-sampling")
def right_in_logs(trainer, sampler, advantage, mask, cap):
    """Truncated before the exponential, sequence by sequence, in FP64."""
    total = torch.zeros((), dtype=torch.float64)
    for p, q, A, m in zip(trainer, sampler, advantage, mask, strict=True):
        for t in m.nonzero().flatten().tolist():
            total = total - math.exp(min(float(p[t].detach() - q[t]), math.log(cap))) * A * p[t].double()
    return total / max(int(mask.sum()), 1)


# 13.6 a test that finds the bug

SIZES = [*range(1, 258), 300, 777, 1000, 5000, 70_000]


def _accepts(
    kernel, *, sizes=SIZES, draws="usn", tolerance=None, nan=True, whole=True, bitwise=False, scales=(1e-15, 1e15)
):
    rng = np.random.default_rng(1)
    make = {"u": rng.random, "s": rng.standard_normal, "n": lambda n: -10 * rng.random(n)}
    for n in sizes:
        for draw in draws:
            x = make[draw](n).astype(np.float32)
            exact, size = math.fsum(x.tolist()), math.fsum(abs(x).tolist())
            if bitwise:
                if kernel(x) != float(x.sum()):
                    return False
            elif not abs(kernel(x) - exact) <= (n * 2**-24 if tolerance is None else tolerance) * size:
                return False
        if whole:
            x = rng.integers(-500, 500, n).astype(np.float32)
            if kernel(x) != x.sum(dtype=np.float64):
                return False
    for scale in scales:
        x = (scale * rng.random(50)).astype(np.float32)
        if abs(kernel(x) - math.fsum(x.tolist())) > 1e-3 * math.fsum(x.tolist()):
            return False
    if nan:
        x = np.ones(max(sizes), dtype=np.float32)
        x[len(x) // 3] = np.nan
        return math.isnan(kernel(x))
    return True


def _test(misconception=None, says="", **changes):
    return wrong("kernel-test", misconception, says=says, answer=lambda kernel: _accepts(kernel, **changes))


wrong_bitwise = _test("only-one-order-is-right", bitwise=True)
wrong_too_tight = _test("only-one-order-is-right", tolerance=1e-8)
wrong_powers_of_two = _test("round-sizes-will-do", sizes=[256, 512, 1024, 8192])
wrong_small = _test("small-stands-for-large", sizes=[n for n in SIZES if n <= 1000])
wrong_not_so_large = _test("small-stands-for-large", says="65,535", sizes=[n for n in SIZES if n <= 5000] + [60_000])
wrong_some_sizes = _test(
    "some-sizes-stand-for-all", says="last block", sizes=[1, 2, 3, 5, 8, 64, 65, 127, 128, 129, 256, 257, 1000, 70_001]
)
wrong_only_odd = _test("some-sizes-stand-for-all", says="last block", sizes=[1, 2, 3, 64, 257, 1009, 70_001])
wrong_from_two = _test("some-sizes-stand-for-all", says="one number alone", sizes=SIZES[1:])
wrong_no_nan = _test("numbers-are-numbers", nan=False)
wrong_near_one = _test("numbers-are-near-one", says="tiny", scales=())
wrong_not_huge = _test("numbers-are-near-one", says="huge", scales=(1e-15,))
wrong_not_tiny = _test("numbers-are-near-one", says="tiny", scales=(1e15,))
wrong_positive = _test("positive-stands-for-all", draws="u", whole=False)
wrong_loose = _test("close-is-right", tolerance=1e-2, whole=False)
wrong_loose_and_large = _test("close-is-right", tolerance=1e-3, whole=False, sizes=[777, 5003, 20_001], scales=())
wrong_loose_everywhere = _test("close-is-right", says="16 bits", tolerance=1e-4)
wrong_loose_close = _test("close-is-right", says="16 bits", tolerance=1e-5)
wrong_only_whole_numbers = _test("close-is-right", says="16 bits", draws="")
wrong_only_large = _test("close-is-right", tolerance=2e-3, whole=False, sizes=[10_007])
wrong_accepts_all = wrong("kernel-test", "what-runs-is-right", answer=lambda kernel: True)
wrong_refuses_all = wrong("kernel-test", "only-one-order-is-right", answer=lambda kernel: False)
wrong_returns_an_error = wrong(
    "kernel-test", says="accepts returns True or False", answer=lambda kernel: kernel(np.ones(3, dtype=np.float32))
)
wrong_kernel_nothing = wrong("kernel-test", says="nothing came back", answer=lambda kernel: None)
wrong_fp64 = wrong("kernel-test", says="a kernel takes a float32 array", answer=lambda kernel: kernel(np.ones(3)) == 3)


@wrong("kernel-test", says="add up to more than FP32 holds")
def wrong_huge(kernel):
    return _accepts(kernel) and kernel(np.full(1000, 3e38, dtype=np.float32)) > 0


@wrong("kernel-test", says="returns False for a wrong kernel")
def wrong_raises(kernel):
    assert _accepts(kernel)
    return True


@wrong("kernel-test", says="does this exercise's work")
def wrong_looks_inside(kernel):
    return "_no_nan" not in str([cell.cell_contents for cell in kernel.__closure__])


@wrong("kernel-test", says="does this exercise's work")
def wrong_reads_the_source(kernel):
    import inspect

    return "float16" not in inspect.getsource(kernel)


right_all_sizes = right("kernel-test", answer=_accepts)


@right("kernel-test")
def right_one_after_another(kernel):
    """Single numbers among zeros, counted, and no random draw; then roundings and a NaN."""
    for n in range(1, 301):
        for at in sorted({0, 1, n // 2, n - 2, n - 1} & set(range(n))):
            x = np.zeros(n, dtype=np.float32)
            x[at] = -3
            if kernel(x) != -3:
                return np.bool_(False)
    counted = np.arange(1, 2001, dtype=np.float32)
    good = kernel(counted) == 2001000
    for n in (1, 2, 3, 200, 3000):
        for one in (np.float32(0.1), np.float32(1e-9), np.float32(3e30)):
            off = abs(kernel(np.full(n, one)) - n * float(one))
            good &= off <= n * 2**-24 * n * float(one)
    ramp = np.arange(100_000, dtype=np.float32) % 7
    return np.bool_(good and kernel(ramp) == ramp.sum(dtype=np.float64) and np.isnan(kernel(counted * np.nan)))
