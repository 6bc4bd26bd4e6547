"""Check 08.4: the order in which FSDP gathers, computes, drops and reduces, played back by a small interpreter."""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind
from course_lib.checks.smell import plain

__all__ = ["ORDER"]

ACTIONS = ("gather", "forward", "drop", "backward", "reduce")


def order_cases(seed: int) -> list[Case]:
    """The flags that matter are fixed (a last layer of each kind, a mix), the number of layers follows the seed."""
    rng = np.random.default_rng([seed, 804])
    a, b, c, d = (int(n) for n in rng.integers(3, 6, size=4))

    def case(name: str, reshard: list[bool], micro_batches: int = 1, deferred: bool = False) -> Case:
        return {"name": name, "reshard": reshard, "micro_batches": micro_batches, "deferred": deferred}

    mixed = [True, False, *(bool(flag) for flag in rng.integers(0, 2, size=d))]
    return [
        case("one layer, which reshards", [True]),
        case("every layer reshards", [True] * a),
        case("no layer reshards", [False] * b),
        case("every layer but the last reshards", [True] * c + [False]),
        case("some layers reshard", [*mixed, True]),
        case("three micro-batches, some layers reshard", [True, False, True, *mixed[:2]], 3),
        case("two micro-batches, reductions deferred, every layer reshards", [True] * a, 2, True),
        case("three micro-batches, reductions deferred, no layer reshards", [False] * b, 3, True),
    ]


def order_run(answer: Callable[..., Any], case: Case) -> Any:
    rows = answer(case["reshard"], case["micro_batches"], case["deferred"])
    if not isinstance(rows, (list, tuple)):
        return {"kind": "nothing" if rows is None else kind(rows)}
    return [[plain(part) for part in row] if isinstance(row, (list, tuple)) else kind(row) for row in rows]


