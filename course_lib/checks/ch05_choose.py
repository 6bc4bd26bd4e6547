"""Check 05.4: which blocks recompute, so that a step fits into a budget at the least extra time.

The oracle tries every choice. The misconceptions are rules of thumb, and a count that forgets what comes back.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind
from course_lib.checks.smell import plain

__all__ = ["CHOOSE", "at_worst"]

Block = dict[str, int]


def at_worst(blocks: list[Block], chosen: Iterable[int]) -> tuple[int, int | None]:
    """Bytes at the worst moment, and the block that is whole again then (None: between forward and backward)."""
    again = set(chosen)
    held = [block["edge"] if number in again else block["inside"] for number, block in enumerate(blocks)]
    moments: list[tuple[int, int | None]] = [(sum(held), None)]
    moments += [(sum(held[:number]) + blocks[number]["inside"], number) for number in sorted(again)]
    return max(moments, key=lambda moment: moment[0])


def _time(blocks: list[Block], chosen: Iterable[int]) -> int:
    return sum(blocks[number]["ms"] for number in chosen)


def _choices(blocks: list[Block]) -> Iterator[tuple[int, ...]]:
    for count in range(len(blocks) + 1):
        yield from combinations(range(len(blocks)), count)


def _best(blocks: list[Block], budget: int, *, forget: bool = False) -> tuple[int, ...] | None:
    """The cheapest choice that fits; `forget`: as if nothing came back in backward."""

    def need(chosen: tuple[int, ...]) -> int:
        if not forget:
            return at_worst(blocks, chosen)[0]
        return sum(block["edge"] if n in chosen else block["inside"] for n, block in enumerate(blocks))

    fits = [chosen for chosen in _choices(blocks) if need(chosen) <= budget]
    return min(fits, key=lambda chosen: _time(blocks, chosen)) if fits else None


def _greedy(blocks: list[Block], budget: int, rank: Callable[[Block], float]) -> list[int] | None:
    """Take blocks in the order of `rank` until it fits."""
    chosen: list[int] = []
    for number in sorted(range(len(blocks)), key=lambda n: rank(blocks[n])):
        if at_worst(blocks, chosen)[0] <= budget:
            break
        chosen.append(number)
    return sorted(chosen) if at_worst(blocks, chosen)[0] <= budget else None


def _thinned(blocks: list[Block], budget: int, chosen: list[int] | None) -> list[int] | None:
    """Give back the dearest blocks of `chosen` as long as it still fits."""
    if chosen is None or at_worst(blocks, chosen)[0] > budget:
        return None
    for number in sorted(chosen, key=lambda n: -blocks[n]["ms"]):
        fewer = [n for n in chosen if n != number]
        if at_worst(blocks, fewer)[0] <= budget:
            chosen = fewer
    return chosen


def _fewest(blocks: list[Block], budget: int) -> list[int] | None:
    """Of the choices that fit, those of the fewest blocks, and of them the cheapest."""
    fits = [chosen for chosen in _choices(blocks) if at_worst(blocks, chosen)[0] <= budget]
    fewest = [chosen for chosen in fits if len(chosen) == len(fits[0])]
    return list(min(fewest, key=lambda chosen: _time(blocks, chosen))) if fits else None


Rule = Callable[[list[Block], int], list[int] | None]

GREEDY: dict[str, Rule] = {
    "largest-first": lambda blocks, budget: _greedy(blocks, budget, lambda b: b["edge"] - b["inside"]),
    "cheapest-first": lambda blocks, budget: _greedy(blocks, budget, lambda b: b["ms"]),
    "best-ratio-first": lambda blocks, budget: _greedy(blocks, budget, lambda b: (b["edge"] - b["inside"]) / b["ms"]),
}
THINNED: dict[str, Rule] = {
    "cheapest-then-thinned": lambda blocks, budget: _thinned(blocks, budget, GREEDY["cheapest-first"](blocks, budget)),
    "all-then-thinned": lambda blocks, budget: _thinned(blocks, budget, list(range(len(blocks)))),
}
RULES: dict[str, Rule] = {**GREEDY, "fewest-blocks": _fewest, **THINNED}


def _random(rng: np.random.Generator, count: int) -> list[Block]:
    return [
        {"inside": int(rng.integers(20, 90)), "edge": int(rng.integers(2, 7)), "ms": int(rng.integers(3, 30))}
        for _ in range(count)
    ]


def _hard(rng: np.random.Generator, count: int, wanted: Callable[[list[Block], int], bool]) -> tuple[list[Block], int]:
    """Blocks and a budget, drawn until they tell the wrong rules from the right one."""
    while True:
        blocks = _random(rng, count)
        budget = int(sum(block["inside"] for block in blocks) * rng.uniform(0.45, 0.75))
        if wanted(blocks, budget):
            return blocks, budget


def _fail(*names: str) -> Callable[[list[Block], int], bool]:
    """Whether each of these rules finds a choice that fits, is not the cheapest, and is no other rule's."""

    def wanted(blocks: list[Block], budget: int) -> bool:
        best = _best(blocks, budget)
        if best is None or at_worst(blocks, range(len(blocks)))[0] > budget:
            return False
        found = [RULES[name](blocks, budget) for name in names]
        if any(choice is None or _time(blocks, choice) == _time(blocks, best) for choice in found):
            return False
        others = [str(rule(blocks, budget)) for rule in RULES.values()]
        return all(others.count(str(choice)) == 1 for choice in found)

    return wanted


def _all_but_the_last(blocks: list[Block], budget: int) -> bool:
    """The last block is whole first of all in backward: to recompute it saves nothing."""
    return _best(blocks, at_worst(blocks, range(len(blocks)))[0]) == tuple(range(len(blocks) - 1))


