"""Check 14.5: clipping a gradient norm by its own running mean and deviation (ZClip, 2025, arXiv 2504.02507)."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind
from course_lib.checks.smell import plain

__all__ = ["CLIP", "clipped"]

FLAT = "without-deviation-all-is-the-mean"
DEFAULTS: dict[str, Any] = {"threshold": 2.5, "keep": 0.97, "warm_up": 25}
FIXED = ": "
"""Behind a rule's name: the number of DEFAULTS that it takes, whatever was given."""
SET = "defaults-for-all"
RULES = {
    "the-raw-norm-enters": "after a spike your limit is too wide: which norm is it that the weights have felt?",
    "clipped-to-the-threshold": "a norm far out and one just beyond the threshold do not end at the same place",
    "low-norms-are-outliers": "a norm below the mean was changed. Which direction does harm?",
    "the-old-mean-in-the-variance": "the variance is off by little: the distance to which mean?",
    "one-less-than-the-count": "the deviation is off by little from the first step after the warm-up on: of how many?",
    "no-square": "how much of the distance is left to a norm that is z deviations out?",
    "z-is-a-distance": "what do you divide by: the variance, or its root?",
    "everything-above-the-mean": "a norm within the threshold was changed",
    "nan-is-a-number": "one norm was not finite. What became of the mean?",
    "nan-takes-a-place": "a norm that is not finite came in the warm-up: is it one of its norms?",
    "nan-is-a-0-of-the-warm-up": "a norm that is not finite came in the warm-up. Is its entry one of the norms there?",
    "outliers-stay-out": "a norm was clipped at an earlier step. Did what was left of it enter?",
    "keep-is-for-the-new": "which of the two has the weight `keep`: what was there, or what comes in?",
    SET: "this case has a threshold, a `keep` and a warm-up of its own. Do you use all three?",
    "warm-up-is-clipped": "a norm of the warm-up was changed",
    FLAT: "with a deviation of 0, which norms become the mean, and which stay?",
    "without-deviation-nothing-enters": "the deviation was 0 at an earlier norm. Did that norm enter?",
}


def clipped(case: Case, rule: str = "") -> list[float]:
    """What comes out, or what a wrong rule gives. Mean and deviation are worked out anew from all that was used."""
    rule, _, fixed = rule.partition(FIXED)
    threshold, keep, warm_up = (DEFAULTS[name] if name == fixed else case[name] for name in DEFAULTS)
    keep = 1 - keep if rule == "keep-is-for-the-new" else keep
    first: list[float] = []
    mean = variance = math.nan
    out = []
    for norm in case["norms"]:
        if not math.isfinite(norm) and rule != "nan-is-a-number":
            out.append(0.0)
            if rule == "nan-takes-a-place" and len(first) < warm_up:
                first.append(math.nan)
            elif rule == "nan-is-a-0-of-the-warm-up" and len(first) < warm_up:
                first.append(0.0)
            continue
        if len(first) < warm_up:
            if rule == "warm-up-is-clipped" and len(first) > 1 and norm > np.nanmean(first):
                deviation, center = float(np.nanstd(first)), float(np.nanmean(first))
                if norm > center + threshold * deviation:
                    norm = center + threshold**2 * deviation**2 / (norm - center)
            first.append(norm)
            skips = rule == "nan-takes-a-place"
            known = [one for one in first if not (skips and math.isnan(one))]
            mean = sum(known) / len(known)
            less = 1 if rule == "one-less-than-the-count" and len(known) > 1 else 0
            variance = sum((one - mean) ** 2 for one in known) / (len(known) - less)
            out.append(norm)
            continue
        spread = variance if rule == "z-is-a-distance" else math.sqrt(variance)
        away, used = norm - mean, norm
        limit = 0.0 if rule == "everything-above-the-mean" else threshold * spread
        outlier = abs(away) > limit if rule == "low-norms-are-outliers" else away > limit
        if rule == FLAT and spread == 0:
            used = mean
        elif outlier:
            if rule == "clipped-to-the-threshold":
                left = threshold * spread
            elif rule == "no-square":
                left = threshold * spread**2 / away
            else:
                left = threshold**2 * spread**2 / away
            used = mean + left
        out.append(used if math.isfinite(used) else math.nan)
        if rule == "without-deviation-nothing-enters" and spread == 0:
            continue
        if rule == "outliers-stay-out" and outlier:
            continue
        enters = norm if rule == "the-raw-norm-enters" else used
        old = mean
        mean = keep * mean + (1 - keep) * enters
        center = old if rule == "the-old-mean-in-the-variance" else mean
        variance = keep * variance + (1 - keep) * (enters - center) ** 2
    return out


