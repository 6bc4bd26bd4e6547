"""One set of weights, two engines: a trainer scores a whole text at once, a sampler writes it token by token.

`engine` makes a copy of a GPT that computes in another precision. `sample` writes with a KV cache and keeps the
log-probabilities it drew from; `log_probs` scores the same tokens in one forward pass. `compare` says how far apart
they are. What makes them differ is named by Yao et al. 2025 ("Your Efficient RL Framework Secretly Brings You
Off-Policy RL Training"), He et al. 2025 (Thinking Machines, "Defeating Nondeterminism in LLM Inference") and Qi et al.
2025 (arXiv 2510.26788).

Shapes: B sequences, P prompt tokens, L written tokens, V tokens in all.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.errors import ConfigError
from course_lib.model import GPT, Attention, Block

__all__ = [
    "NUMERICS",
    "Decoder",
    "Gap",
    "Sampled",
    "all_log_probs",
    "compare",
    "engine",
    "log_probs",
    "sample",
    "sample_padded",
]

NUMERICS: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
}
"""In what an engine computes, weights and activations. fp8: BF16, with matrices first rounded to E4M3."""


@torch.no_grad()
def engine(model: GPT, numerics: str) -> GPT:
    """A copy of the model in `numerics`, for scoring and writing; the rotary angles stay as they are.

    fp8: each matrix is rounded to E4M3 at a scale of its own, which brings its largest entry to 448.
    """
    if numerics not in NUMERICS:
        raise ConfigError(f"no numerics {numerics!r}; there are {', '.join(NUMERICS)}")
    made = copy.deepcopy(model).eval()
    for p in made.parameters():
        p.requires_grad_(False)
        value = p.data
        if numerics == "fp8" and p.dim() >= 2:
            scale = value.abs().max().float() / 448
            value = (value.float() / scale).to(torch.float8_e4m3fn).float() * scale
        p.data = value.to(NUMERICS[numerics])
    if numerics == "fp64":
        made.double()
    return made


class Decoder:
    """Writes one token at a time with the keys and values of all earlier ones kept: a KV cache."""

    def __init__(self, model: GPT) -> None:
        if model.config.dropout and model.training:
            raise ConfigError("a decoder needs a model without dropout; call model.eval()")
        self.model = model
        self.length = 0
        """Tokens in the cache."""
        self._kept: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens of every sequence (B, n) -> logits of the token after them (B, V). n > 1 only at first."""
        model, n = self.model, tokens.shape[1]
        if self.length and n != 1:
            raise ConfigError(f"after the prompt a decoder takes one token at a time, not {n}")
        if self.length + n > model.config.context:
            raise ConfigError(f"{self.length + n} tokens do not fit into context={model.config.context}")
        cos, sin = (table[self.length : self.length + n] for table in (model.cos, model.sin))
        x = model.embedding(tokens)  # (B, n, D)
        for i, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            x = x + self._attend(i, block.attention, block.attention_norm(x), cos, sin)
            x = x + block.feed_forward(block.feed_forward_norm(x))
        self.length += n
        logits: Tensor = model.head(model.norm(x[:, -1]))
        return logits

    def _attend(self, i: int, attention: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`Attention.forward`, with the keys and values of earlier tokens in front of this one's."""
        heads, groups, width = attention.heads, attention.kv_heads, attention.width
        qkv = attention.qkv(x).unflatten(-1, (heads + 2 * groups, width))  # (B, n, H + 2G, K)
        qk, v = qkv.split([heads + groups, groups], dim=2)
        qk = (qk * cos + qk.roll(width // 2, -1) * sin).to(v.dtype)
        q, k, v = (part.transpose(1, 2) for part in (*qk.split([heads, groups], dim=2), v))
        if self.length:
            k, v = torch.cat([self._kept[i][0], k], 2), torch.cat([self._kept[i][1], v], 2)
            self._kept[i] = k, v
        else:
            self._kept.append((k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=heads != groups)
        out: Tensor = attention.out(y.transpose(1, 2).flatten(2))
        return out


@dataclass(frozen=True)
class Sampled:
    """Texts and the distributions they were drawn from."""

    tokens: Tensor
    """(B, P + L) int64."""
    all_log_probs: Tensor
    """The sampler's log-probability of every token at every place (B, L, V)."""

    @property
    def prompt(self) -> int:
        """P."""
        return self.tokens.shape[1] - self.all_log_probs.shape[1]

    @property
    def log_probs(self) -> Tensor:
        """Of the tokens that were drawn, (B, L)."""
        return self.all_log_probs.gather(2, self.tokens[:, self.prompt :, None]).squeeze(2)


@torch.no_grad()
def sample(model: GPT, prompts: Tensor, length: int, generator: torch.Generator) -> Sampled:
    """Write `length` tokens after each prompt (B, P) at temperature 1, in the model's own numerics.

    The softmax is taken in FP32 (FP64 for an FP64 model), as inference engines do.
    """
    decoder, tokens, kept = Decoder(model), prompts, []
    new = prompts
    for _ in range(length):
        kept.append(_log_softmax(decoder.step(new)))
        new = torch.multinomial(kept[-1].exp(), 1, generator=generator)
        tokens = torch.cat([tokens, new], 1)
    return Sampled(tokens, torch.stack(kept, 1))


@torch.no_grad()
def sample_padded(model: GPT, prompts: Tensor, length: int, generator: torch.Generator) -> Sampled:
    """`sample` without a cache: every token costs a forward pass of the trainer's own shape (B, P + L - 1).

    What stands behind the last written token is filled up and not looked at. Same shape, same kernels, same order of
    additions: the trainer then finds these very log-probabilities, bit by bit.
    """
    B, P = prompts.shape
    tokens = torch.cat([prompts, prompts.new_zeros(B, length)], 1)
    kept = []
    for at in range(P, P + length):
        kept.append(_log_softmax(model(tokens[:, :-1])[:, at - 1]))
        tokens[:, at] = torch.multinomial(kept[-1].exp(), 1, generator=generator).squeeze(1)
    return Sampled(tokens, torch.stack(kept, 1))


def all_log_probs(model: GPT, tokens: Tensor, prompt: int) -> Tensor:
    """The trainer's view: one full forward of (B, P + L) -> log-probabilities (B, L, V) at the written places."""
    return _log_softmax(model(tokens[:, :-1])[:, prompt - 1 :])


def log_probs(model: GPT, tokens: Tensor, prompt: int) -> Tensor:
    """Log-probability of each written token (B, L); gradients flow."""
    return all_log_probs(model, tokens, prompt).gather(2, tokens[:, prompt:, None]).squeeze(2)


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)


@dataclass(frozen=True)
class Gap:
    """Trainer against sampler on texts that the sampler wrote. KL is KL(sampler || trainer), nats per token."""

    difference: Tensor
    """log pi_trainer - log pi_sampler of each written token, (B, L) float64."""
    exact: float
    """KL from both whole distributions, the mean over the written places."""

    @property
    def largest(self) -> float:
        """Largest difference of a token's log-probability."""
        return float(self.difference.abs().max())

    @property
    def k1(self) -> float:
        """KL estimated from the written tokens as mean(-d): unbiased, noisy, can be negative (Schulman 2020)."""
        return float(-self.difference.mean())

    @property
    def k3(self) -> float:
        """KL estimated as mean(exp(d) - 1 - d): unbiased, never negative, far less noisy for small d."""
        return float((torch.expm1(self.difference) - self.difference).mean())

    @property
    def token_ratios(self) -> Tensor:
        """pi_trainer / pi_sampler of each written token, (B, L)."""
        return self.difference.exp()

    @property
    def sequence_ratios(self) -> Tensor:
        """The product of a sequence's token ratios, (B,)."""
        return self.difference.sum(1).exp()

    @property
    def effective(self) -> float:
        """Share of the sequences that is left, in effect, after weighting: (sum w)^2 / (B sum w^2)."""
        w = self.sequence_ratios
        return float(w.sum() ** 2 / (len(w) * (w**2).sum()))


@torch.no_grad()
def compare(trainer: GPT, sampled: Sampled) -> Gap:
    """Score the sampler's texts with the trainer's full forward."""
    ours = all_log_probs(trainer, sampled.tokens, sampled.prompt).double()
    theirs = sampled.all_log_probs.double()
    drawn = sampled.tokens[:, sampled.prompt :, None]
    difference = (ours - theirs).gather(2, drawn).squeeze(2)
    ours, theirs = ours.log_softmax(2), theirs.log_softmax(2)  # FP32's sum of probabilities is 1 to 1e-7 only
    return Gap(difference, float((theirs.exp() * (theirs - ours)).sum(2).mean()))
