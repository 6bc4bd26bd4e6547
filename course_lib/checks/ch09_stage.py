"""Check 09.7: the loop of one stage, run between two neighbours that keep to their own lists."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from course_lib.checks.ch09_link import Link, Stands, Watched
from course_lib.checks.ch09_order import held
from course_lib.checks.ch09_play import Pass, one_f_one_b
from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind
from course_lib.checks.guard import is_stub

__all__ = ["STAGE"]

ROWS, INTO, OUT, TOKENS = 4, 5, 3, 11

GPIPE_BEFORE_1F1B = "F0 F1 F2 F3 B0 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"
OTHER_ORDERS = "F0 F1 F2 F3 B2 B1 B3 B0", "F0 F1 F2 F3 B1 B2 B0 B3", "F1 B1 F2 B2 F0 B0 F3 B3"
"""Lists of the stages, in which a stage's send waits for a neighbour that first wants something else."""


def stage_cases(seed: int) -> list[Case]:
    """Each kind of stage, each kind of order; numbers follow the seed. `lists`: what every stage does."""
    g = torch.Generator().manual_seed(seed + 907)

    def case(name: str, stage: int, stages: int, count: int, order: str | tuple[str, ...] = "1f1b") -> Case:
        lists = one_f_one_b(stages, count)
        if isinstance(order, tuple):
            lists = [[(item[0], int(item[1:])) for item in items.split()] for items in order]
        elif order != "1f1b":
            back = range(count) if order == "gpipe" else reversed(range(count))
            lists = [[("F", k) for k in range(count)] + [("B", k) for k in back]] * stages
        first = stage == 0
        return {
            "name": name,
            "stage": stage,
            "stages": stages,
            "lists": [list(items) for items in lists],
            "weight": torch.randn(OUT, TOKENS if first else INTO, generator=g) / 2,
            "bias": torch.randn(OUT, generator=g) / 2,
            "inputs": [
                torch.randint(TOKENS, (ROWS,), generator=g) if first else torch.randn(ROWS, INTO, generator=g)
                for _ in range(count)
            ],
            "gradients": [torch.randn(ROWS, OUT, generator=g) for _ in range(count)],
        }

    return [
        case("the only stage, 3 micro-batches", 0, 1, 3),
        case("the last of 2 stages, 1F1B", 1, 2, 4),
        case("the first of 3 stages, 1F1B", 0, 3, 6),
        case("stage 1 of 4, 1F1B", 1, 4, 9),
        case("stage 1 of 3, GPipe", 1, 3, 5, "gpipe"),
        case("stage 1 of 3, the last micro-batch comes back first", 1, 3, 4, "reversed"),
        case("stage 2 of 4, one micro-batch", 2, 4, 1),
        case("the first of 2 stages, GPipe here, 1F1B after it", 0, 2, 4, GPIPE_BEFORE_1F1B),
        case("stage 1 of 3, each stage in another order", 1, 3, 4, OTHER_ORDERS),
    ]


NO_GRAPH = "a backward was begun from a tensor without a graph. What was kept in forward, and where was its graph cut?"


def stage_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    if not callable(answer):
        raise WrongForm(f"hand in the function itself, `run_stage`; yours is {kind(answer)}")
    stage, link = Watched(case["weight"], case["bias"]), _link(case)
    told: dict[str, Any] = {"stopped": None, "rule": "", "wanted": None, "returned": None}
    given = case["lists"][case["stage"]]
    actions = [tuple(item) for item in given]
    try:
        returned = answer(given, stage, link)
        told["returned"] = None if returned is None else kind(returned)
    except Stands as error:
        told.update(stopped=str(error), rule=error.rule, wanted=error.wanted)
    except Exception as error:
        if is_stub(error) or isinstance(error, TimeoutError):
            raise
        if isinstance(error, RuntimeError) and "does not have a grad_fn" in str(error):
            told.update(stopped=NO_GRAPH)
        elif _in_order(actions, stage._log):
            raise
    return {
        **told,
        "log": stage._log,
        "most": stage._most,
        "unsent": link._unsent(),
        "sent": [name for side in link._posted.values() for name in side],
        "losses": link._losses,
        "gradients_in": link._gradients_in,
        "activations": link._arrived["after"],
        "gradients": link._arrived["before"],
        "weight": None if stage.weight.grad is None else stage.weight.grad,
        "bias": None if stage.bias.grad is None else stage.bias.grad,
    }


def _link(case: Case) -> Link:
    return Link(case["stage"], case["stages"], case["lists"], case["inputs"], case["gradients"])


def _in_order(actions: list[Pass], log: list[Pass]) -> bool:
    """Whether the passes so far are the first ones of the list; passes are logged by the number of their forward."""
    return _named(actions, log) == actions[: len(log)]


