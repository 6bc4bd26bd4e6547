"""Mixture of experts: the layer, what keeps its experts equally busy, and a GPT made of it. Routers: `routers.py`.

Shapes: B sequences, T tokens, D = d_model, E experts, F = width inside one expert. A router turns scores (B, T, E),
each token's softmax over the experts, into gates (B, T, E): the weight of expert e's answer to token t, and 0 where
e does not take t.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig, stream_seed
from course_lib.model import GPT
from course_lib.routers import DROPS, ROUTERS, drop_in_order, expert_capacity, expert_choice, share_scores, token_choice
from course_lib.settings import one_of, positive, require

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
    "update_thresholds",
]


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """The shape of a mixture-of-experts layer, and what keeps its experts equally busy."""

    n_experts: int = 8
    """How many experts there are."""
    top_k: int = 2
    """Experts per token: exactly with token choice, on average with the others."""
    d_expert: int = 32
    """Width inside one expert."""
    routing: Literal["token_choice", "expert_choice", "expert_choice_batch", "expert_choice_chunks", "threshold"] = (
        "token_choice"
    )
    """Who chooses, and out of what: a name of `ROUTERS`."""
    chunk: int | None = None
    """With expert_choice_chunks: how many neighbouring tokens an expert chooses among; None: the whole sequence."""
    threshold_rate: float = 0.05
    """With threshold: the share by which `update_thresholds` moves an expert's threshold."""
    aux_weight: float = 0.0
    """What `auxiliary_loss` multiplies the layer's `balance_loss` with; 0: it is not computed."""
    bias_rate: float = 0.0
    """By how much `update_biases` moves an expert's bias; 0: there are no biases."""
    capacity_factor: float | None = None
    """An expert takes at most this times its equal share of a batch's assignments; None: all that come."""
    drop: Literal["in_order", "in_order_in_sequence", "by_score_in_sequence", "by_score_in_batch"] = "in_order"
    """Which assignments go when an expert is full: a name of `DROPS`."""

    def __post_init__(self) -> None:
        positive(self, "n_experts", "top_k", "d_expert", *(() if self.chunk is None else ("chunk",)))
        top_k, most, factor, rate = self.top_k, self.n_experts, self.capacity_factor, self.threshold_rate
        require(top_k <= most, f"top_k={top_k} is more than n_experts={most}; try top_k={most} or fewer")
        one_of(self, "routing", tuple(ROUTERS))
        one_of(self, "drop", tuple(DROPS))
        for name in ("aux_weight", "bias_rate"):
            value = getattr(self, name)
            require(value >= 0, f"{name}={value!r} must be 0 or more; try 0.01")
        require(
            factor is None or factor > 0, f"capacity_factor={factor!r} must be above 0; try 1.25, or None for no limit"
        )
        require(0 < rate <= 1, f"threshold_rate={rate!r} must be above 0 and at most 1; try 0.05")
        tokens_choose, chunks = self.routing == "token_choice", self.routing == "expert_choice_chunks"
        require(
            tokens_choose or not self.bias_rate,
            f"bias_rate={self.bias_rate} is for routing='token_choice'; try bias_rate=0",
        )
        require(
            chunks or self.chunk is None, f"chunk={self.chunk} is for routing='expert_choice_chunks'; try chunk=None"
        )


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
    thresholds: Tensor | None
    wanted: Tensor | None

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
        """What the layer keeps beside its weights: the load since `take_loads`, biases or thresholds, what was dropped.

        Thresholds start at 1/E, which is the mean score.
        """
        E, causal = self.config.n_experts, self.config.routing == "threshold"
        self.register_buffer("load", torch.zeros(E, dtype=torch.int64), persistent=False)
        self.register_buffer("bias", torch.zeros(E) if self.config.bias_rate else None)
        self.register_buffer("thresholds", torch.full((E,), 1 / E) if causal else None)
        self.register_buffer("wanted", torch.zeros(E) if causal else None, persistent=False)
        self.forwards = 0
        """Forward passes in training since `update_thresholds`; `wanted` is the sum of their `share_scores`."""
        self.balance: Tensor | None = None
        self.dropped = 0
        """Assignments that the last forward dropped."""

    def route(self, x: Tensor) -> Tensor:
        """Gates (B, T, E) of x (B, T, D). Softmax in FP32 or wider: a rounded score can send a token elsewhere."""
        config = self.config
        logits = x @ self.router
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=2)
        gates = self.choose(scores)
        chosen = gates != 0
        if self.training:
            self.load += chosen.sum((0, 1))
            if self.wanted is not None:
                self.wanted += share_scores(scores.detach(), config.top_k)
                self.forwards += 1
            if config.aux_weight:
                self.balance = balance_loss(scores, chosen)
        if config.capacity_factor is not None:
            tokens = x.shape[0] * x.shape[1]
            capacity = expert_capacity(tokens, config.n_experts, config.top_k, config.capacity_factor)
            gates = DROPS[config.drop](gates, capacity)
            self.dropped = int(chosen.sum() - (gates != 0).sum())
        return gates

    def choose(self, scores: Tensor) -> Tensor:
        """The configured router on scores (B, T, E), with what it needs beside them."""
        config, more = self.config, tuple[object, ...]()
        if config.routing == "threshold":
            return ROUTERS["threshold"](scores, self.thresholds)
        if config.routing == "expert_choice_chunks":
            more = (config.chunk or scores.shape[1],)
        elif self.bias is not None:
            more = (self.bias,)
        return ROUTERS[config.routing](scores, config.top_k, *more)

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


def update_thresholds(model: nn.Module) -> None:
    """After the optimizer's step: each expert's threshold moves towards what would have given it its share.

    That is the mean over the forward passes since the last call, taken in training, of `routers.share_scores`. Without
    such a pass nothing moves. No gradient is involved.
    """
    for layer in moe_layers(model):
        if layer.thresholds is not None and layer.wanted is not None and layer.forwards:
            layer.thresholds.lerp_(layer.wanted / layer.forwards, layer.config.threshold_rate)
            layer.wanted.zero_()
            layer.forwards = 0


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
