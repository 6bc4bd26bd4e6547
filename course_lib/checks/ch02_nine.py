"""Reasoning exercise 02.5: the nine lines of a step, shuffled, one of them at fault.

The numbers come from the variant that the answer carries; the judge works them out again for that variant. The log is
not made up: `NineLines` runs nine lines on a model of two weights. It prints them as calls (`SHOWN`), so that the fault
is in the log alone.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks.core import Case, Exercise, Wrong, variant_of, variant_rng
from course_lib.checks.smell import plain

__all__ = ["NINE_PARTS", "PARTS", "NineLines", "answer_run", "nine_parts_text", "one_case", "wrong_form"]

PARTS = ("batch", "input_ids", "forward", "loss", "backward", "clip", "optimizer", "scheduler", "record")

LINES = {
    "batch": "rows = range(4 * step, 4 * step + 4); tokens = text[rows]",
    "input_ids": "inputs, targets = tokens[:, :-1], hide_padding(tokens[:, 1:])",
    "forward": "logits = model(inputs)",
    "loss": "loss = cross_entropy(logits, targets, reduction='sum') / (targets != -100).sum()",
    "backward": "model.zero_grad(); loss.backward()",
    "clip": "norm = norm_of_gradients(model); scale_gradients(model, min(1, 1.0 / norm))",
    "optimizer": "for p in model.parameters(): p -= rate * p.grad",
    "scheduler": "used = rate; rate = 0.05 * (step + 2)",
    "record": "logged = dict(step=step, loss=loss, norm=norm, rate=used)",
}
FAULTS = {
    "batch": "rows = range(4 * step - 1, 4 * step + 3); tokens = text[rows]",
    "input_ids": "inputs, targets = tokens[:, :-1], hide_padding(tokens[:, :-1])",
    "forward": "logits = model(targets.clamp(min=0))",
    "loss": "loss = cross_entropy(logits, targets, reduction='sum') / targets.numel()",
    "backward": "loss.backward()",
    "clip": "norm = norm_of_gradients(model); scale_gradients(model, 1.0 / norm)",
    "optimizer": "for p in model.parameters(): p += rate * p.grad",
    "scheduler": "used = rate; rate = 0.05 * (step + 1 + len(tokens))",
    "record": "logged = dict(step=step, loss=loss * len(tokens), norm=norm, rate=used)",
}
SHOWN = {
    "batch": "tokens = read_rows(text, step)",
    "input_ids": "inputs, targets = split(tokens)",
    "forward": "logits = model(inputs)",
    "loss": "loss = loss_per_token(logits, targets)",
    "backward": "fill_gradients(model, loss)",
    "clip": "norm = clip_gradients(model)",
    "optimizer": "move_weights(model, rate)",
    "scheduler": "used = rate; rate = rate_of(step + 1)",
    "record": "logged = note(step, loss, norm, used)",
}
NEEDS = (
    ("batch", "input_ids", "tokens"),
    ("input_ids", "forward", "inputs"),
    ("forward", "loss", "logits"),
    ("loss", "backward", "loss"),
    ("loss", "record", "loss"),
    ("clip", "record", "norm"),
    ("scheduler", "record", "used"),
)
FAULT_ORDER = ("batch", "optimizer", "loss", "scheduler", "input_ids", "clip", "record", "forward", "backward")
"""The fault of variant 0, 1, ...: nine variants in a row have nine faults."""


class _TwoWeights(nn.Module):
    """Tokens (B, T) -> logits (B, T, 8): one weight for repeating the token, one for the token after it."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(weights, dtype=torch.float64))
        self.fed = torch.zeros(0)

    def forward(self, tokens: Tensor) -> Tensor:
        self.fed = tokens
        onehot = F.one_hot(tokens, 8).double()
        return self.w[0] * onehot + self.w[1] * onehot.roll(1, -1)


def _norm(model: _TwoWeights) -> float:
    return 0.0 if model.w.grad is None else float(model.w.grad.norm())


@torch.no_grad()
def _scale(model: _TwoWeights, factor: float) -> None:
    if model.w.grad is not None:
        model.w.grad *= factor


