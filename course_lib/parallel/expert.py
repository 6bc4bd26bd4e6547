"""Expert parallel: each rank keeps some of the experts, and tokens travel to them and back by all-to-all.

GShard (Lepikhin et al. 2020, arXiv 2006.16668). Everything else of the model is data parallel: the ranks that share out
the experts are data-parallel ranks, so that expert parallelism divides their number and adds no ranks.

Shapes: N ranks, E experts, E/N of them on each; n assignments (a token and one of its experts) of this rank's tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from course_lib.errors import ConfigError
from course_lib.moe import MoE, moe_layers, take_loads, update_biases, update_thresholds
from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world

__all__ = ["ExpertParallel", "MoEShard", "by_expert", "exchange_counts"]


def by_expert(gates: Tensor) -> tuple[Tensor, Tensor]:
    """Gates (tokens, E) -> the token of each assignment (n,), sorted by expert, then by token; and counts (E,)."""
    expert, token = gates.t().nonzero(as_tuple=True)
    return token, torch.bincount(expert, minlength=gates.shape[1])


def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Counts (E,) of this rank's assignments -> (N, E/N): how many each rank sends to each of this rank's experts.

    They have to be known before the tokens can be received, and travel on their own, E whole numbers a rank.
    """
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    return arriving.view(dist.get_world_size(group), -1)


class MoEShard(MoE):
    """A `MoE` layer with this rank's experts alone. The router is whole on every rank and chooses among all experts."""

    def __init__(self, layer: MoE, group: dist.ProcessGroup) -> None:
        nn.Module.__init__(self)
        self.config, self.group = layer.config, group
        place, size = dist.get_rank(group), dist.get_world_size(group)
        self.router = layer.router
        self.up = nn.Parameter(layer.up.detach().chunk(size)[place].clone())  # (E/N, D, F)
        self.down = nn.Parameter(layer.down.detach().chunk(size)[place].clone())  # (E/N, F, D)
        self.start_counting()
        if layer.bias is not None:
            self.bias = layer.bias.clone()
        if layer.thresholds is not None:
            self.thresholds = layer.thresholds.clone()
        self.arriving: Tensor | None = None
        """(N, E/N): what came from each rank for each expert in the last forward."""

    def experts(self, rows: Tensor, gates: Tensor) -> Tensor:
        """As `MoE.experts`, with two all-to-alls around the experts: rows (tokens, D), gates (tokens, E)."""
        token, counts = by_expert(gates)
        self.arriving = exchange_counts(counts, self.group)  # (N, E/N)
        leaving = counts.view_as(self.arriving).sum(1).tolist()  # assignments to each rank
        coming = self.arriving.sum(1).tolist()  # and from each
        sent = all_to_all_single_autograd(rows[token], coming, leaving, self.group)  # dispatch: (coming, D)
        answers = self.work(sent, self.arriving)
        back = all_to_all_single_autograd(answers, leaving, coming, self.group)  # combine: (n, D)
        weights = gates.t()[gates.t() != 0]  # (n,), in the order of `token`
        return torch.zeros_like(rows).index_add(0, token, back * weights[:, None])

    def work(self, rows: Tensor, arriving: Tensor) -> Tensor:
        """Each of this rank's experts on its rows, which lie by rank and then by expert: (coming, D) -> (coming, D)."""
        pieces = rows.split(arriving.flatten().tolist())  # N x E/N of them, some empty
        here = arriving.shape[1]
        answers: list[Tensor] = [rows] * len(pieces)
        for expert in range(here):
            of_expert = pieces[expert::here]  # one piece from each rank
            hidden = F.silu(torch.cat(of_expert) @ self.up[expert])
            done = (hidden @ self.down[expert]).split([len(piece) for piece in of_expert])
            answers[expert::here] = done
        return torch.cat(answers)


class ExpertParallel(Strategy):
    """Experts over ranks, everything else data parallel, each rank with its own rows of the batch.

    over: how many ranks share out the experts, neighbours in rank order; all by default. With fewer, the experts are
    there world / over times, and their gradients are summed over the ranks that have the same ones.
    A rank's optimizer knows its own experts alone. What `auxiliary_loss` would add is left out: it is a product of two
    means over the batch, so that the sum of the ranks' own is another loss than the whole batch's. Not for
    `expert_choice_batch`: an expert would choose among each rank's tokens alone.
    """

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer, *, over: int | None = None) -> None:
        rank, world = rank_and_world()
        over = over or world
        layers = moe_layers(model)
        if any(layer.config.routing == "expert_choice_batch" for layer in layers):
            raise ConfigError(
                "routing='expert_choice_batch' needs all ranks' tokens at once; try 'expert_choice', by sequence"
            )
        for experts in {layer.config.n_experts for layer in layers}:
            if world % over or experts % over:
                fits = [n for n in range(1, world + 1) if world % n == 0 and experts % n == 0]
                raise ConfigError(
                    f"over={over} ranks have to divide {world} ranks and {experts} experts; try over={max(fits)}"
                )
        self.group, self.copies = _groups(rank, world, over)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, MoE):
                    setattr(parent, name, MoEShard(child, self.group))
        super().__init__(model, make_optimizer)
        shards = [layer for layer in moe_layers(model) if isinstance(layer, MoEShard)]
        self.split = {p for layer in shards for p in (layer.up, layer.down)}
        self.last, self.pending = True, list[Any]()
        for p in model.parameters():  # all copies start as the first's
            group = self.copies if p in self.split else None
            dist.broadcast(p.detach(), group=group, group_src=0)
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p: Tensor) -> None:
        """Called by backward. An expert has seen the tokens of its whole group already: only its copies are summed."""
        group = self.copies if p in self.split else None
        if self.last and dist.get_world_size(group) > 1:
            self.pending.append(dist.all_reduce(p.grad, group=group, async_op=True))

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.last = last
        yield
        for work in self.pending:
            work.wait()
        self.pending.clear()

    def step(self) -> None:
        super().step()
        if any(layer.bias is not None for layer in moe_layers(self.model)):
            loads = take_loads(self.model)
            dist.all_reduce(loads)  # all ranks see the load of the global batch, and move their biases alike
            update_biases(self.model, loads)
        for layer in moe_layers(self.model):
            if layer.wanted is not None:  # the mean over all ranks' passes, of which each rank had as many
                dist.all_reduce(layer.wanted)
                layer.wanted /= dist.get_world_size()
        update_thresholds(self.model)

    def whole(self, p: Tensor, value: Tensor) -> Tensor:
        """An expert's tensor gathered over its group: (E/N, ...) -> (E, ...); of any other parameter, a copy."""
        if p not in self.split:
            return value.clone()
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, value.contiguous(), group=self.group)
        return torch.cat(parts)

    def gradients(self) -> dict[str, Tensor]:
        pairs = self.model.named_parameters()
        return {name: self.whole(p, torch.zeros_like(p) if p.grad is None else p.grad) for name, p in pairs}

    def parameters(self) -> dict[str, Tensor]:
        return {name: self.whole(p, p.detach()) for name, p in self.model.named_parameters()}


def _groups(rank: int, world: int, over: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's group of `over` ranks with all experts between them, and the ranks with the same experts as its own.

    Every rank has to make every group, in the same order.
    """
    blocks = [list(range(start, start + over)) for start in range(0, world, over)]
    columns = [list(range(place, world, over)) for place in range(over)]
    group, copies = (
        [dist.new_group(ranks) for ranks in kind][next(i for i, ranks in enumerate(kind) if rank in ranks)]
        for kind in (blocks, columns)
    )
    return group, copies