def _named(actions: list[Pass], log: list[Pass]) -> list[Pass]:
    forwards = [k for what, k in actions if what == "F"]
    return [(what, forwards[number] if number < len(forwards) else -1) for what, number in log]


def _oracle(case: Case, ones: bool = False) -> dict[str, Any]:
    """All that the stage sends and adds up, in float64, written out: y = tanh(x W' + b). `ones`: of the sum of y."""
    weight, bias = case["weight"].double().numpy(), case["bias"].double().numpy()
    sums, shares = [np.zeros_like(weight), np.zeros_like(bias)], []
    out: dict[str, Any] = {"activations": {}, "gradients": {}}
    for k, (given, target) in enumerate(zip(case["inputs"], case["gradients"], strict=True)):
        x = np.eye(weight.shape[1])[given.numpy()] if case["stage"] == 0 else given.double().numpy()
        y = np.tanh(x @ weight.T + bias)
        g = target.double().numpy()
        if case["stage"] == case["stages"] - 1:
            g = 2 * (y - g) / 64
        dz = (np.ones_like(g) if ones else g) * (1 - y * y)
        shares.append((dz.T @ x, dz.sum(0)))
        sums = [sums[0] + shares[-1][0], sums[1] + shares[-1][1]]
        out["activations"][k], out["gradients"][k] = y, dz @ weight
    return {**out, "weight": sums[0], "bias": sums[1], "shares": shares}


def stage_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 1e-4 of each tensor's largest number, against float64: FP32 sums of at most 36 rows are off by 1e-6."""
    actions = [tuple(item) for item in case["lists"][case["stage"]]]
    log = [tuple(item) for item in returned["log"]]
    wrong = _wrong_order(actions, log, returned["stopped"])
    if wrong is not None:
        return wrong
    wrong = _not_begun(case, actions[: len(log)], returned)
    if wrong is not None:
        return wrong
    if returned["stopped"]:
        wanted = tuple(returned["wanted"] or ())
        if wanted in actions[: len(log)] and wanted not in map(tuple, returned["sent"]):
            what, k = wanted
            if what == "B":
                return Wrong(f"{returned['stopped']}. Which gradients has this stage sent?", "gradients-stay")
            return Wrong(f"{returned['stopped']}. Its forward has run here: who sends what came out?")
        ask = {
            "any-order-will-do": "In which order do you receive?",
            "every-send-is-waited-for-at-once": "When do you have to know that a send has ended?",
            "inputs-need-no-gradient": "Which tensor's `.grad` is that, and when does autograd fill it?",
        }.get(returned["rule"], "")
        return Wrong(f"{returned['stopped']}. {ask}".strip(), returned["rule"] or None)
    if returned["unsent"]:
        what, k = returned["unsent"][0]
        thing = f"{'activation' if what == 'F' else 'gradient'} of micro-batch {k}"
        return Wrong(
            f"nobody waited for the send of the {thing}: when is its tensor free?", "a-send-is-done-when-it-returns"
        )
    wrong = _wrong_numbers(case, returned) or _wrong_memory(case, actions, returned["most"])
    if wrong is None and returned["returned"]:
        return Wrong(f"all numbers are right. The function is to return nothing; {returned['returned']} came back")
    return wrong


def _not_begun(case: Case, done: list[Pass], returned: dict[str, Any]) -> Wrong | None:
    """A backward that ran without what it begins from: the loss, or the gradient from the stage after."""
    last = case["stage"] == case["stages"] - 1
    for what, k in done:
        if what == "B" and k not in returned["losses" if last else "gradients_in"]:
            call = f"link.{'loss(out' if last else 'receive_gradient('}{', ' * last}{k})"
            return Wrong(f"the backward of micro-batch {k} ran without `{call}`. What did it begin from?")
    return None


def _wrong_order(actions: list[Pass], log: list[Pass], stopped: str | None) -> Wrong | None:
    named = _named(actions, log)
    count = len(actions) // 2
    forwards = sum(what == "F" for what, _ in log)
    if forwards > count:
        message = f"{forwards} forwards ran for {count} micro-batches. What does a backward need of the first one?"
        return Wrong(message, "backward-runs-forward-again")
    for number, (got, want) in enumerate(zip(named, actions, strict=False)):
        if got == want:
            continue
        if got[0] == want[0] == "B":
            message = (
                f"entry {number} of the list is the backward of micro-batch {want[1]}; that of micro-batch {got[1]} ran"
            )
            newest = got[1] == next(k for what, k in reversed(named[:number]) if what == "F")
            oldest = got[1] == min(k for what, k in named[:number] if what == "F" and ("B", k) not in named[:number])
            rule = "the-first-in-is-the-first-out" if oldest else "the-last-output-is-the-one" if newest else None
            return Wrong(f"{message}. How do you find what belongs to a micro-batch?", rule)
        words = {"F": "forward", "B": "backward"}
        if not any(what == "B" for what, _ in named):
            return Wrong(f"the backward of micro-batch {want[1]}, entry {number} of the list, did not run")
        message = f"entry {number} of the list is a {words[want[0]]}; a {words[got[0]]} ran"
        return Wrong(message, "any-order-will-do")
    if len(log) < len(actions) and not stopped:
        what, k = actions[len(log)]
        return Wrong(f"the {'forward' if what == 'F' else 'backward'} of micro-batch {k} did not run")
    return None


