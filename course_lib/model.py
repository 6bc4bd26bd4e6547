"""The GPT that every chapter trains: a Llama-style decoder (Touvron et al. 2023, arXiv 2302.13971), top to bottom.

Shapes: B sequences, T tokens, D = d_model, H heads of width K, G heads of keys and values, F = d_ff, V tokens in all.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig, stream_seed

__all__ = ["GPT", "Attention", "Block", "FeedForward", "RMSNorm", "generate", "rope_tables"]


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last axis, times a gain (Zhang & Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)  # (B, T, D) -> (B, T, D)


def rope_tables(context: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (T, 1, K) of the rotary positions (Su et al. 2021, arXiv 2104.09864).

    The first half of a head holds the pairs' first members, the second half their partners, so
    `x * cos + x.roll(K / 2) * sin` turns each pair by position x frequency.
    """
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)  # (K/2,)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies  # (T, K/2)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1)[:, None].float(), torch.cat([-sin, sin], -1)[:, None].float()


class Attention(nn.Module):
    """Causal self-attention with rotary positions; H query heads share G heads of keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = config.n_heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(config.d_model, (self.heads + 2 * self.kv_heads) * self.width, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = self.heads + self.kv_heads  # queries and keys are turned, values are not
        qkv = self.qkv(x).unflatten(-1, (turned + self.kv_heads, self.width))  # (B, T, H + 2G, K)
        qk, v = qkv.split([turned, self.kv_heads], dim=2)
        qk = qk * cos + qk.roll(self.width // 2, -1) * sin  # (B, T, H + G, K)
        q, k = qk.split([self.heads, self.kv_heads], dim=2)
        y = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))  # (B, H, T, K)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries (B, H, T, K), keys and values (B, G, T, K) -> (B, H, T, K)."""
        grouped = self.heads != self.kv_heads
        if q.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # The CPU's BF16 kernel takes three times as long as its FP32 one, all of it in backward.
            with torch.autocast("cpu", enabled=False):
                return F.scaled_dot_product_attention(
                    q.float(), k.float(), v.float(), is_causal=True, enable_gqa=grouped
                )
        return F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=grouped)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202); gate and up are one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.d_model, 2 * config.ff, bias=False)
        self.down = nn.Linear(config.ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # (B, T, F) each
        return self.down(F.silu(gate) * up)  # (B, T, D)


class Block(nn.Module):
    """Attention, then feed-forward, each on the normalised stream and added back to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.d_model, config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.dropout = config.dropout

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.attention_norm(x), cos, sin))  # (B, T, D)
        return x + self.drop(self.feed_forward(self.feed_forward_norm(x)))  # (B, T, D)


class GPT(nn.Module):
    """Tokens (B, T) int64 -> logits (B, T, V): at position t, the scores of token t + 1.

    `seed` decides the initial weights alone: the global random state is neither read nor changed.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # the layers' own draws, which `init_weights` replaces
            self.embedding = nn.Embedding(config.vocab_size, config.d_model)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
            self.norm = RMSNorm(config.d_model, config.norm_eps)
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        cos, sin = rope_tables(config.context, config.head_dim, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)  # (T, 1, K)
        self.register_buffer("sin", sin, persistent=False)
        self.init_weights(seed)

    def init_weights(self, seed: int) -> None:
        """Normal(0, init_std); what is added to the stream is smaller by sqrt(2 n_layers), as in GPT-2."""
        generator = torch.Generator().manual_seed(stream_seed(seed, "init"))
        shrink = 1 / math.sqrt(2 * self.config.n_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                scale = self.config.init_std * (
                    shrink if name.endswith(("attention.out.weight", "feed_forward.down.weight")) else 1
                )
                nn.init.normal_(parameter, 0.0, scale, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        x = self.embedding(tokens)  # (B, T, D)
        if self.config.dropout:
            x = F.dropout(x, self.config.dropout, self.training)
        cos, sin = self.cos[:T], self.sin[:T]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))  # (B, T, V)

    def num_params(self, *, non_embedding: bool = False) -> int:
        """How many parameters: a tied matrix once. `non_embedding`: without token embedding and output layer."""
        skip = {id(self.embedding.weight), id(self.head.weight)} if non_embedding else set()
        return sum(p.numel() for p in self.parameters() if id(p) not in skip)

    def generate(
        self,
        prompt: Tensor,
        max_new: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Prompt (T,) -> prompt and `max_new` sampled tokens (T + max_new,); see `generate`."""
        return generate(self, prompt, max_new, self.config.context, temperature, top_k, generator)


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Tensor,
    max_new: int,
    context: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample from any model tokens -> logits: prompt (T,), T >= 1, -> prompt and new tokens (T + max_new,).

    The model sees the last `context` tokens. Temperature 0 takes the likeliest token; `top_k` keeps the k likeliest.
    """
    was_training = model.training
    model.eval()
    tokens = prompt
    for _ in range(max_new):
        logits = model(tokens[None, -context:])[0, -1].float()  # (V,)
        if top_k is not None:
            kth = logits.topk(min(top_k, logits.numel())).values[-1]
            logits = logits.masked_fill(logits < kth, -math.inf)
        if temperature == 0:
            new = logits.argmax().reshape(1)
        else:
            new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, new])
    model.train(was_training)
    return tokens
