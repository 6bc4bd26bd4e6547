"""Chapter 1's exercises about labels: padded batches (01.2) and the shifted loss (01.3)."""

import math
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong
from course_lib.checks.smell import nearly, not_a_number, plain, smell

__all__ = ["PAD_BATCH", "SHIFTED_LOSS"]

IGNORE = -100
FP32 = 1e-5

# 01.2 Padding and labels ---------------------------------------------------------------------------------------------

LABELS = {
    "copy-shift": "The target of a position is the token at that position.",
    "shifted-twice": "The target of a position is the token two places on.",
    "padding-counts": "Padding is a target like any other.",
    "masks-by-token-id": "A token that has the padding id is padding.",
    "drops-the-last-target": "The last token of a document is no target.",
}
_LABELS_SAYS = {
    "copy-shift": "the target of a position is the very token that stands there. What could a model learn from that?",
    "shifted-twice": "the targets are two places on. Which token should a model guess that has read up to position t?",
    "padding-counts": "positions behind the end of a document have a target. How often would the model be scored on "
    "padding?",
    "masks-by-token-id": "pairs inside a document are ignored because a token has the padding id. How will a model "
    "learn to stop, and to start? Does the id tell you what is padding, or the place?",
    "drops-the-last-target": "the last token of a document is never a target. How many pairs (known, next) do n "
    "tokens make?",
}


def _label_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 102])

    def document(n: int) -> list[int]:
        return rng.permutation(np.arange(2, 40))[:n].tolist()  # no id twice: every wrong shift shows

    cut = document(12)
    return [
        {"name": "one document that fits exactly", "documents": [document(7)], "width": 6, "pad": 0},
        {"name": "documents of 5 and 3 tokens", "documents": [document(5), document(3)], "width": 6, "pad": 0},
        {"name": "a document longer than the row", "documents": [cut, document(4)], "width": 8, "pad": 1},
        {
            "name": "padding with the end-of-text id",
            "documents": [[0, *document(3), 0, *document(2), 0], [0, *document(2), 0]],
            "width": 9,
            "pad": 0,
        },
        {"name": "a document of one token", "documents": [document(1), document(6)], "width": 5, "pad": 0},
    ]


def _run_labels(answer: Any, case: Case) -> Any:
    returned = answer([list(d) for d in case["documents"]], case["width"], case["pad"])
    if returned is None:
        return None
    inputs, targets = returned
    return {"inputs": np.asarray(inputs).tolist(), "targets": np.asarray(targets).tolist()}


def _targets(documents: list[list[int]], width: int, step: int = 1) -> list[list[int]]:
    """Row by row: the token `step` places on, as long as the cut document has one; IGNORE behind it."""
    rows = []
    for document in documents:
        kept = document[: width + 1]
        row = kept[step:][:width]
        rows.append(row + [IGNORE] * (width - len(row)))
    return rows


def _cut_at_pad(document: list[int], pad: int) -> list[int]:
    return document[: document.index(pad) + 1] if pad in document else document


