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


@wrong("sequence-log-prob", says="Which entry of")
def wrong_entry(first, transition, tokens):
    return float(np.log(first[0]) + np.log(transition[tokens[:-1], tokens[1:]]).sum())


def _text(first, transition, tokens):
    return float(np.log([first[tokens[0]], *transition[tokens[:-1], tokens[1:]]]).sum())


wrong_text_mean = wrong(
    "sequence-log-prob", says="is a sum", answer=lambda first, table, tokens: _text(first, table, tokens) / len(tokens)
)
wrong_no_log = wrong(
    "sequence-log-prob", says="a positive number", answer=lambda *source: float(np.exp(_text(*source)))
)
wrong_log10 = wrong("sequence-log-prob", "wrong-unit", answer=lambda *source: _text(*source) / math.log(10))


@right("sequence-log-prob")
def right_in_fp32(first, transition, tokens):
    total = np.log(np.float32(first[tokens[0]]))
    for p in np.log(transition.astype(np.float32))[tokens[:-1], tokens[1:]]:
        total += p
    return total


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
    inputs, targets = _list_pairs(documents, width, pad)
    return inputs, np.where(targets == pad, IGNORE, targets)


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


@wrong("pad-batch", says="not all `pad`")
def wrong_last_token_stays(documents, width, pad):
    def fill(inputs, targets, document):
        inputs[: len(document)] = document[:width]
        targets[: len(document) - 1] = document[1:]

    return _pad_batch(documents, width, pad, fill)


@wrong("pad-batch", "masks-by-token-id")
def wrong_by_known_id(documents, width, pad):
    inputs, targets = _list_pairs(documents, width, pad)
    return inputs, np.where(inputs == pad, IGNORE, targets)


@wrong("pad-batch", "masks-by-token-id")
def wrong_cut_at_pad(documents, width, pad):
    return _list_pairs([d[: d.index(pad) + 1] if pad in d else d for d in documents], width, pad)


@wrong("pad-batch", says="one place too far on")
def wrong_swapped(documents, width, pad):
    inputs, targets = _list_pairs(documents, width, pad)
    return np.where(targets == IGNORE, pad, targets), np.where(targets == IGNORE, IGNORE, inputs)


wrong_no_return = wrong("pad-batch", says="nothing came back", answer=lambda documents, width, pad: None)


@right("pad-batch")
def right_by_length(documents, width, pad):
    full = np.array([(document + [pad] * (width + 1))[: width + 1] for document in documents])
    real = np.arange(width) < np.array([len(document) - 1 for document in documents])[:, None]
    return np.where(real, full[:, :-1], pad), np.where(real, full[:, 1:], IGNORE)


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


def _loss(log_p, labels):
    wanted = labels[:, 1:]
    picked = log_p[:, :-1].gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    counts = wanted != IGNORE
    return -picked[counts].sum() / counts.sum().clamp(min=1)


@wrong("shifted-loss", "overflows", says="what is the softmax of [1000, 0]")
def wrong_softmax_then_log(logits, labels):
    return _loss(logits.softmax(-1).log(), labels)


@wrong("shifted-loss", "overflows", says="exp(-2000)")
def wrong_one_maximum(logits, labels):
    shifted = logits - logits.max()
    return _loss(shifted - shifted.exp().sum(-1, keepdim=True).log(), labels)


@wrong("shifted-loss", "overflows", says="exp(1000)")
def wrong_plain_logsumexp(logits, labels):
    return _loss(logits - logits.exp().sum(-1, keepdim=True).log(), labels)


@wrong("shifted-loss", says="what is the softmax of [1000, 0]")
def wrong_clamped(logits, labels):
    return _loss(logits.softmax(-1).clamp(min=1e-30).log(), labels)


@wrong("shifted-loss", "empty-batch-is-nan", says="gradient is NaN")
def wrong_nan_to_num(logits, labels):
    losses, counts = _pairs(logits, labels)
    return torch.nan_to_num((losses * counts).sum() / counts.sum())


