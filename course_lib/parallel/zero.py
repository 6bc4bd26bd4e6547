"""ZeRO-1, -2 and -3 from scratch (Rajbhandari et al. 2020, arXiv 1910.02054), as a ladder: each rung adds one idea.

What a rank of N keeps for long:         weights   gradients   optimizer
    data parallel                        all       all         all
    ZeRO-1                               all       all         1/N
    ZeRO-2                               all       1/N         1/N
    ZeRO-3                               1/N       1/N         1/N

The parameters of each block, and those outside all blocks, lie in one flat tensor, padded to a multiple of N. The
optimizer sees flat shards, so it has to treat every number alike, as AdamW does; weight decay on matrices alone
would need a second flat tensor. The real one is `torch.distributed.fsdp.fully_shard`: see `fsdp`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world

__all__ = ["Flat", "Zero1", "Zero2", "Zero3", "units"]


def units(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that are sharded one by one: each block (a member of an `nn.ModuleList`), and last the model itself,
    for what lies outside the blocks."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    return {f"{name}.{i}": block for name, blocks in lists for i, block in enumerate(blocks)} | {"": model}


class Flat:
    """Some parameters as views of one flat tensor, `whole` (N x n,); row `rank` of it is this rank's `shard` (n,)."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.rank, self.world = rank_and_world()
        self.numel = sum(p.numel() for p in self.parameters)
        self.whole = self.blank()
        for p, view in zip(self.parameters, self.views(self.whole), strict=True):
            view.copy_(p.detach())
            p.data = view
        self.shard = nn.Parameter(self.row(self.whole))  # a view, no copy
        self.missing = 0
        """Parameters of which this backward has not brought the gradient yet."""

    def blank(self) -> Tensor:
        """Zeros (N x n,)."""
        return self.parameters[0].new_zeros(-(-self.numel // self.world) * self.world)

    def row(self, flat: Tensor) -> Tensor:
        """(N x n,) -> this rank's (n,)."""
        return flat.detach().view(self.world, -1)[self.rank]

    def views(self, flat: Tensor) -> list[Tensor]:
        """(N x n,) -> a view of each parameter's shape."""
        parts = flat[: self.numel].split([p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def gather(self, mine: Tensor, whole: Tensor) -> Tensor:
        """All-gather: every rank's (n,) -> (N x n,), written into `whole`, of which `mine` may be a part."""
        dist.all_gather_single(whole, mine.detach().clone())
        return whole

    def scatter(self, gradient: Tensor) -> Tensor:
        """Reduce-scatter: every rank's (N x n,) -> this rank's row (n,) of their sum."""
        mine = torch.empty_like(self.shard.detach())
        dist.reduce_scatter_single(mine, gradient)
        return mine


class Sharded(Strategy):
    """What the three have in common: flat units, an optimizer on this rank's shards, whole tensors for comparing."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.model = model
        self.names = {p: name for name, p in model.named_parameters()}
        self.flats: dict[str, Flat] = {}
        taken: set[nn.Parameter] = set()
        for name, module in units(model).items():  # the blocks first: the model gets what is left
            self.flats[name] = Flat(p for p in module.parameters() if p not in taken)
            taken |= set(module.parameters())
        self.optimizer = make_optimizer([flat.shard for flat in self.flats.values()])

    def step(self) -> None:
        super().step()
        for flat in self.flats.values():
            flat.gather(flat.shard, flat.whole)

    def whole(self, mine: Callable[[Flat], Tensor]) -> dict[str, Tensor]:
        """Of each flat unit this rank's (n,) -> all of it, by parameter name."""
        out: dict[Tensor, Tensor] = {}
        for flat in self.flats.values():
            out |= zip(flat.parameters, flat.views(flat.gather(mine(flat), flat.blank())), strict=True)
        return {name: out[p].clone() for p, name in self.names.items()}

    def parameters(self) -> dict[str, Tensor]:
        return self.whole(lambda flat: flat.shard)

    def gradients(self) -> dict[str, Tensor]:
        return self.whole(lambda flat: torch.zeros_like(flat.shard) if flat.shard.grad is None else flat.shard.grad)


class Zero1(Sharded):
    """The optimizer is sharded: a rank updates its shard of the weights, and gathers what the others updated."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer)
        self.sums = {name: flat.blank() for name, flat in self.flats.items()}  # whole, for all micro-batches
        for name, flat in self.flats.items():
            flat.shard.grad = flat.row(self.sums[name])
            for p, view in zip(flat.parameters, flat.views(self.sums[name]), strict=True):
                p.grad = view  # autograd adds to it

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        yield
        if last:
            for name, flat in self.flats.items():
                flat.row(self.sums[name]).copy_(flat.scatter(self.sums[name]))

    def step(self) -> None:
        self.optimizer.step()
        for name, flat in self.flats.items():
            self.sums[name].zero_()
            flat.gather(flat.shard, flat.whole)


class Zero2(Sharded):
    """Gradients are sharded too: once backward has all of a unit, they are summed over ranks, and a shard is kept.

    So every micro-batch sends them: waiting for the last one would mean to keep them whole.
    """

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer)
        for flat in self.flats.values():
            for p in flat.parameters:
                p.register_post_accumulate_grad_hook(partial(self.arrived, flat))

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        for flat in self.flats.values():
            flat.missing = len(flat.parameters)
        yield
        for flat in self.flats.values():
            if flat.missing:  # a parameter that this loss does not depend on
                self.reduce(flat)

    def arrived(self, flat: Flat, p: Tensor) -> None:
        flat.missing -= 1
        if not flat.missing:
            self.reduce(flat)

    def reduce(self, flat: Flat) -> None:
        gradient = flat.blank()
        for p, view in zip(flat.parameters, flat.views(gradient), strict=True):
            if p.grad is not None:
                view.copy_(p.grad)
                p.grad = None
        mine = flat.scatter(gradient)
        flat.shard.grad = mine if flat.shard.grad is None else flat.shard.grad.add_(mine)
        flat.missing = 0


class Zero3(Zero2):
    """Weights are sharded too: a unit is gathered before its forward and its backward, and dropped after each."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer)
        modules = units(model)
        for name, flat in self.flats.items():
            flat.shard.data = flat.shard.data.clone()  # the shard stays when the whole goes
            self.drop(flat)
            modules[name].register_forward_pre_hook(lambda *_, flat=flat: self.fetch(flat))
            modules[name].register_forward_hook(partial(self.after_forward, flat))

    def after_forward(self, flat: Flat, module: nn.Module, inputs: object, output: Tensor) -> None:
        self.drop(flat)
        if output.requires_grad:  # called when backward reaches the output
            output.register_hook(lambda _: self.fetch(flat))

    def fetch(self, flat: Flat) -> None:
        flat.whole.untyped_storage().resize_(flat.whole.numel() * flat.whole.element_size())
        flat.gather(flat.shard, flat.whole)

    def drop(self, flat: Flat) -> None:
        flat.whole.untyped_storage().resize_(0)  # the parameters are still views of it, of nothing for now

    def reduce(self, flat: Flat) -> None:
        super().reduce(flat)
        self.drop(flat)

    def step(self) -> None:
        Strategy.step(self)  # nothing to gather: the next forward will