def _judge_labels(case: Case, returned: Any) -> Wrong | None:
    if returned is None:
        return Wrong("nothing came back. Does every path end in a `return`?")
    documents, width, pad = case["documents"], case["width"], case["pad"]
    right, inputs, targets = _targets(documents, width), returned["inputs"], returned["targets"]
    shape = (len(documents), width)
    for which, rows in (("inputs", inputs), ("targets", targets)):
        if np.shape(rows) != shape:
            return Wrong(f"{which} has the shape {np.shape(rows)}, not (documents, width) = {shape}.")
    ahead = [t[: len(t) - t.count(IGNORE)] for t in right]  # what the inputs hold when they are shifted too
    if any(ahead) and all(row[: len(t)] == t for row, t in zip(inputs, ahead, strict=True)):
        return Wrong("the inputs are one place too far on. Is a row's first token known, or is it guessed?")
    if targets != right:
        smells = {
            "copy-shift": [[t if t != IGNORE else IGNORE for t in row] for row in _targets(documents, width, 0)],
            "shifted-twice": _targets(documents, width, 2),
            "padding-counts": [[pad if t == IGNORE else t for t in row] for row in right],
            "masks-by-token-id": [[IGNORE if t == pad else t for t in row] for row in right],
            "drops-the-last-target": [
                row[: max(len(d[: width + 1]) - 2, 0)] + [IGNORE] * (width - max(len(d[: width + 1]) - 2, 0))
                for d, row in zip(documents, right, strict=True)
            ],
        }
        name = next((n for n, rows in smells.items() if targets == rows), None)
        kept = [row[: len(d) - 1] for d, row in zip(documents, right, strict=True)]
        known = [
            [IGNORE if a == pad else t for a, t in zip(d, row, strict=False)]
            for d, row in zip(documents, kept, strict=True)
        ]
        known = [row + [IGNORE] * (width - len(row)) for row in known]
        if name is None and targets in (known, _targets([_cut_at_pad(d, pad) for d in documents], width)):
            name = "masks-by-token-id"
        copied = sum(a == b for x, y in zip(inputs, targets, strict=True) for a, b in zip(x, y, strict=True))
        if name is None and copied > sum(map(len, right)) // 2:
            name = "copy-shift"
        differ = sum(a != b for x, y in zip(right, targets, strict=True) for a, b in zip(x, y, strict=True))
        says = _LABELS_SAYS[name] if name else "write the first row's pairs (known, next) down by hand and compare."
        return Wrong(f"{differ} of {len(documents) * width} targets are wrong; {says}", name)
    for document, row in zip(documents, inputs, strict=True):
        n = len(document[: width + 1]) - 1
        if row[:n] != document[:n]:
            return Wrong("the targets are right, but an input in front of a target is not the document's own token.")
        if min(row) < 0:
            return Wrong("an input id is negative. Which row of the embedding would it read?")
        if row[n:] != [pad] * (width - n):
            return Wrong(
                "the pairs are right, but behind the end of a document the inputs are not all `pad`. How many pairs "
                "does a document of n tokens make?"
            )
    return None


# 01.3 The shifted loss -----------------------------------------------------------------------------------------------

LOSS = {
    "copy-shift": "Position t is judged against the token at t.",
    "shifted-twice": "Position t is judged against the token at t + 2.",
    "divides-by-all-positions": "The mean is over every position of the batch, counted or not.",
    "mean-of-means": "The mean over rows of each row's mean is the mean over tokens.",
    "masks-before-the-shift": "Whether a pair counts depends on the label of the position that guesses.",
    "sum-not-mean": "The loss of a batch is the sum over its tokens.",
    "overflows": "Probabilities and exponentials of logits always fit into FP32.",
    "empty-batch-is-nan": "A batch without a label that counts has no loss.",
    "no-gradient": "A loss is a number; its graph does not matter.",
}
_LOSS_SAYS = {
    "copy-shift": "each position is judged against the token that it has read. Which token should it have guessed?",
    "shifted-twice": "each position is judged against the token two places on. Who has shifted already?",
    "divides-by-all-positions": "the sum is right, but it is divided by all pairs. Which of them had a say?",
    "mean-of-means": "each row got the same vote, whatever it holds. What should have one vote, a row or a token?",
    "masks-before-the-shift": "the wrong pairs are ignored. A label is -100: is it the guess made there that does not "
    "count, or the guess of it?",
    "sum-not-mean": "the sum came back. Would the learning rate still fit a batch of another size?",
    "empty-batch-is-nan": "NaN came back for a batch in which no label counts. What is the sum over no tokens, and "
    "what are you dividing by?",
    "no-gradient": "the value is right, but no right gradient reaches the logits. Where did the graph end?",
}
_SOFTMAX = "what is the softmax of [1000, 0] in FP32, and what is the log of its second entry?"
_NOT_FINITE = {
    "inf": f"infinity came back, but the true loss is finite: {_SOFTMAX}",
    "-inf": "minus infinity came back: a row's sum of exponentials was 0. What is exp(-2000) in FP32, and whose "
    "maximum has to be taken out first, the batch's or the row's?",
    "nan": "NaN came back, but the true loss is finite. What are exp(1000) and exp(-1000) in FP32, and what can be "
    "taken out of each row first?",
}
_LOSS_LINES = {
    "divisor": "the sum is right, the divisor is not: how many pairs does a row of T tokens make?",
    "roll": "the last position of a row is judged against the row's first label. What comes after the last token?",
    "backwards": "position t is judged against the token at t - 1, which it has read. Which way is the shift?",
    "dim": "the probabilities were made over positions. Over which dimension do they sum to 1?",
    "sign": "the size is right, the sign is not. Which sign has the log of a probability?",
    "bits": "the number is right in another unit. Which logarithm gives nats?",
}
"""Slips that no misconception is behind."""


