"""Mixture of experts: routers (scores -> who takes which token), balance, capacity, the layer, and a GPT made of it.

Shapes: B sequences, T tokens, D = d_model, E experts, F = width inside one expert. A router turns scores (B, T, E),
each token's softmax over the experts, into gates (B, T, E): the weight of expert e's answer to token t, and 0 where
e does not take t.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig, stream_seed
from course_lib.errors import ConfigError
from course_lib.model import GPT

__all__ = [
    "DROPS",
    "ROUTERS",
    "MoE",
    "MoEConfig",
    "auxiliary_loss",
    "balance_loss",
    "drop_in_order",
    "expert_capacity",
    "expert_choice",
    "imbalance",
    "moe_gpt",
    "moe_layers",
    "take_loads",
    "token_choice",
    "update_biases",
]


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """The shape of a mixture-of-experts layer, and what keeps its experts equally busy."""

    n_experts: int = 8
    """How many experts there are."""
    top_k: int = 2
    """Experts per token: exactly with token choice, on average with expert choice."""
    d_expert: int = 32
    """Width inside one expert."""
    routing: Literal["token_choice", "expert_choice"] = "token_choice"
    """Who chooses: each token its experts, or each expert its tokens."""
    aux_weight: float = 0.0
    """What `auxiliary_loss` multiplies the layer's `balance_loss` with; 0: it is not computed."""
    bias_rate: float = 0.0
    """By how much `update_biases` moves an expert's bias; 0: there are no biases."""
    capacity_factor: float | None = None
    """An expert takes at most this times its equal share of a batch's assignments; None: all that come."""
    drop: Literal["in_order"] = "in_order"
    """Which assignments go when an expert is full: a name of `DROPS`."""

    def __post_init__(self) -> None:
        for name in ("n_experts", "top_k", "d_expert"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        if self.top_k > self.n_experts:
            raise ConfigError(
                f"top_k={self.top_k} is more than n_experts={self.n_experts}; try top_k={self.n_experts} or fewer"
            )
        for name, known in (("routing", ROUTERS), ("drop", DROPS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown (there are: {', '.join(known)})")
        for name in ("aux_weight", "bias_rate"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 0 or more; try 0.01")
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise ConfigError(
                f"capacity_factor={self.capacity_factor!r} must be above 0; try 1.25, or None for no limit"
            )
        if self.bias_rate and self.routing != "token_choice":
            raise ConfigError(f"bias_rate={self.bias_rate} is for routing='token_choice'; try bias_rate=0")


def token_choice(scores: Tensor, top_k: int, bias: Tensor | None = None) -> Tensor:
    """Each token goes to the `top_k` experts it scores highest (Shazeer et al. 2017, arXiv 1701.06538).

    scores (B, T, E) -> gates (B, T, E). A token's gates depend on its own scores and on nothing else. bias (E,): added
    to the scores when experts are chosen, and not to the gates (Wang et al. 2024, arXiv 2408.15664).
    """
    experts = (scores if bias is None else scores + bias).topk(top_k, dim=2).indices  # (B, T, top_k)
    return torch.zeros_like(scores).scatter(2, experts, scores.gather(2, experts))


def expert_choice(scores: Tensor, top_k: int) -> Tensor:
    """Each expert takes the tokens of a sequence that score highest with it (Zhou et al. 2022, arXiv 2202.09368).

    scores (B, T, E) -> gates (B, T, E). An expert takes ceil(T top_k / E) tokens, so all work equally hard. A token is
    taken by about `top_k` experts on average, in the extreme by none or by all. Whether one is taken depends on the
    scores of all T tokens.
    """
    _, T, E = scores.shape
    gates, tokens = scores.topk(-(-T * top_k // E), dim=1)  # (B, capacity, E)
    return torch.zeros_like(scores).scatter(1, tokens, gates)


ROUTERS: dict[str, Callable[..., Tensor]] = {"token_choice": token_choice, "expert_choice": expert_choice}


def expert_capacity(tokens: int, n_experts: int, top_k: int, factor: float) -> int:
    """Assignments that an expert takes of a batch of `tokens`: tokens x top_k / experts x factor, rounded up.

    Fedus et al. 2021 (Switch, arXiv 2101.03961), equation 3, for top_k = 1; Lepikhin et al. 2020 (GShard, 2006.16668)
    have two experts a token.
    """
    return math.ceil(tokens * top_k / n_experts * factor)


def drop_in_order(gates: Tensor, capacity: int) -> Tensor:
    """Each expert keeps its first `capacity` tokens, in the order of the batch: by sequence, from left to right.

    gates (B, T, E) -> gates with zeros for the rest. A token depends on earlier ones of its sequence and on all of the
    sequences before it, and on nothing later.
    """
    taken = (gates != 0).flatten(0, 1)  # (B T, E)
    kept = taken & (taken.cumsum(0) <= capacity)
    return gates * kept.view_as(gates)


DROPS: dict[str, Callable[[Tensor, int], Tensor]] = {"in_order": drop_in_order}


def balance_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    """E x sum over experts of (share of the assignments) x (mean score): 1 where both are equal for all experts.

    scores (B, T, E), chosen (B, T, E) bool -> (). Fedus et al. 2021 (Switch, arXiv 2101.03961), equations 4 to 6. The
    shares are counts and have no gradient: an expert that gets more than its share has its scores pushed down.
    """
    shares = chosen.sum((0, 1)) / chosen.sum().clamp(min=1)  # (E,)
    return scores.shape[2] * (shares * scores.mean((0, 1))).sum()


class MoE(nn.Module):
    """E feed-forward experts, of which each token visits a few; stands where a block's feed-forward stood."""

    load: Tensor
    bias: Tensor | None

    def __init__(self, d_model: int, config: MoEConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        E, width = config.n_experts, config.d_expert
        self.config = config
        self.router = nn.Parameter(torch.empty(d_model, E))
        self.up = nn.Parameter(torch.empty(E, d_model, width))
        self.down = nn.Parameter(torch.empty(E, width, d_model))
        for weight, fan_in in ((self.router, d_model), (self.up, d_model), (self.down, width)):
            nn.init.normal_(weight, 0.0, fan_in**-0.5, generator=generator)
        self.start_counting()

    def start_counting(self) -> None:
        """What the layer keeps beside its weights: the load since `take_loads`, biases, what was dropped last."""
        E = self.config.n_experts
        self.register_buffer("load", torch.zeros(E, dtype=torch.int64), persistent=False)
        self.register_buffer("bias", torch.zeros(E) if self.config.bias_rate else None)
        self.balance: Tensor | None = None
        self.dropped = 0
        """Assignments that the last forward dropped."""

    def route(self, x: Tensor) -> Tensor:
        """Gates (B, T, E) of x (B, T, D). The softmax is in FP32: a rounded score can send a token elsewhere."""
        config = self.config
        scores = (x @ self.router).float().softmax(dim=2)
        gates = ROUTERS[config.routing](scores, config.top_k, *(() if self.bias is None else (self.bias,)))
        chosen = gates != 0
        if self.training:
            self.load += chosen.sum((0, 1))
            if config.aux_weight:
                self.balance = balance_loss(scores, chosen)
        if config.capacity_factor is not None:
            tokens = x.shape[0] * x.shape[1]
            capacity = expert_capacity(tokens, config.n_experts, config.top_k, config.capacity_factor)
            gates = DROPS[config.drop](gates, capacity)
            self.dropped = int(chosen.sum() - (gates != 0).sum())
        return gates

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)  # (B T, D)
        gates = self.route(x).flatten(0, 1).to(x.dtype)  # (B T, E)
        return self.experts(rows, gates).view_as(x)

    def experts(self, rows: Tensor, gates: Tensor) -> Tensor:
        """The gated sum of the experts' answers: rows (n, D), gates (n, E) -> (n, D)."""
        out = torch.zeros_like(rows)
        for expert in range(self.config.n_experts):
            taken = gates[:, expert].nonzero().squeeze(1)  # (n,): only these tokens cost anything
            hidden = F.silu(rows[taken] @ self.up[expert])  # (n, F)
            answer = hidden @ self.down[expert] * gates[taken, expert, None]  # (n, D)
            out = out.index_add(0, taken, answer)
        return out


def moe_layers(model: nn.Module) -> list[MoE]:
    """The model's MoE layers, in order."""
    return [module for module in model.modules() if isinstance(module, MoE)]


def auxiliary_loss(model: nn.Module) -> Tensor:
    """What the last forward adds to the loss for balance: each layer's weight x `balance_loss`, summed, ()."""
    total = torch.zeros(())
    for layer in moe_layers(model):
        if layer.balance is not None:
            total = total + layer.config.aux_weight * layer.balance
            layer.balance = None
    return total


def take_loads(model: nn.Module) -> Tensor:
    """Assignments to each expert since the last call, dropped ones included: (layers, E) int64. Counts anew from here.

    Forward passes in training count, evaluation does not. Over ranks the loads add up: `all_reduce` them.
    """
    layers = moe_layers(model)
    loads = torch.stack([layer.load.clone() for layer in layers])
    for layer in layers:
        layer.load.zero_()
    return loads


def update_biases(model: nn.Module, loads: Tensor) -> None:
    """After the optimizer's step: every expert above the mean load gets a lower bias, every one below it a higher one.

    loads (layers, E): of the whole global batch. DeepSeek-V3 (arXiv 2412.19437), section 2.1.2; Wang et al. 2024 (arXiv
    2408.15664), algorithm 1. No gradient is involved, and the loss is the model's own.
    """
    for layer, load in zip(moe_layers(model), loads.float(), strict=True):
        if layer.bias is not None:
            layer.bias += layer.config.bias_rate * torch.sign(load.mean() - load)


def imbalance(loads: Tensor) -> Tensor:
    """The busiest expert's load over the mean: (..., E) -> (...). 1 is equal; E, that all tokens go to one expert."""
    loads = loads.double()
    return loads.amax(-1) / loads.mean(-1)


def moe_gpt(config: ModelConfig, moe: MoEConfig, seed: int = 0) -> GPT:
    """The GPT of `model.py` with a `MoE` for each feed-forward. `seed` alone decides the initial weights."""
    model = GPT(config, seed)
    generator = torch.Generator().manual_seed(stream_seed(seed, "experts"))
    for block in model.blocks:
        block.feed_forward = MoE(config.d_model, moe, generator)
    return model