def order_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact. Oracle: the order is played back, and what is held at every gather and every computation is compared.

    Between a layer's backward and the next gather, `drop` and `reduce` may come in either order.
    """
    form = _form(returned, len(case["reshard"]))
    if form is not None:
        return form
    player, rows = _Player(case), [(str(action), int(layer)) for action, layer in returned]
    for number, (action, layer) in enumerate(rows, start=1):
        player.following = next((row for row in rows[number:] if row[0] in ("forward", "backward")), None)
        wrong = player.play(action, layer)
        if wrong is not None:
            message = f"entry {number} of your list, ({action!r}, {layer}): {wrong.message}"
            return Wrong(message, wrong.misconception)
    return player.end()


def _form(returned: Any, layers: int) -> Wrong | None:
    if isinstance(returned, dict):
        if returned["kind"] == "nothing":
            return Wrong("nothing came back. Does the function end in a `return`?", form=True)
        return Wrong(f"a list of pairs is wanted; {returned['kind']} came back", form=True)
    for row in returned:
        if not isinstance(row, list) or len(row) != 2:
            return Wrong(f'each entry is a pair such as ("gather", 0); one of yours is {row!r}', form=True)
        action, layer = row
        if action not in ACTIONS:
            return Wrong(f"there is no action {action!r}; there are {', '.join(ACTIONS)}", form=True)
        if isinstance(layer, bool) or not isinstance(layer, (int, float)) or layer not in range(layers):
            return Wrong(f"layers are numbered from 0 to {layers - 1}; one of yours is {layer!r}", form=True)
    return None


class _Player:
    """Plays an order back: `held` are the layers whose weights are whole, `gradients` those whose gradient is."""

    def __init__(self, case: Case) -> None:
        layers = range(len(case["reshard"]))
        once = [("forward", n) for n in layers] + [("backward", n) for n in reversed(layers)]
        self.reshard, self.deferred, self.micro_batches = case["reshard"], case["deferred"], case["micro_batches"]
        self.todo = once * self.micro_batches
        self.done = 0
        self.held: set[int] = set()
        self.gradients: set[int] = set()
        self.kept: set[int] = set()
        """Of `held`: layers that reshard, and have not dropped their weights since their forward."""
        self.following: tuple[str, int] | None = None
        """What the order computes next after the entry that is played."""

    @property
    def micro_batch(self) -> int:
        """The micro-batch of the computation that was done last."""
        return max(0, self.done - 1) // (2 * len(self.reshard))

    def play(self, action: str, layer: int) -> Wrong | None:
        return {
            "gather": self._gather,
            "drop": self._drop,
            "reduce": self._reduce,
            "forward": self._compute,
            "backward": self._compute,
        }[action](action, layer)

    def _gather(self, action: str, layer: int) -> Wrong | None:
        if layer in self.held:
            return Wrong("its weights are there already: nothing has to travel", "gathers-what-it-holds")
        if self.done == len(self.todo):
            return Wrong("nothing is left to compute. What is it gathered for?")
        wanted = self.todo[self.done]
        early = self._left_over(wanted)
        if early is not None:
            return early
        if self._too_soon_forward(self.following):
            return self._side_by_side(wanted)
        if layer == 0 and wanted[0] == "backward" and wanted[1] not in self.held | {0}:
            return Wrong("in which direction does backward walk through the layers?", "backward-walks-forward")
        if layer != wanted[1]:
            message = f"the next computation is {wanted[0]} of layer {wanted[1]}. Just in time means: not before"
            return Wrong(message, "gathers-ahead")
        self.held.add(layer)
        return None

    def _left_over(self, wanted: tuple[str, int]) -> Wrong | None:
        """What should be gone by the time that `wanted` is prepared."""
        pass_, layer = wanted
        stay = {n for n in range(layer) if not self.reshard[n]} | {layer}
        extra = sorted((self.held - stay) | (self.kept & self.held if pass_ == "backward" else set()))
        if extra:
            after = "backward" if pass_ == "backward" and extra[-1] > layer else "forward"
            if pass_ == "forward" and self.done and self.todo[self.done - 1][0] == "backward":
                after = "backward"
            message = f"the weights of layer {extra[0]} are still whole. Who needs them after its {after}?"
            return Wrong(message, f"keeps-after-{after}")
        waiting = self._unreduced(wanted)
        if waiting is not None:
            message = f"the whole gradient of layer {waiting} is still there, and nothing will be added to it"
            if not self.deferred and self.micro_batches > 1:
                message = f"the whole gradient of layer {waiting} is still there, and reductions are not deferred here"
                return Wrong(f"{message}: when is it reduced then?", "always-deferred")
            return Wrong(message, "reduces-at-the-end")
        return None

    def _too_soon_forward(self, computed: tuple[str, int] | None) -> bool:
        """Whether a forward of the next micro-batch is computed where a backward of this one is due."""
        wanted = self.todo[self.done]
        return self.micro_batches > 1 and wanted[0] == "backward" and (computed or wanted)[0] == "forward"

    def _side_by_side(self, wanted: tuple[str, int]) -> Wrong:
        whole = "each micro-batch has a forward of all layers, then a backward of all layers"
        return Wrong(f"the next computation is {wanted[0]} of layer {wanted[1]}: {whole}", "micro-batches-side-by-side")

    def _unreduced(self, wanted: tuple[str, int]) -> int | None:
        """A layer whose gradient is whole, though nothing will be added to it before `wanted`."""
        if not self.deferred:
            return max(self.gradients, default=None)
        if wanted[0] == "forward" or self.micro_batch < self.micro_batches - 1:
            return None
        return max((layer for layer in self.gradients if layer > wanted[1]), default=None)

    def _compute(self, action: str, layer: int) -> Wrong | None:
        if self.done == len(self.todo):
            return Wrong("every layer of every micro-batch has been computed already")
        wanted = self.todo[self.done]
        if (action, layer) != wanted:
            if action == wanted[0] == "backward":
                return Wrong("in which direction does backward walk through the layers?", "backward-walks-forward")
            again = self.micro_batches > 1 and (action, layer) == self.todo[self.done - 1]
            wrong = self._side_by_side(wanted)
            return wrong if again or self._too_soon_forward((action, layer)) else Wrong(wrong.message)
        if layer not in self.held:
            if action == "backward":
                message = "its weights are not whole. Backward needs them too: where did they go?"
                return Wrong(message, "backward-needs-no-weights")
            return Wrong("its weights are not whole: a rank holds a shard of them", "a-shard-computes")
        early = self._left_over(wanted)
        if early is not None:
            return early
        self.done += 1
        if action == "backward":
            self.gradients.add(layer)
        elif self.reshard[layer]:
            self.kept.add(layer)
        return None

    def _drop(self, action: str, layer: int) -> Wrong | None:
        if layer not in self.held:
            return Wrong("its weights are not whole: there is nothing to drop")
        last = self.todo[self.done - 1] if self.done else ("", -1)
        if last != ("backward", layer) and not self.reshard[layer]:
            message = "this layer does not reshard, and its backward is still to come"
            return Wrong(message, "everything-reshards")
        if last[1] != layer:
            return Wrong("its weights are dropped before they were used")
        self.held.remove(layer)
        self.kept.discard(layer)
        return None

    def _reduce(self, action: str, layer: int) -> Wrong | None:
        if layer not in self.gradients:
            return Wrong("it has no whole gradient now: its backward comes first, and a gradient is reduced once")
        last = self.todo[self.done - 1]
        if self.deferred and self.micro_batch < self.micro_batches - 1:
            message = "reductions are deferred. To what will the next micro-batch add its gradient?"
            return Wrong(message, "reduces-every-micro-batch")
        if last[0] == "forward" or last[1] > layer:
            return Wrong("its backward in the last micro-batch is still to come", "reduces-every-micro-batch")
        self.gradients.remove(layer)
        return None

    def end(self) -> Wrong | None:
        if self.done < len(self.todo):
            action, layer = self.todo[self.done]
            where = f" of micro-batch {self.done // (2 * len(self.reshard)) + 1}" if self.micro_batches > 1 else ""
            return Wrong(f"the order ends before {action} of layer {layer}{where}")
        if self.held:
            message = f"at the end the weights of layer {max(self.held)} are still whole"
            return Wrong(message, "keeps-after-backward")
        if self.gradients:
            layer = max(self.gradients)
            return Wrong(
                f"at the end the gradient of layer {layer} is still whole and was never reduced", "no-reduction"
            )
        return None


ORDER = Exercise(
    id="just-in-time",
    title="Just in time",
    cases=order_cases,
    run=order_run,
    judge=order_judge,
    misconceptions={
        "gathers-what-it-holds": "every computation begins with a gather",
        "gathers-ahead": "all weights are gathered before the pass begins",
        "keeps-after-forward": "what was gathered for forward stays for backward",
        "keeps-after-backward": "what was gathered stays until the step ends",
        "reduces-at-the-end": "gradients are reduced when backward is over",
        "always-deferred": "a step reduces a gradient once, however it is set",
        "reduces-every-micro-batch": "every backward ends in a reduction",
        "backward-walks-forward": "backward visits the layers in the order of forward",
        "micro-batches-side-by-side": "a layer takes all micro-batches before the next layer begins",
        "backward-needs-no-weights": "backward needs the activations alone",
        "a-shard-computes": "a rank computes with its shard",
        "everything-reshards": "every layer drops its weights after forward",
        "no-reduction": "a gradient that is there is a gradient of all ranks",
    },
)