def _loss_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 103])

    def case(name: str, shape: tuple[int, int, int], scale: float = 2.0) -> Case:
        logits = (scale * rng.standard_normal(shape)).astype(np.float32)
        return {"name": name, "logits": logits, "labels": rng.integers(shape[2], size=shape[:2])}

    plain = case("all labels count", (2, 6, 7))
    unequal = case("rows with 7 and 2 labels that count", (2, 8, 11))
    unequal["labels"][1, 3:] = IGNORE
    prompt = case("prompts of 3 and 4 tokens are ignored", (2, 8, 5))
    prompt["labels"][0, :3] = prompt["labels"][1, :4] = IGNORE
    large = case("logits near 1,000, 0 and -1,000", (1, 5, 6))
    wanted = large["labels"][0, 2]  # 250 nats below the best of its row, at every seed
    large["logits"][0, 1, wanted] = np.delete(large["logits"][0, 1], wanted).max() - 250
    large["logits"] += np.array([1000, 0, -1000, 0, 1000], np.float32)[None, :, None]
    empty = case("no label counts", (2, 4, 5))
    empty["labels"][:] = IGNORE
    return [plain, unequal, prompt, large, empty, case("two tokens, one pair", (1, 2, 3))]


def _run_loss(answer: Any, case: Case) -> Any:
    import torch

    logits = torch.tensor(case["logits"], requires_grad=True)
    loss = answer(logits, torch.tensor(case["labels"], dtype=torch.int64))
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1:
        loss.sum().backward()
    gradient = None if logits.grad is None else logits.grad.numpy().tolist()
    return {"loss": plain(loss.detach() if isinstance(loss, torch.Tensor) else loss), "gradient": gradient}