class NineLines:
    """The nine lines of a variant, shuffled under letters, one of them at fault."""

    def __init__(self, variant: int) -> None:
        rng = variant_rng("nine-parts", variant)
        self.fault = FAULT_ORDER[variant % len(FAULT_ORDER)]
        self.letters: dict[str, str] = dict(zip(PARTS, rng.permutation(list("ABCDEFGHI")).tolist(), strict=True))
        self.last = 0
        while self.last == 0 or not self._shows():
            self.last = int(rng.integers(3, 7))
            rows = 4 * self.last + 4
            self.text = torch.from_numpy(
                (rng.integers(0, 8, (rows, 1)) + rng.choice([1, 1, 1, 2, 3], (rows, 8)).cumsum(1)) % 8
            )
            self.hidden = int(rng.integers(5, 11))
            self.start = [round(float(x), 2) for x in rng.uniform(-0.4, 0.4, 2)]

    def _shows(self) -> bool:
        """Whether the fault changes the number that is asked for by more than 5% and 0.01."""
        had, want = self.run()[self.fault][0], self.run(mended=True)[self.fault][0]
        return math.isfinite(had) and abs(had - want) > max(0.01, 0.05 * abs(want))

    def line(self, part: str) -> str:
        """The source of a part as this variant runs it."""
        return (FAULTS if part == self.fault else LINES)[part]

    def run(self, mended: bool = False) -> dict[str, list[float]]:
        """Part -> what it left behind in the last step; with `mended`, the faulty line is replaced in that step alone.

        Beside the parts: what the reader needs to check them (`left over`, `summed`, `before`, ...).
        """
        model = _TwoWeights(self.start)
        space: dict[str, Any] = {"model": model, "text": self.text, "rate": 0.05, "cross_entropy": _cross_entropy}
        space |= {"hide_padding": self._hide, "norm_of_gradients": _norm, "scale_gradients": _scale}
        seen: dict[str, list[float]] = {}
        for step in range(self.last + 1):
            space["step"] = step
            seen["left over"] = [0.0, 0.0] if model.w.grad is None else model.w.grad.tolist()
            seen["before"] = model.w.tolist()
            for part in PARTS:
                source = LINES[part] if mended and step == self.last else self.line(part)
                with torch.set_grad_enabled(part != "optimizer"):
                    exec(compile(source, part, "exec"), space)  # the lines above and nothing else
                seen[part] = _left_behind(part, space)
        targets = space["targets"]
        seen["summed"] = [float(_cross_entropy(space["logits"], targets, "sum").detach())]
        seen["count"], seen["numel"] = [float((targets != -100).sum())], [float(targets.numel())]
        seen["norm"], seen["used"] = [space["norm"]], [space["used"]]
        seen["tokens"] = space["tokens"][0].tolist()
        return seen

    def _hide(self, targets: Tensor) -> Tensor:
        hidden = targets.clone()
        hidden.view(-1)[-self.hidden :] = -100
        return hidden

    def text_of_question(self) -> str:
        """The lines by letter, what the program is for, what its last step left behind, and the form of the answer."""
        by_letter = sorted((letter, SHOWN[part]) for part, letter in self.letters.items())
        seen = self.run()
        log = sorted(
            [
                f"fed to the model, row 0: {_ints(seen['forward'])}",
                f"gradients of the two weights after backward: {_numbers(seen['backward'])}"
                f"  (left over from the step before: {_numbers(seen['left over'])})",
                f"logged: loss {_numbers(seen['record'])}, norm {_numbers(seen['norm'])},"
                f" rate {_numbers(seen['used'])}",
                f"loss: {_numbers(seen['loss'])}  (sum over the targets that count: {_numbers(seen['summed'])};"
                f" {seen['count'][0]:.0f} of {seen['numel'][0]:.0f} count)",
                f"norm of the gradients after clipping: {_numbers(seen['clip'])}  (before: {_numbers(seen['norm'])})",
                f"rate for the next step: {_numbers(seen['scheduler'])}",
                f"rows of the text that were read: {_ints(seen['batch'])}",
                f"targets, row 0: {_ints(seen['input_ids'])}  (tokens, row 0: {_ints(seen['tokens'])})",
                f"weights after the update: {_numbers(seen['optimizer'])}  (before: {_numbers(seen['before'])})",
            ]
        )
        return "\n".join(
            [
                "Nine lines of a training loop, shuffled. One of them calls something that is written wrongly.",
                "",
                *(f"  {letter}  {line}" for letter, line in by_letter),
                "",
                "What it should do: step s reads rows 4s to 4s + 3 of the text, four rows of eight tokens. Plain",
                "SGD at rate 0.05 x (s + 1). The norm of the gradients is limited to 1. Targets of -100 are padding",
                "and do not count. The log holds the step's loss per token that counts, its norm before clipping and",
                "its rate.",
                "",
                f"It ran in the right order. This is what step {self.last} left behind (sorted by name, not by time):",
                "",
                *(f"  {entry}" for entry in log),
                "",
                'order:    nine letters, first part first, such as "ABCDEFGHI"',
                "choice:   the letter of the faulty line",
                "evidence: one number: the first on that line's entry in the log, as it should be (three digits)",
            ]
        )


def nine_parts_text(variant: int) -> str:
    """What `question` prints."""
    return NineLines(variant).text_of_question()


def _cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def _left_behind(part: str, space: dict[str, Any]) -> list[float]:
    model = space["model"]
    if part == "batch":
        return list(space["rows"])
    if part in ("input_ids", "forward"):
        return (space["targets"] if part == "input_ids" else model.fed)[0].tolist()
    if part == "backward":
        return model.w.grad.tolist()
    if part == "optimizer":
        return model.w.tolist()
    values = {"loss": space.get("loss"), "clip": _norm(model), "scheduler": space["rate"]}
    value = space["logged"]["loss"] if part == "record" else values[part]
    return [float(value.detach() if isinstance(value, Tensor) else value)]


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