def _forgetting_fails(blocks: list[Block], budget: int) -> bool:
    careless, best = _best(blocks, budget, forget=True), _best(blocks, budget)
    return careless is not None and best is not None and at_worst(blocks, careless)[0] > budget


def choose_cases(seed: int) -> list[Case]:
    """The wrong rules fail in a case of their own, for every seed; the last has no choice that fits."""
    rng = np.random.default_rng([seed, 504])
    equal = [{"inside": 60, "edge": 4, "ms": 10} for _ in range(6)]
    tight, few = _hard(rng, 7, _fail(*GREEDY)), _hard(rng, 6, _forgetting_fails)
    more = _hard(rng, 9, _fail(*GREEDY))
    fewest, thinned = _hard(rng, 6, _fail("fewest-blocks")), _hard(rng, 6, _fail(*THINNED))
    nearly_all = _hard(rng, 7, _all_but_the_last)[0]
    last = [*_random(rng, 4), {"inside": 400, "edge": 5, "ms": 9}]
    cases = [
        ("everything fits", equal, 360),
        ("six equal blocks", equal, 200),
        ("seven blocks of all sizes", *tight),
        ("a budget that a block breaks when it comes back", *few),
        ("nine blocks of all sizes", *more),
        ("six blocks of all sizes", *fewest),
        ("six other blocks", *thinned),
        ("a budget near the least that is possible", nearly_all, at_worst(nearly_all, range(len(nearly_all)))[0]),
        ("a last block that is larger than the budget", last, 380),
    ]
    return [{"name": name, "blocks": blocks, "budget": budget} for name, blocks, budget in cases]


def choose_run(answer: Callable[..., Any], case: Case) -> Any:
    chosen = answer([dict(block) for block in case["blocks"]], case["budget"])
    if isinstance(chosen, set | tuple | range):
        chosen = list(chosen)
    return [plain(number) for number in chosen] if isinstance(chosen, list) else plain(chosen)


def choose_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact, in whole MB and ms. Any choice that fits and takes the least extra time is right."""
    blocks, budget = case["blocks"], case["budget"]
    best = _best(blocks, budget)
    if returned is None:
        if best is None:
            return None
        return Wrong("you say that nothing fits (or nothing came back); there is a choice that does", "gives-up")
    if not isinstance(returned, list):
        return Wrong(f"a list of block numbers is wanted, or None; {kind(returned)} came back", form=True)
    if any(isinstance(n, bool) or not isinstance(n, int | float) or n != int(n) for n in returned):
        return Wrong("the list holds block numbers, whole and counted from 0", form=True)
    chosen = sorted(int(n) for n in returned)
    if len(set(chosen)) < len(chosen) or (chosen and not 0 <= chosen[0] <= chosen[-1] < len(blocks)):
        return Wrong(f"block numbers go from 0 to {len(blocks) - 1}, each at most once", form=True)
    worst, when = at_worst(blocks, chosen)
    if worst > budget and best is None:
        return Wrong(f"your choice {chosen} needs {worst} MB of {budget}. Is there one that fits?", "always-a-way")
    if worst > budget:
        total = sum(block["edge"] if n in chosen else block["inside"] for n, block in enumerate(blocks))
        if total <= budget:
            message = (
                f"your choice {chosen} holds {total} MB between the passes, but {worst} MB when backward makes block "
                f"{when} again; the budget is {budget}"
            )
            return Wrong(message, "forgets-the-block-that-comes-back")
        return Wrong(f"your choice {chosen} needs {worst} MB at the worst moment; the budget is {budget}")
    assert best is not None
    extra, least = _time(blocks, chosen), _time(blocks, best)
    if extra == least:
        return None
    text = f"your choice {chosen} fits and costs {extra} ms; less is possible."
    if len(chosen) == len(blocks):
        return Wrong(f"{text} Do all blocks have to?", "all-or-nothing")
    rules = {_belief(name) for name, rule in RULES.items() if chosen == sorted(rule(blocks, budget) or [])}
    if len(rules) == 1:
        rule = rules.pop()
        return Wrong(f"{text} {RULE_HINTS[rule]}", rule)
    return Wrong(f"{text} Compare it with other choices that fit")


def _belief(rule: str) -> str:
    return "nothing-to-give-back" if rule in THINNED else rule


RULE_HINTS = {
    "largest-first": "The largest saving first: is it cheap too?",
    "cheapest-first": "The cheapest block first: how many of them did it take?",
    "best-ratio-first": "MB a ms is a good guide, until the last block saves more than was missing",
    "fewest-blocks": "Is the choice of the fewest blocks the one of the least time?",
    "nothing-to-give-back": "No block of it can be given back. Can two be exchanged for one, or one for two?",
}

CHOOSE = Exercise(
    id="choose-blocks",
    title="Choose the blocks",
    cases=choose_cases,
    run=choose_run,
    judge=choose_judge,
    misconceptions={
        "all-or-nothing": "recompute all blocks or none",
        "largest-first": "the blocks that save most are the ones to recompute",
        "cheapest-first": "the blocks that are fastest are the ones to recompute",
        "best-ratio-first": "taking the best saving a millisecond first ends at the best choice",
        "fewest-blocks": "few blocks cost little time",
        "nothing-to-give-back": "a choice from which no block can be given back is the cheapest",
        "forgets-the-block-that-comes-back": "what is dropped is gone for good",
        "gives-up": "when a rule of thumb finds nothing, nothing fits",
        "always-a-way": "with enough recomputation everything fits",
    },
)
