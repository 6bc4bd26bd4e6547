"""Small models for the leak probe: honest ones that it must not accuse, and leaking ones that it must find.

    one = LEAKING["mask_off_by_one"](seed=0)
    probe(one.forward, one.tokens, one.vocab_size).leaks      # one.leaks

Each is a two-layer GPT with a part replaced, untrained, of 3 x 16 tokens; milliseconds a call.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.config import ModelConfig, stream_seed
from course_lib.failures import _specimen_parts as parts
from course_lib.model import GPT
from course_lib.moe import MoEConfig, moe_gpt

__all__ = ["HONEST", "LEAKING", "Specimen"]

V, T, D, B = 23, 16, 24, 3
SHAPE = ModelConfig(vocab_size=V, d_model=D, n_layers=2, n_heads=2, context=T, init_std=0.1)
EOS = 0


@dataclass(frozen=True)
class Specimen:
    """A model, what to ask it, and what is true of it."""

    about: str
    """In a line."""
    forward: Callable[[Tensor], Any]
    tokens: Tensor
    vocab_size: int = V
    leaks: bool = False
    """Earlier positions of a sequence depend on later tokens."""
    leaks_across_batch: bool = False
    documents: int | None = None
    """The token that ends a document, where documents are packed."""
    leaks_across_documents: bool = False
    predicts: int = 1


Make = Callable[[int], Specimen]
HONEST: dict[str, Make] = {}
LEAKING: dict[str, Make] = {}


def _gpt(seed: int, **more: Any) -> GPT:
    return GPT(replace(SHAPE, **more), seed)


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, purpose))


def _tokens(seed: int) -> Tensor:
    return torch.randint(V, (B, T), generator=_generator(seed, "specimen tokens"))


def _packed(seed: int) -> Tensor:
    """Three documents in each sequence, which end with token 0 and have no other 0."""
    tokens = _tokens(seed).clamp(min=1)
    tokens[:, [4, 10]] = EOS
    return tokens


def _add(name: str, about: str, model: Callable[[int], Callable[[Tensor], Any]], **truth: Any) -> None:
    leaks = truth.get("leaks") or truth.get("leaks_across_batch") or truth.get("leaks_across_documents")
    tokens = _packed if truth.get("documents") is not None else _tokens

    def make(seed: int) -> Specimen:
        return Specimen(about, model(seed), tokens(seed), **truth)

    (LEAKING if leaks else HONEST)[name] = make


def _attention(attend: Callable[..., Tensor], layers: tuple[int, ...] = (0, 1)) -> Callable[[int], nn.Module]:
    """A GPT that attends so in these layers."""

    def make(seed: int) -> nn.Module:
        model = _gpt(seed)
        for layer in layers:
            block: Any = model.blocks[layer]
            block.attention.attend = attend
        return model

    return make


def _mixing(part: Callable[[torch.Generator], nn.Module], norm: bool = False) -> Callable[[int], nn.Module]:
    """A GPT with a part for the first layer's attention, or for the norm before it."""

    def make(seed: int) -> nn.Module:
        model = _gpt(seed)
        setattr(model.blocks[0], "attention_norm" if norm else "attention", part(_generator(seed, "specimen")))
        return model

    return make


def _experts(**more: Any) -> Callable[[int], nn.Module]:
    return lambda seed: moe_gpt(SHAPE, MoEConfig(n_experts=4, top_k=2, d_expert=16, **more), seed)


def _called(make: Callable[[int], nn.Module], dtype: torch.dtype = torch.float32) -> Callable[[int], Any]:
    """The same behind a function, which cannot be copied."""

    def function(seed: int) -> Callable[[Tensor], Any]:
        model = make(seed).to(dtype)
        return lambda tokens: model(tokens)

    return function


def _noisy(seed: int) -> nn.Module:
    model = moe_gpt(SHAPE, MoEConfig(n_experts=4, d_expert=16), seed)
    block: Any
    for block in model.blocks:
        block.feed_forward = parts.NoisyExperts(block.feed_forward)
    return model


