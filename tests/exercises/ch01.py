"""Stated answers to chapter 1's exercises: wrong ones with the misconception that a message names, and right ones."""

import math
from itertools import pairwise

import numpy as np
import torch
from mutants import right, wrong

from course_lib.checks.ch01 import leak_curves
from course_lib.checks.ch01_leak import _floors, _language

IGNORE = -100

# 01.1 sequence-log-prob


@wrong("sequence-log-prob", "multiplies-first")
def wrong_product(first, transition, tokens):
    p = first[tokens[0]]
    for a, b in pairwise(tokens):
        p *= transition[a, b]
    return float(np.log(p))


@wrong("sequence-log-prob", "adds-probabilities")
def wrong_adds(first, transition, tokens):
    return float(np.log(first[tokens[0]] + sum(transition[a, b] for a, b in pairwise(tokens))))


@wrong("sequence-log-prob", "forgets-the-first-token")
def wrong_no_first(first, transition, tokens):
    return float(sum(np.log(transition[a, b]) for a, b in pairwise(tokens)))


@wrong("sequence-log-prob", "reads-the-table-sideways")
def wrong_sideways(first, transition, tokens):
    steps = [transition[b, a] for a, b in pairwise(tokens)]
    return float(np.log([first[tokens[0]], *steps]).sum())


@wrong("sequence-log-prob", "wrong-unit")
def wrong_bits(first, transition, tokens):
    return float(np.log2([first[tokens[0]], *transition[tokens[:-1], tokens[1:]]]).sum())


@wrong("sequence-log-prob", "loss-for-log-probability")
def wrong_sign(first, transition, tokens):
    return float(-np.log([first[tokens[0]], *transition[tokens[:-1], tokens[1:]]]).sum())


@right("sequence-log-prob")
def right_table_lookup(first, transition, tokens):
    tokens = np.asarray(tokens)
    return np.log(first)[tokens[0]] + np.log(transition)[tokens[:-1], tokens[1:]].sum()


# 01.2 pad-batch


def _list_pairs(documents, width, pad):
    inputs, targets = [], []
    for document in documents:
        pairs = list(pairwise(document))[:width]
        pairs += [(pad, IGNORE)] * (width - len(pairs))
        inputs.append([a for a, _ in pairs])
        targets.append([b for _, b in pairs])
    return np.array(inputs), np.array(targets)


def _pad_batch(documents, width, pad, fill):
    inputs = np.full((len(documents), width), pad)
    targets = np.full((len(documents), width), IGNORE)
    for row, document in enumerate(documents):
        fill(inputs[row], targets[row], document[: width + 1])
    return inputs, targets


@wrong("pad-batch", "copy-shift")
def wrong_same_token(documents, width, pad):
    def fill(inputs, targets, document):
        inputs[: len(document)] = targets[: len(document)] = document[:width]

    return _pad_batch(documents, width, pad, fill)


@wrong("pad-batch", "copy-shift")
def wrong_same_token_again(documents, width, pad):
    def fill(inputs, targets, document):
        n = len(document) - 1
        inputs[:n] = targets[:n] = document[:-1]

    return _pad_batch(documents, width, pad, fill)


@wrong("pad-batch", "shifted-twice")
def wrong_two_on(documents, width, pad):
    def fill(inputs, targets, document):
        inputs[: len(document) - 1] = document[:-1]
        targets[: max(len(document) - 2, 0)] = document[2:]

    return _pad_batch(documents, width, pad, fill)


@wrong("pad-batch", "padding-counts")
def wrong_padding_counts(documents, width, pad):
    inputs, targets = _list_pairs(documents, width, pad)
    return inputs, np.where(targets == IGNORE, pad, targets)


@wrong("pad-batch", "masks-by-token-id")
def wrong_by_id(documents, width, pad):
    full = [(document + [pad] * (width + 1))[: width + 1] for document in documents]
    rows = np.array(full)
    return rows[:, :-1], np.where(rows[:, 1:] == pad, IGNORE, rows[:, 1:])


@wrong("pad-batch", "drops-the-last-target")
def wrong_short(documents, width, pad):
    def fill(inputs, targets, document):
        inputs[: len(document) - 1] = document[:-1]
        targets[: max(len(document) - 2, 0)] = document[1:-1]

    return _pad_batch(documents, width, pad, fill)


@wrong("pad-batch", says="negative")
def wrong_ignored_inputs(documents, width, pad):
    return _list_pairs(documents, width, IGNORE)


right_pairs = right("pad-batch", answer=_list_pairs)