def _near(got: Any, want: Any) -> bool:
    got, want = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
    return got.shape == want.shape and bool((abs(got - want) <= 1e-4 * max(1e-3, abs(want).max())).all())


def _wrong_numbers(case: Case, returned: dict[str, Any]) -> Wrong | None:
    right, count = _oracle(case), len(case["inputs"])
    ones = _oracle(case, ones=True)
    if returned["weight"] is not None and _near(returned["weight"], ones["weight"]):
        what = "loss" if case["stage"] == case["stages"] - 1 else "gradient that came from the stage after"
        return Wrong(f"those are the gradients of the sum of what came out. What became of the {what}?")
    ends = {"activations": case["stage"] < case["stages"] - 1, "gradients": case["stage"] > 0}
    for what, wanted in ends.items():
        one = "activation" if what == "activations" else "gradient of its input"
        for k in range(count) if wanted else ():
            if k not in returned[what]:
                message = f"the {one} of micro-batch {k} was not sent"
                return Wrong(message, "gradients-stay" if what == "gradients" else None)
            got, want = returned[what][k], right[what][k]
            if _near(got, want):
                continue
            if what == "gradients" and _near(got, case["gradients"][k]):
                return Wrong("what came from the stage after was sent on as it came", "the-gradient-passes-through")
            if _near(np.asarray(got) * count, want):
                return Wrong(
                    f"the {one} is divided by {count}. What was divided already?", "micro-batches-are-averaged"
                )
            other = next((j for j in range(count) if j != k and _near(got, right[what][j])), None)
            if other is not None:
                return Wrong(f"as the {one} of micro-batch {k}, that of micro-batch {other} was sent")
            return Wrong(f"the {one} of micro-batch {k} is not right")
    for name in ("weight", "bias"):
        got, want, which = returned[name], right[name], 0 if name == "weight" else 1
        if got is None:
            return Wrong(f"the stage's {name} has no gradient. Did a backward reach it?")
        if _near(got, want):
            continue
        if count > 1 and _near(got, right["shares"][-1][which]):
            return Wrong(
                f"the gradient of the {name} is that of the last micro-batch alone", "each-backward-starts-anew"
            )
        if count > 1 and _near(np.asarray(got) * count, want):
            message = f"the gradient of the {name} is divided by {count}. What was divided already?"
            return Wrong(message, "micro-batches-are-averaged")
        return Wrong(f"the gradient of the {name} is not the sum over the micro-batches")
    return None


def _wrong_memory(case: Case, actions: list[Pass], most: int) -> Wrong | None:
    """One more than the schedule holds is allowed: a local variable may still have the one before."""
    needed = held(actions)
    if most > needed + 1:
        message = (
            f"all numbers are right. Tensors of {most} micro-batches are held at once, and this list needs {needed}: "
            "who still refers to one whose backward is done?"
        )
        return Wrong(message, "backward-frees-it")
    return None


STAGE = Exercise(
    id="run-a-stage",
    title="The loop of one stage",
    cases=stage_cases,
    run=stage_run,
    judge=stage_judge,
    forbidden=("course_lib.parallel", "torch.distributed.pipelining"),
    misconceptions={
        "inputs-need-no-gradient": "autograd keeps the gradient of every tensor that comes in",
        "the-last-output-is-the-one": "one micro-batch is in a stage at a time",
        "the-first-in-is-the-first-out": "micro-batches come back in the order in which they went",
        "any-order-will-do": "a stage may receive whenever it likes",
        "every-send-is-waited-for-at-once": "a send is over when it is waited for, so wait at once",
        "a-send-is-done-when-it-returns": "a send that has begun has ended",
        "backward-runs-forward-again": "a backward begins with a forward",
        "gradients-stay": "the gradient of a stage's input is of no use to anyone",
        "the-gradient-passes-through": "a stage hands the gradient on that it receives",
        "micro-batches-are-averaged": "gradients are divided by the number of micro-batches, whatever the loss was",
        "each-backward-starts-anew": "a micro-batch's gradient replaces the one before",
        "backward-frees-it": "a backward frees all that belongs to its micro-batch",
        "every-stage-has-neighbours": "every stage receives and sends on both sides",
        "every-stage-is-the-first": "every stage reads the batch",
        "every-stage-has-a-loss": "every stage computes a loss",
    },
)