def clip_cases(seed: int) -> list[Case]:
    """Norms that fall and flatten as a run's do, with noise; what differs is where they jump."""
    rng = np.random.default_rng([seed, 1405])

    def trace(n: int, jumps: dict[int, float], noise: float = 0.12) -> list[float]:
        level = 0.4 + 0.8 * np.exp(-np.arange(n) / rng.uniform(20, 40))
        norms = level * np.exp(noise * rng.standard_normal(n).clip(-2, 2))
        for place, factor in jumps.items():
            norms[place] *= factor
        return [float(one) for one in norms]

    def case(name: str, norms: list[float], threshold: float = 2.5, keep: float = 0.97, warm_up: int = 25) -> Case:
        return {"name": name, "norms": norms, "threshold": threshold, "keep": keep, "warm_up": warm_up}

    place = int(rng.integers(40, 60))
    broken = trace(90, {place + 12: 5.0})
    broken[place], broken[place + 1] = math.nan, math.inf
    early = trace(60, {20: 6.0, 45: 6.0}, 0.05)  # step 20 is the last of the warm-up
    early[int(rng.integers(3, 9))] = math.nan
    return [
        case("one spike", trace(90, {place: 30.0})),
        case("eight spikes in a row", trace(100, {place + n: float(rng.uniform(8, 20)) for n in range(8)})),
        case("jumps of all sizes, up and down", trace(120, {30 + 9 * n: 0.25 * 1.6**n for n in range(9)})),
        case("a spike in the warm-up", trace(80, {int(rng.integers(12, 20)): 12.0, 60: 40.0})),
        case("other numbers", trace(70, {35: 7.0, 50: 0.05, 60: 3.0}), 2.0, 0.9, 10),
        case("NaN and infinity", broken),
        case("NaN in the warm-up", early, 3.0, 0.9, 20),
        case("fewer norms than the warm-up has", trace(12, {8: 20.0})),
        # the deviation is 0 until a smaller norm comes, which stays, and enters; the last ones feel it
        case(
            "all the same, then one larger, then one smaller",
            [0.5] * 9 + [2.0, 0.5, 0.3, *trace(9, {6: 5.0})],
            2.5,
            0.75,
            4,
        ),
    ]


def clip_run(answer: Callable[..., Any], case: Case) -> list[float]:
    said = answer(case["norms"], case["threshold"], case["keep"], case["warm_up"])
    if said is None:
        raise WrongForm("nothing came back. Does every path end in a `return`?")
    if hasattr(said, "tolist"):
        said = said.tolist()
    if not isinstance(said, list | tuple):
        raise WrongForm(f"`clip` returns a list, one norm a step; yours returned {kind(said)}")
    values = [plain(one) for one in said]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise WrongForm(f"the list holds numbers; yours holds {kind(one)}")
    return [float(one) for one in values]


def _alike(one: list[float], other: list[float]) -> bool:
    return np.allclose(one, other, rtol=1e-4, atol=1e-9, equal_nan=True)


def clip_judge(case: Case, returned: Any) -> Wrong | None:
    """Within 1e-4: FP32, or an epsilon of 1e-6 beside the deviation, is no error; rules differ by 1e-3 and more."""
    norms, right = case["norms"], clipped(case)
    if len(returned) != len(norms):
        return Wrong(f"one number for each norm is wanted: {len(norms)}, and {len(returned)} came back")
    # one value far out in units of the deviation: an epsilon beside a deviation of 0 gives a little more than the mean
    if _alike(returned, right) or np.allclose(returned, right, rtol=1e-4, atol=1e-4):
        return None
    tried = [rule for rule in RULES if rule != SET] + [SET + FIXED + name for name in DEFAULTS]
    fits = [rule for rule in tried if _alike(returned, clipped(case, rule)) and not _alike(right, clipped(case, rule))]
    fits = list(dict.fromkeys(rule.partition(FIXED)[0] for rule in fits))
    if FLAT in fits:  # who clips low norms has failed in an earlier case
        fits = [FLAT]
    place = next(n for n, (a, b) in enumerate(zip(returned, right, strict=True)) if not _alike([a], [b]))
    where = f"step {place}, norm {norms[place]:.4g}: {returned[place]:.4g} came out. "
    if fits:
        return Wrong(where + " Or: ".join(RULES[rule] for rule in fits), fits[0] if len(fits) == 1 else None)
    if math.isnan(returned[place]):
        text = "where a norm is not finite, the update is left out, and nothing enters mean and variance"
        return Wrong(where + text, "nan-is-a-number" if not all(map(math.isfinite, norms[: place + 1])) else None)
    if all(math.isfinite(one) for one in norms[: place + 1]) and returned[place] == norms[place]:
        return Wrong(where + "It was left as it is. By your mean and deviation, how far out is it?")
    if not math.isfinite(norms[place]):
        return Wrong(where + "What is the length of an update that is left out?", "nan-is-a-number")
    return Wrong(where + "Work out mean, deviation and z of this step by hand: which one is another?")


CLIP = Exercise(
    id="z-clip",
    title="Clip by z-score",
    cases=clip_cases,
    run=clip_run,
    judge=clip_judge,
    forbidden=("course_lib.failures",),
    misconceptions={
        "the-raw-norm-enters": "what came in is what the statistics are of",
        "clipped-to-the-threshold": "all outliers are clipped to one length",
        "low-norms-are-outliers": "what is far from the mean is an outlier, on both sides",
        "the-old-mean-in-the-variance": "a distance is a distance, whichever mean",
        "one-less-than-the-count": "a variance is always divided by n - 1",
        "no-square": "the distance is divided by z once",
        "z-is-a-distance": "variance and deviation are the same up to a factor",
        "everything-above-the-mean": "clipping starts at the mean",
        "nan-is-a-number": "NaN passes by and is gone",
        "nan-takes-a-place": "a NaN step is a step like others",
        "nan-is-a-0-of-the-warm-up": "what is written down for a step is its norm",
        "outliers-stay-out": "what was clipped says nothing about the run",
        "keep-is-for-the-new": "the two weights of a moving mean can be exchanged",
        SET: "the numbers of the signature are those of the call",
        FLAT: "where nothing varied so far, nothing can",
        "without-deviation-nothing-enters": "what cannot be measured in deviations is left out",
        "warm-up-is-clipped": "statistics are good from the second norm on",
    },
)