def _ints(values: list[float]) -> str:
    return " ".join(str(int(value)) for value in values)


def one_case(name: str) -> Callable[[int], list[Case]]:
    """The cases of a reasoning exercise: one, which the answer's variant decides."""
    return lambda seed: [{"name": name}]


def answer_run(answer: Any, case: Case) -> dict[str, Any]:
    """A reasoning answer is data already; it is handed on as it is. WrongForm when it is no dict or has no variant."""
    variant_of(answer)
    return {str(key): plain(value) for key, value in answer.items()}


def wrong_form(returned: dict[str, Any], keys: tuple[str, ...]) -> Wrong | None:
    """Keys that the answer lacks or has too many, and an `evidence` that is filled in and no number."""
    expected = ("variant", *keys)
    for key in (*returned, *expected):
        if key not in expected or key not in returned:
            what = "is not one of them" if key not in expected else "is missing"
            return Wrong(f"the answer has the keys {', '.join(expected)}; `{key}` {what}", form=True)
    value = returned["evidence"]
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return Wrong("`evidence` is one number, without quotes", form=True)
    return None


def nine_parts_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Order and letter exact; the number within 1% or 0.002, since the question prints four digits."""
    form = wrong_form(returned, ("order", "choice", "evidence"))
    if form is not None:
        return form
    program, given = NineLines(returned["variant"]), returned["order"]
    given = "".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given or "")
    order = [c for c in given.upper() if c.isalnum()]
    if sorted(order) != list("ABCDEFGHI"):
        return Wrong("`order` needs each of the letters A to I once, first part first", form=True)
    choice = str(returned["choice"] or "").strip().upper()
    if choice and choice not in list("ABCDEFGHI"):
        return Wrong("`choice` is one letter, A to I", form=True)
    right, logged = program.run(mended=True)[program.fault][0], program.run()[program.fault][0]
    found, got = choice == program.letters[program.fault], returned["evidence"]
    fits = got is not None and math.isclose(got, right, rel_tol=0.01, abs_tol=0.002)
    part_of = {letter: part for part, letter in program.letters.items()}
    wrong = _wrong_order([part_of[letter] for letter in order], order)
    if wrong is not None:
        return Wrong(wrong.message, wrong.misconception, form=found and fits)  # two of three right cost no variant
    if not choice:
        return Wrong("the order is right; `choice` is still empty", form=True)
    if not found:
        message = f"the order is right. Line {choice} does what it should: put its log line beside what went into it"
        return Wrong(message, "blames-a-sound-line")
    if got is None:
        return Wrong("order and line are right; `evidence` is still empty", form=True)
    if fits:
        return None
    if math.isclose(got, logged, rel_tol=0.01, abs_tol=0.002):
        message = "order and line are right, but your number is the one the faulty line produced"
        return Wrong(message, "repeats-the-log", form=True)
    message = "order and line are right, the number is not. Work it out from the other lines of the log, by hand"
    return Wrong(message, form=True)


def _wrong_order(parts: list[str], letters: list[str]) -> Wrong | None:
    at = {part: place for place, part in enumerate(parts)}
    for earlier, later, name in NEEDS:
        if at[earlier] > at[later]:
            message = f"line {letters[at[later]]} uses `{name}`, which no line before it has made"
            return Wrong(message, "uses-what-is-not-there")
    if at["clip"] < at["backward"]:
        return Wrong("in your order the gradients are clipped before they are there", "clip-before-backward")
    if at["optimizer"] < at["backward"]:
        message = "in your order the weights move before this step's gradients are there: by whose gradients?"
        return Wrong(message, "steps-on-old-gradients")
    if at["clip"] > at["optimizer"]:
        message = "in your order a spike has reached the weights before its gradients are cut"
        return Wrong(message, "clip-after-the-step")
    if at["scheduler"] < at["optimizer"]:
        message = "in your order the very first update runs at a rate that the schedule has for another step"
        return Wrong(message, "scheduler-before-the-step")
    return None


NINE_PARTS = Exercise(
    id="nine-parts",
    title="Nine shuffled parts, one of them wrong",
    cases=one_case("your order, line and number"),
    run=answer_run,
    judge=nine_parts_judge,
    misconceptions={
        "uses-what-is-not-there": "a part can run before the part that makes its input",
        "clip-before-backward": "the loss or the logits are what is clipped",
        "steps-on-old-gradients": "the optimizer may come before backward",
        "clip-after-the-step": "clipping protects the weights even after the update",
        "scheduler-before-the-step": "the scheduler sets the rate of the step that is about to be taken",
        "blames-a-sound-line": "an odd-looking line is the faulty one",
        "repeats-the-log": "what the program printed is what it should have printed",
    },
)
