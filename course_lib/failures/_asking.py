"""Asks a model, or any callable from tokens to logits, the same question twice: nothing but the tokens may differ.

Every call starts from the same random state, and the caller's is put back. Dropout is left out. A module is copied,
in float64 where it runs so; what cannot be copied is called as it is. See `Asked`.
"""

import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.errors import ConfigError, DataError

__all__ = ["Asked", "moved", "spread_of"]

Forward = Callable[[Tensor], Any]

DROPOUTS = {
    F.dropout: "p",
    F.dropout1d: "p",
    F.dropout2d: "p",
    F.dropout3d: "p",
    F.alpha_dropout: "p",
    F.feature_alpha_dropout: "p",
    torch.dropout: "p",
    F.scaled_dot_product_attention: "dropout_p",
    F.multi_head_attention_forward: "dropout_p",
}
"""Functions that drop at random, and the argument that says how much."""


class Asked:
    """`Asked(forward, tokens)` answers tokens (B, T) with logits (B, T, V), in float64 on the CPU."""

    def __init__(self, forward: Forward | nn.Module, tokens: Tensor, seed: int) -> None:
        self.seed, self.fresh = seed, False
        self.notes: list[str] = []
        module = _module(forward)
        self.kind, self.forward, self.buffers = "callable", forward, dict[str, Tensor]()
        self.make: Callable[[], nn.Module] | None = None
        self.device = tokens.device
        first = None
        if module is not None:
            first = self._take_copy(module, tokens)
        if first is None:
            self._listen(tokens)
            first = self(tokens)
        again = self(tokens)
        if self.make is not None and float(moved(first, again).max()) > 1000 * self.eps * spread_of(first):
            self.fresh = True  # more than sums in another order: it keeps something from call to call
            first, again = self(tokens), self(tokens)
            self.notes.append("from a fresh copy for each call, for it remembers the last one")
        self.first = first
        self.repeats = float(moved(first, again).max())
        """How far logits are apart that answer the same tokens."""
        if self.dropped:
            self.notes.append("with dropout left out")

    def _take_copy(self, module: nn.Module, tokens: Tensor) -> Tensor | None:
        """Settle on the best copy that answers; its answer. None: there is no copy."""
        for kind in ("float64", "own"):
            if kind == "float64" and tokens.device.type == "mps":  # which has no float64
                self.device = torch.device("cpu")
            self.kind, self.make = kind, partial(_copied, module, self.device, kind == "float64")
            try:
                self.forward = self.make()
                first = self._listen(tokens)
            except Exception:  # what a model raises at float64, or at being copied, is its own affair
                self.device = tokens.device
                continue
            mode = "training" if module.training else "evaluation"
            self.notes.append(f"on a {'float64 ' if kind == 'float64' else ''}copy in {mode} mode")
            return first
        self.kind, self.forward, self.make = "module", module, None
        self.buffers = dict(module.named_buffers())
        self.notes.append("on the module itself, for it cannot be copied")
        return None

    def _listen(self, tokens: Tensor) -> Tensor:
        """The first answer; notes the coarsest number format in it (in float64, not of a mask or table in FP32)."""
        listening = _Coarsest()
        self.dropped, self.eps = 0, 0.0
        answer = self._answer(tokens, listening)
        self.eps = max(self.eps, listening.narrowed if self.kind == "float64" else listening.eps)
        return answer

    @property
    def exact(self) -> bool:
        """Whether all of the arithmetic was seen to be in float64."""
        return self.kind == "float64" and self.eps <= torch.finfo(torch.float64).eps

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._answer(tokens)

    def _answer(self, tokens: Tensor, listening: TorchDispatchMode | None = None) -> Tensor:
        forward = self.make() if self.fresh and self.make is not None else self.forward
        kept = {name: buffer.clone() for name, buffer in self.buffers.items()}
        quiet = _NoDropout()
        with ExitStack() as around:
            around.enter_context(_seeded(self.seed))
            around.enter_context(torch.no_grad())
            around.enter_context(quiet)
            if self.kind == "float64":  # where the caller's autocast has no business
                around.enter_context(torch.autocast(self.device.type, enabled=False))
            if (self.make or listening) and "torch._dynamo" in sys.modules:  # compiled parts would be compiled anew
                around.enter_context(torch.compiler.set_stance("force_eager"))
            if listening is not None:
                around.enter_context(listening)
            out = forward(tokens.to(self.device).clone())
        self.dropped += quiet.left_out
        for name, buffer in kept.items():
            self.buffers[name].copy_(buffer)
        logits = _logits(out, tokens)
        if logits.is_floating_point():
            self.eps = max(self.eps, torch.finfo(logits.dtype).eps)
        return logits.detach().to("cpu", torch.float64)


