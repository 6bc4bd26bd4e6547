"""Mixture of experts: routers (scores -> who takes which token), the layer, and a GPT made of such layers.

Shapes: B sequences, T tokens, D = d_model, E experts, F = width inside one expert. A router turns scores (B, T, E),
each token's softmax over the experts, into gates (B, T, E): the weight of expert e's answer to token t, and 0 where
e does not take t.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig, stream_seed
from course_lib.errors import ConfigError
from course_lib.model import GPT

__all__ = ["ROUTERS", "MoE", "MoEConfig", "expert_choice", "moe_gpt", "token_choice"]


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """The shape of a mixture-of-experts layer."""

    n_experts: int = 8
    """How many experts there are."""
    top_k: int = 2
    """Experts per token: exactly with token choice, on average with expert choice."""
    d_expert: int = 32
    """Width inside one expert."""
    routing: Literal["token_choice", "expert_choice"] = "token_choice"
    """Who chooses: each token its experts, or each expert its tokens."""

    def __post_init__(self) -> None:
        for name in ("n_experts", "top_k", "d_expert"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        if self.top_k > self.n_experts:
            raise ConfigError(
                f"top_k={self.top_k} is more than n_experts={self.n_experts}; try top_k={self.n_experts} or fewer"
            )
        if self.routing not in ROUTERS:
            raise ConfigError(f"routing={self.routing!r} is unknown (there are: {', '.join(ROUTERS)})")


def token_choice(scores: Tensor, top_k: int) -> Tensor:
    """Each token goes to the `top_k` experts it scores highest (Shazeer et al. 2017, arXiv 1701.06538).

    scores (B, T, E) -> gates (B, T, E). A token's gates depend on its own scores and on nothing else.
    """
    gates, experts = scores.topk(top_k, dim=2)  # (B, T, top_k)
    return torch.zeros_like(scores).scatter(2, experts, gates)


def expert_choice(scores: Tensor, top_k: int) -> Tensor:
    """Each expert takes the tokens of a sequence that score highest with it (Zhou et al. 2022, arXiv 2202.09368).

    scores (B, T, E) -> gates (B, T, E). An expert takes ceil(T top_k / E) tokens, so all work equally hard. A token is
    taken by about `top_k` experts on average, in the extreme by none or by all. Whether one is taken depends on the
    scores of all T tokens.
    """
    _, T, E = scores.shape
    gates, tokens = scores.topk(-(-T * top_k // E), dim=1)  # (B, capacity, E)
    return torch.zeros_like(scores).scatter(1, tokens, gates)


ROUTERS: dict[str, Callable[[Tensor, int], Tensor]] = {"token_choice": token_choice, "expert_choice": expert_choice}


class MoE(nn.Module):
    """E feed-forward experts, of which each token visits a few; stands where a block's feed-forward stood."""

    def __init__(self, d_model: int, config: MoEConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        E, width = config.n_experts, config.d_expert
        self.config = config
        self.router = nn.Parameter(torch.empty(d_model, E))
        self.up = nn.Parameter(torch.empty(E, d_model, width))
        self.down = nn.Parameter(torch.empty(E, width, d_model))
        for weight, fan_in in ((self.router, d_model), (self.up, d_model), (self.down, width)):
            nn.init.normal_(weight, 0.0, fan_in**-0.5, generator=generator)

    def route(self, x: Tensor) -> Tensor:
        """Gates (B, T, E) of x (B, T, D). The softmax is in FP32: a rounded score can send a token elsewhere."""
        scores = (x @ self.router).float().softmax(dim=2)
        return ROUTERS[self.config.routing](scores, self.config.top_k)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)  # (B T, D)
        gates = self.route(x).flatten(0, 1).to(x.dtype)  # (B T, E)
        out = torch.zeros_like(rows)
        for expert in range(self.config.n_experts):
            taken = gates[:, expert].nonzero().squeeze(1)  # (n,): only these tokens cost anything
            hidden = F.silu(rows[taken] @ self.up[expert])  # (n, F)
            answer = hidden @ self.down[expert] * gates[taken, expert, None]  # (n, D)
            out = out.index_add(0, taken, answer)
        return out.view_as(x)


def moe_gpt(config: ModelConfig, moe: MoEConfig, seed: int = 0) -> GPT:
    """The GPT of `model.py` with a `MoE` for each feed-forward. `seed` alone decides the initial weights."""
    model = GPT(config, seed)
    generator = torch.Generator().manual_seed(stream_seed(seed, "experts"))
    for block in model.blocks:
        block.feed_forward = MoE(config.d_model, moe, generator)
    return model