@right("pad-batch")
def right_last_token_stays(documents, width, pad):
    """The last token of a short document may stand among the inputs: its target is ignored."""

    def fill(inputs, targets, document):
        inputs[: len(document)] = document[:width]
        targets[: len(document) - 1] = document[1:]

    return _pad_batch(documents, width, pad, fill)


# 01.3 shifted-loss


def _pairs(logits, labels):
    """(loss of every pair, whether it counts): (B, T - 1) each."""
    log_p, wanted = logits[:, :-1].log_softmax(-1), labels[:, 1:]
    losses = -log_p.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    return losses, wanted != IGNORE


@wrong("shifted-loss", "copy-shift")
def wrong_copy(logits, labels):
    losses = -logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    counts = labels != IGNORE
    return (losses * counts).sum() / counts.sum().clamp(min=1)


@wrong("shifted-loss", "shifted-twice")
def wrong_twice(logits, labels):
    losses, counts = _pairs(logits[:, :-1], labels[:, 1:])
    return (losses * counts).sum() / counts.sum().clamp(min=1)


@wrong("shifted-loss", "divides-by-all-positions")
def wrong_mean_of_zeros(logits, labels):
    losses, counts = _pairs(logits, labels)
    return (losses * counts).mean()


@wrong("shifted-loss", "mean-of-means")
def wrong_rows(logits, labels):
    losses, counts = _pairs(logits, labels)
    return ((losses * counts).sum(1) / counts.sum(1).clamp(min=1)).mean()


@wrong("shifted-loss", "masks-before-the-shift")
def wrong_mask(logits, labels):
    losses, _ = _pairs(logits, labels)
    counts = labels[:, :-1] != IGNORE
    return (losses * counts).sum() / counts.sum().clamp(min=1)


@wrong("shifted-loss", "sum-not-mean")
def wrong_sum(logits, labels):
    losses, counts = _pairs(logits, labels)
    return (losses * counts).sum()


@wrong("shifted-loss", "overflows")
def wrong_exp(logits, labels):
    wanted = labels[:, 1:]
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    picked = p[:, :-1].gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    counts = wanted != IGNORE
    return -(picked.log() * counts).sum() / counts.sum().clamp(min=1)


@wrong("shifted-loss", "empty-batch-is-nan")
def wrong_empty(logits, labels):
    losses, counts = _pairs(logits, labels)
    return losses[counts].mean()


@wrong("shifted-loss", "no-gradient")
def wrong_item(logits, labels):
    losses, counts = _pairs(logits, labels)
    return ((losses * counts).sum() / counts.sum().clamp(min=1)).item()


@wrong("shifted-loss", says="write it yourself")
def wrong_calls_torch(logits, labels):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@right("shifted-loss")
def right_loop(logits, labels):
    total, count = logits.sum() * 0, 0
    for row, wanted in zip(logits, labels, strict=True):
        for t in range(len(wanted) - 1):
            if wanted[t + 1] != IGNORE:
                total = total + torch.logsumexp(row[t], 0) - row[t, wanted[t + 1]]
                count += 1
    return total / max(count, 1)


@right("shifted-loss")
def right_select_first(logits, labels):
    keep = labels[:, 1:] != IGNORE
    guesses, wanted = logits[:, :-1][keep].double(), labels[:, 1:][keep]
    if len(wanted) == 0:
        return logits.sum() * 0
    return -(guesses.softmax(-1)[torch.arange(len(wanted)), wanted].clamp(min=1e-300)).log().mean()


# 01.4 bits-per-byte


def _nats(batches):
    return sum(loss * n for loss, n in batches if n)


@wrong("bits-per-byte", "stays-in-nats")
def wrong_nats(batches, text):
    return _nats(batches) / len(text.encode())


@wrong("bits-per-byte", "inverted-ratio")
def wrong_inverted(batches, text):
    tokens = sum(n for _, n in batches)
    return _nats(batches) / tokens / math.log(2) * len(text.encode()) / tokens


@wrong("bits-per-byte", "mean-of-means")
def wrong_equal_votes(batches, text):
    losses = [loss for loss, n in batches if n]
    return sum(losses) / len(losses) / math.log(2) * sum(n for _, n in batches) / len(text.encode())


@wrong("bits-per-byte", "characters-for-bytes")
def wrong_characters(batches, text):
    return _nats(batches) / math.log(2) / len(text)


@wrong("bits-per-byte", "per-token")
def wrong_per_token(batches, text):
    return _nats(batches) / sum(n for _, n in batches) / math.log(2)