def moved(a: Tensor, b: Tensor) -> Tensor:
    """(..., V), (..., V) -> (...): the largest difference of two rows of logits. Infinities that are equal are none."""
    return torch.where(a == b, 0.0, (a - b).abs()).amax(-1)


def spread_of(logits: Tensor) -> float:
    """The largest standard deviation of a vocabulary entry over rows and positions; infinite ones are left out."""
    rows = logits.flatten(0, 1)
    rows = rows[:, rows.isfinite().all(0)]
    return float(rows.std(0).max()) if rows.shape[1] else 0.0


def _logits(out: Any, tokens: Tensor) -> Tensor:
    """The logits in what a model returned: itself, its `.logits`, or the first of a tuple that looks like logits."""
    found = getattr(out, "logits", out.get("logits") if isinstance(out, dict) else out)
    shape = tuple(tokens.shape)
    for one in found if isinstance(found, tuple | list) else [found]:
        one = torch.from_numpy(one) if isinstance(one, np.ndarray) else one
        if isinstance(one, Tensor) and one.dim() == 3 and tuple(one.shape[:2]) == shape:
            if one.isnan().any():
                row, position = one.isnan().any(-1).nonzero()[0].tolist()
                raise DataError(
                    f"the logits of sequence {row}, position {position} are NaN; find out where that starts"
                )
            return one
    told = f"shape {tuple(found.shape)}" if isinstance(found, Tensor | np.ndarray) else type(found).__name__
    raise ConfigError(
        f"for tokens {shape} the callable returned {told}; it has to return logits (B, T, V), or a tuple with them"
    )


def _module(forward: object) -> nn.Module | None:
    """The module behind it: itself, the one whose `forward` this is, what `torch.compile` was given."""
    if inspect.ismethod(forward) and forward.__name__ in ("forward", "__call__"):
        forward = forward.__self__
    forward = getattr(forward, "_orig_mod", forward)
    return forward if isinstance(forward, nn.Module) else None


def _copied(module: nn.Module, device: torch.device, double: bool) -> nn.Module:
    """A deep copy. Tensors that a last forward left on the modules are copied without their graph."""
    memo = {
        id(value): value.detach().clone()
        for one in module.modules()
        for value in vars(one).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    made = copy.deepcopy(module, memo)
    return made.to(device).double() if double else made


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and PyTorch's generators start from the seed, and are put back."""
    states, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        torch.set_rng_state(states)
        random.setstate(python)
        np.random.set_state(numpy)
        if torch.cuda.is_available():
            torch.cuda.set_rng_state_all(cuda)


class _Coarsest(TorchDispatchMode):
    """Notes the largest rounding step among the number formats of all results, and of those that float64 went into."""

    eps = 0.0
    narrowed = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's: else the first call loads the compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [
            torch.finfo(one.dtype).eps
            for one in tree_leaves(out)
            if isinstance(one, Tensor) and one.is_floating_point()
        ]
        self.eps = max([self.eps, *found])
        if any(isinstance(one, Tensor) and one.dtype == torch.float64 for one in tree_leaves(args)):
            self.narrowed = max([self.narrowed, *found])
        return out


class _NoDropout(TorchFunctionMode):
    """Functions of `DROPOUTS` drop nothing; `left_out` counts those that would have."""

    left_out = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = DROPOUTS.get(func)
        if name is None:
            return func(*args, **kwargs)
        if func is torch.dropout:
            self.left_out += bool(args[1] and args[2]) if len(args) == 3 else 1
            return args[0] if args else kwargs["input"]
        names: tuple[str, ...]
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        else:
            names = tuple(inspect.signature(func).parameters)
        kwargs.update(zip(names, args, strict=False))
        self.left_out += bool(kwargs.get(name, 0.5 if name == "p" else 0.0) and kwargs.get("training", True))
        return func(**{**kwargs, name: 0.0})