def _one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first head sees everything, the others are causal."""
    all_of = parts.attend(lambda n: torch.ones(n, n).bool())(q[:, :1], k[:, :1], v[:, :1])
    return torch.cat([all_of, parts.attend(parts.causal)(q[:, 1:], k[:, 1:], v[:, 1:])], 1)


_everything = parts.attend(lambda n: torch.ones(n, n).bool())
_off_by_one = parts.attend(lambda n: torch.ones(n, n).tril(1).bool())

_add("gpt", "the GPT of every chapter", _gpt)
_add("gpt_bf16", "its weights in BF16", lambda seed: _gpt(seed).bfloat16())
_add("gpt_dropout", "in training mode with dropout of a third", lambda seed: _gpt(seed, dropout=0.33))
_add("gpt_called", "behind a function: decided in FP32", _called(_gpt))
_add("gpt_called_bf16", "behind a function, in BF16", _called(_gpt, torch.bfloat16))
_add("autocast_tuple", "autocast inside, returns a tuple, remembers its input", lambda seed: parts.Last(_gpt(seed)))
_add("token_choice", "experts chosen by tokens", _experts())
_add("token_choice_called", "the same behind a function: its sums depend on the batch", _called(_experts()))
_add("noisy_experts", "noise on the router, dropout inside the experts", _noisy)
_add(
    "in_order_in_sequence",
    "full experts keep a sequence's first",
    _experts(capacity_factor=0.7, drop="in_order_in_sequence"),
)
_add("threshold", "experts take what is above a threshold", _experts(routing="threshold"))
_add(
    "packed",
    "documents in one sequence, a mask between them",
    lambda seed: parts.Documents(_gpt(seed), True),
    documents=EOS,
)
_add("sliding_window", "attention to the last four tokens", _attention(parts.attend(parts.window)))
_add("large_mask", "-10,000 instead of minus infinity in the mask", _attention(parts.attend(parts.causal, -1e4)))
_add("decoder", "a token at a time, with a cache of keys and values", lambda seed: parts.Decoder(_gpt(seed)))
_add("causal_conv", "a convolution that looks back", _mixing(lambda g: parts.CausalConv(D, 3, g)))
_add("recurrence", "a linear recurrence from left to right", _mixing(lambda g: parts.Recurrence()))
_add("cumulative_mean", "the mean of what came before", _mixing(lambda g: parts.Mix(parts.cumulative_mean)))
_add(
    "batch_norm_eval",
    "BatchNorm in evaluation, by its running means",
    lambda seed: _mixing(lambda g: parts.batch_norm(D), norm=True)(seed).eval(),
)

_add("no_mask", "attention without a mask", _attention(_everything), leaks=True)
_add("one_layer", "no mask in the second layer only", _attention(_everything, (1,)), leaks=True)
_add("one_head", "no mask in one head of the first layer", _attention(_one_head, (0,)), leaks=True)
_add("mask_off_by_one", "position t sees token t + 1", _attention(_off_by_one), leaks=True)
_add(
    "mask_too_small",
    "-10 instead of minus infinity in the mask",
    _attention(parts.attend(parts.causal, -10.0)),
    leaks=True,
)
_add("mask_after_softmax", "the mask comes after the softmax", _attention(parts.attend_and_mask), leaks=True)
_add("softmax_over_queries", "the softmax over the wrong axis", _attention(parts.attend_over_queries), leaks=True)
_add(
    "batch_norm",
    "BatchNorm in training, over sequences and positions",
    _mixing(lambda g: parts.batch_norm(D), norm=True),
    leaks=True,
    leaks_across_batch=True,
)
_add(
    "norm_over_time",
    "layer normalisation along the sequence",
    _mixing(lambda g: parts.Mix(parts.norm_over_time), norm=True),
    leaks=True,
)
_add("expert_choice", "experts choose within a sequence", _experts(routing="expert_choice"), leaks=True)
_add("expert_choice_called", "the same behind a function", _called(_experts(routing="expert_choice")), leaks=True)
_add(
    "expert_choice_batch",
    "experts choose within the batch",
    _experts(routing="expert_choice_batch"),
    leaks=True,
    leaks_across_batch=True,
)
_add(
    "expert_choice_chunks",
    "experts choose within four tokens",
    _experts(routing="expert_choice_chunks", chunk=4),
    leaks=True,
)
_add(
    "by_score_in_sequence",
    "full experts keep a sequence's best",
    _experts(capacity_factor=0.7, drop="by_score_in_sequence"),
    leaks=True,
)
_add(
    "by_score_in_batch",
    "full experts keep the batch's best",
    _experts(capacity_factor=0.7, drop="by_score_in_batch"),
    leaks=True,
    leaks_across_batch=True,
)
_add("in_order", "full experts keep the batch's first", _experts(capacity_factor=0.7), leaks_across_batch=True)
_add(
    "carried_state",
    "a recurrence goes on from sequence to sequence",
    _mixing(lambda g: parts.Recurrence(carried=True)),
    leaks_across_batch=True,
)
_add(
    "backwards",
    "a recurrence from right to left in one layer",
    _mixing(lambda g: parts.Recurrence(backwards=True)),
    leaks=True,
)
_add(
    "centred_conv",
    "a convolution that looks both ways",
    _mixing(lambda g: parts.CausalConv(D, 3, g, centred=True)),
    leaks=True,
)
_add("mean_of_all", "the mean of the sequence is added", _mixing(lambda g: parts.Mix(parts.mean_of_all)), leaks=True)
_add("fourier", "a Fourier transform over the sequence", _mixing(lambda g: parts.Mix(parts.fourier)), leaks=True)
_add(
    "rounded",
    "rounded to 8 bits with one scale a sequence",
    _mixing(lambda g: parts.Mix(parts.rounded), norm=True),
    leaks=True,
)
_add(
    "shifted",
    "inputs shifted, so that a position is given its target",
    lambda seed: parts.Shifted(_gpt(seed)),
    leaks=True,
)
_add("labels_are_inputs", "honest, but its labels are its inputs", _gpt, leaks=True, predicts=0)
_add(
    "packed_unmasked",
    "documents in one sequence, and no mask",
    lambda seed: parts.Documents(_gpt(seed), False),
    documents=EOS,
    leaks_across_documents=True,
)