def _loss_by_hand(case: Case, step: int = 1, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """(loss, gradient of its own loss) of every pair, (B, T - step) and (B, T, V), float64; IGNORE as NaN and 0."""
    logits, labels = case["logits"].astype(np.float64), case["labels"]
    guessing = logits[:, : logits.shape[1] - step]
    shifted = guessing - guessing.max(axis, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    targets = labels[:, step:]
    pairs = np.full(targets.shape, np.nan)
    gradient = np.zeros_like(logits)
    for b, t in zip(*np.nonzero(targets != IGNORE), strict=True):
        pairs[b, t] = -log_p[b, t, targets[b, t]]
        gradient[b, t] = np.exp(log_p[b, t])
        gradient[b, t, targets[b, t]] -= 1.0
    return pairs, gradient


def _judge_loss(case: Case, returned: Any) -> Wrong | None:
    loss = returned["loss"]
    if wrong := not_a_number(loss):
        return wrong
    pairs, gradient = _loss_by_hand(case)
    count = int(np.isfinite(pairs).sum())
    total = float(np.nansum(pairs))
    right = total / max(count, 1)
    tolerance = FP32 * max(1.0, float(np.abs(case["logits"]).max()))
    if not math.isfinite(loss):
        if not count:
            return Wrong(_LOSS_SAYS["empty-batch-is-nan"], "empty-batch-is-nan")
        if np.abs(case["logits"]).max() < 100:
            return Wrong(f"{loss} came back, and no logit is large here. Does an ignored pair get into the sum?")
        return Wrong(_NOT_FINITE[str(loss)], "overflows")
    if abs(loss - right) > tolerance:
        labels = case["labels"]
        copied, twice = _loss_by_hand(case, 0)[0], _loss_by_hand(case, 2)[0]
        rows = [float(np.nanmean(row)) for row in pairs if np.isfinite(row).any()]
        unmasked = _loss_by_hand(case | {"labels": np.where(labels == IGNORE, 0, labels)})[0]
        guesses = labels[:, :-1] != IGNORE
        smells = {
            "copy-shift": _mean(copied),
            "shifted-twice": _mean(twice),
            "mean-of-means": sum(rows) / max(len(rows), 1),
            "divides-by-all-positions": total / pairs.size,
            "masks-before-the-shift": _mean(np.where(guesses, unmasked, np.nan)),
            "sum-not-mean": total,
        }
        smells_more = {
            "masks-before-the-shift": float(np.nansum(np.where(guesses, pairs, 0.0)) / max(guesses.sum(), 1)),
            "copy-shift": _mean(copied[:, 1:]),
        }
        name = smell(loss, smells, tolerance, right) or smell(loss, smells_more, tolerance, right)
        line = smell(loss, _slips(case, right, total), tolerance, right)
        if not (name or line) and (close := nearly(loss, right)):
            return Wrong(close)
        says = _LOSS_LINES[line[:-1]] if line else "take the smallest case, one pair, and do it by hand."
        if name or (not line and np.abs(case["logits"]).max() > 100):
            says = _LOSS_SAYS[name] if name else _SOFTMAX
        return Wrong(f"the loss is {loss:.4g}, off by {abs(loss - right):.2g} nats; {says}", name)
    if not count and returned["gradient"] is not None and not np.isfinite(returned["gradient"]).all():
        return Wrong(
            "the loss is 0, but its gradient is NaN. What would one step do to the weights?", "empty-batch-is-nan"
        )
    if count:
        gap = math.inf
        if returned["gradient"] is not None:
            gap = float(np.abs(np.asarray(returned["gradient"]) - gradient / count).max())
        if not gap <= tolerance:
            return Wrong(_LOSS_SAYS["no-gradient"], "no-gradient")
    return None


def _slips(case: Case, right: float, total: float) -> dict[str, float]:
    """What each slip of `_LOSS_LINES` would give."""
    logits, labels = case["logits"], case["labels"]
    backwards = {"logits": logits[:, ::-1], "labels": labels[:, ::-1]}
    every = {"logits": logits, "labels": np.roll(labels, -1, 1)}
    values = {
        "divisor": [total / labels.size, total / max(int((labels != IGNORE).sum()), 1)],
        "roll": [_mean(_loss_by_hand(every, 0)[0])],
        "backwards": [_mean(_loss_by_hand(backwards)[0])],
        "dim": [_mean(_loss_by_hand(case, axis=1)[0]), _mean(_loss_by_hand(every, 0, axis=1)[0][:, :-1])],
        "sign": [-right],
        "bits": [right / math.log(2)],
    }
    return {f"{name}{i}": value for name, found in values.items() for i, value in enumerate(found)}


def _mean(pairs: np.ndarray) -> float:
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else math.nan


PAD_BATCH = Exercise(
    id="pad-batch",
    title="Inputs and targets of a padded batch",
    cases=_label_cases,
    run=_run_labels,
    judge=_judge_labels,
    misconceptions=LABELS,
)
SHIFTED_LOSS = Exercise(
    id="shifted-loss",
    title="The shifted loss with ignored labels",
    cases=_loss_cases,
    run=_run_loss,
    judge=_judge_loss,
    forbidden=(
        "torch.nn.functional.cross_entropy",
        "torch.nn.functional.nll_loss",
        "torch.nn.CrossEntropyLoss",
        "torch.nn.NLLLoss",
    ),
    misconceptions=LOSS,
)