@wrong("shifted-loss", "empty-batch-is-nan", says="gradient is NaN")
def wrong_where_nan(logits, labels):
    losses, counts = _pairs(logits, labels)
    loss = (losses * counts).sum() / counts.sum()
    return torch.where(loss.isnan(), 0, loss)


@wrong("shifted-loss", says="the divisor is not")
def wrong_divisor(logits, labels):
    losses, counts = _pairs(logits, labels)
    return (losses * counts).sum() / labels.numel()


@wrong("shifted-loss", says="the divisor is not")
def wrong_divisor_of_labels(logits, labels):
    losses, counts = _pairs(logits, labels)
    return (losses * counts).sum() / (labels != IGNORE).sum().clamp(min=1)


@wrong("shifted-loss", says="first label")
def wrong_roll(logits, labels):
    wanted = labels.roll(-1, 1)
    losses = -logits.log_softmax(-1).gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    counts = wanted != IGNORE
    return (losses * counts).sum() / counts.sum().clamp(min=1)


@wrong("shifted-loss", says="Which way")
def wrong_way(logits, labels):
    return _loss(logits.flip(1).log_softmax(-1), labels.flip(1))


wrong_dim = wrong("shifted-loss", says="over positions", answer=lambda x, labels: _loss(x.log_softmax(1), labels))
wrong_loss_sign = wrong("shifted-loss", says="sign", answer=lambda x, labels: -_loss(x.log_softmax(-1), labels))
wrong_loss_bits = wrong(
    "shifted-loss", says="another unit", answer=lambda x, labels: _loss(x.log_softmax(-1), labels) / math.log(2)
)


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
def right_own_maximum(logits, labels):
    shifted = logits - logits.max(-1, keepdim=True).values
    if (labels[:, 1:] == IGNORE).all():
        return torch.tensor(0.0)
    return _loss(shifted - shifted.exp().sum(-1, keepdim=True).log(), labels)


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


@wrong("bits-per-byte", says="behind the first empty one")
def wrong_break(batches, text):
    nats = 0.0
    for loss, n in batches:
        if n == 0:
            break
        nats += loss * n
    return nats / math.log(2) / len(text.encode())


@wrong("bits-per-byte", says="nearly right")
def wrong_rounded_unit(batches, text):
    return _nats(batches) / 0.693 / len(text.encode())


@right("bits-per-byte")
def right_bits_in_fp32(batches, text):
    return np.float32(_nats(batches)) / np.float32(math.log(2)) / np.float32(len(text.encode()))


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


@wrong("entropy-floor", says="nearly right")
def wrong_time_average(transition):
    shares, total = np.eye(len(transition))[0], 0
    for _ in range(2000):
        total, shares = total + shares, shares @ transition
    return float(total / 2000 @ _rows(transition))


@wrong("entropy-floor", says="take its real part")
def wrong_complex(transition):
    values, vectors = np.linalg.eig(transition.T.astype(complex))
    shares = vectors[:, np.argmin(abs(values - 1))]
    return shares / shares.sum() @ _rows(transition)


@wrong("entropy-floor", says="Two places")
def wrong_no_sum(transition):
    values, vectors = np.linalg.eig(transition.T)
    shares = np.real(vectors[:, np.argmin(abs(values - 1))])
    total = shares.sum() if (transition < 1).all() else np.float64(0)
    return float((shares - shares) / total @ _rows(transition) if total == 0 else shares / total @ _rows(transition))


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

wrong_still_none = wrong("which-leaks", says="evidence is still None", answer=_leak("leak", lambda a, c: None))
wrong_pair = wrong("which-leaks", says="a dict with", answer=("B", 3.18))
right_run_b = right("which-leaks", answer={"variant": 0, "choice": " run B", "evidence": np.float64(math.log(24))})

right_with_two_decimals = right("which-leaks", answer=_leak("leak", lambda a, b: round(_leaking(a, b), 2)))
right_variant_1 = right("which-leaks", answer=_leak("leak", _leaking, 1))
right_variant_6 = right("which-leaks", answer=_leak("leak", _leaking, 6))