@wrong("bits-per-byte", "perplexity")
def wrong_perplexity(batches, text):
    return math.exp(_nats(batches) / sum(n for _, n in batches))


@wrong("bits-per-byte", "empty-batch-is-nan")
def wrong_nan(batches, text):
    return sum(loss * n for loss, n in batches) / math.log(2) / len(text.encode())


@right("bits-per-byte")
def right_log2_of_perplexity(batches, text):
    counted = np.array([(loss, n) for loss, n in batches if n])
    mean = np.average(counted[:, 0], weights=counted[:, 1])
    return np.log2(np.exp(mean)) * counted[:, 1].sum() / len(bytes(text, "utf-8"))


# 01.5 entropy-floor


def _rows(transition):
    return np.array([-sum(p * math.log(p) for p in row if p > 0) for row in transition])


def _stationary(transition):
    n = len(transition)
    equations = np.vstack([transition.T - np.eye(n), np.ones(n)])
    return np.linalg.lstsq(equations, np.append(np.zeros(n), 1.0), rcond=None)[0]


@wrong("entropy-floor", "every-state-counts-alike")
def wrong_plain_mean(transition):
    return float(_rows(transition).mean())


@wrong("entropy-floor", "ignores-context")
def wrong_frequencies(transition):
    shares = _stationary(transition)
    return float(-sum(p * math.log(p) for p in shares if p > 1e-12))


@wrong("entropy-floor", "wrong-unit")
def wrong_floor_in_bits(transition):
    return float(_stationary(transition) @ _rows(transition) / math.log(2))


@wrong("entropy-floor", "zero-times-log-zero")
def wrong_zero_log(transition):
    return float(_stationary(transition) @ -(transition * np.log(transition)).sum(1))


@wrong("entropy-floor", "has-not-settled")
def wrong_steps(transition):
    shares = np.full(len(transition), 1 / len(transition))
    for _ in range(1000):
        shares = shares @ transition
    return float(shares @ _rows(transition))


@wrong("entropy-floor", "adds-the-rows")
def wrong_total(transition):
    return float(_rows(transition).sum())


@right("entropy-floor")
def right_eigenvector(transition):
    values, vectors = np.linalg.eig(transition.T)
    shares = np.real(vectors[:, np.argmin(abs(values - 1))])
    return float(shares / shares.sum() @ _rows(transition))


@right("entropy-floor")
def right_mean_of_steps(transition):
    """The mean over many steps settles even where the steps themselves do not; block doubling makes it exact enough."""
    shares = np.eye(len(transition))
    power = np.array(transition)
    for _ in range(40):  # mean over 2^40 steps
        shares, power = (shares + shares @ power) / 2, power @ power
        power /= power.sum(1, keepdims=True)
    return float(shares[0] @ _rows(transition))


# 01.6 which-leaks


def _leak(role, evidence, variant=0):
    language = _language(variant)
    run = next(letter for letter, what in language["runs"].items() if what == role)
    return {"variant": variant, "choice": run, "evidence": evidence(language, leak_curves(variant)[run])}


def _leaking(language, _):
    return _floors(language)[language["leaking"]]


wrong_lowest = wrong("which-leaks", "lowest-total-leaks", answer=_leak("fast", _leaking))
wrong_cliff = wrong("which-leaks", "a-sudden-drop-leaks", answer=_leak("sudden", _leaking))
wrong_behind = wrong("which-leaks", "slow-means-leak", answer=_leak("slow", _leaking, 1))
wrong_leak_in_bits = wrong(
    "which-leaks", "floor-in-bits", answer=_leak("leak", lambda a, b: _leaking(a, b) / math.log(2))
)
wrong_mixture = wrong("which-leaks", "floor-of-the-mixture", answer=_leak("leak", lambda a, _: _floors(a)["all"], 1))
wrong_other_kind = wrong("which-leaks", "floor-of-another-kind", answer=_leak("leak", lambda a, _: _floors(a)["fact"]))
wrong_own_loss = wrong("which-leaks", "reads-the-loss", answer=_leak("leak", lambda a, c: c[a["leaking"]][-1], 3))
wrong_form = wrong("which-leaks", says="letters", answer={"variant": 0, "choice": "the second", "evidence": 1.0})

right_with_two_decimals = right("which-leaks", answer=_leak("leak", lambda a, b: round(_leaking(a, b), 2)))
right_variant_1 = right("which-leaks", answer=_leak("leak", _leaking, 1))
right_variant_6 = right("which-leaks", answer=_leak("leak", _leaking, 6))
