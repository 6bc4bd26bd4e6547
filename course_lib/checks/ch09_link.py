"""What check 09.7 gives an answer instead of a network: a stage's links to neighbours that keep to their lists."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.ch09_play import Pass

__all__ = ["Link", "Stands", "Watched"]


class Stands(Exception):
    """Raised where the stage would wait for ever, or sends what cannot be sent. `rule`: the misconception behind it.

    `wanted`: what the neighbour stands waiting for, where it waits for something.
    """

    def __init__(self, text: str, rule: str = "", wanted: Pass | None = None) -> None:
        super().__init__(text)
        self.rule, self.wanted = rule, wanted


class Watched(nn.Module):
    """One stage: tanh of a linear map; the first stage looks rows up by token. Notes every forward and backward."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self._log: list[Pass] = []
        self._alive: list[list[Any]] = []
        self._most = 0

    def forward(self, x: Tensor) -> Tensor:
        number = len(self._alive)
        self._log.append(("F", number))
        saved: list[Any] = []

        class Kept:
            def __init__(self, tensor: Tensor) -> None:
                self.tensor = tensor

        def pack(tensor: Tensor) -> Kept:
            kept = Kept(tensor.detach())
            saved.append(weakref.ref(kept))
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            rows = self.weight.t()[x] if x.dtype == torch.int64 else x @ self.weight.t()
            out = (rows + self.bias).tanh()
        if out.requires_grad:
            out.register_hook(lambda gradient: self._log.append(("B", number)))
        self._alive.append([*saved, weakref.ref(out)])
        self._most = max(self._most, sum(any(ref() is not None for ref in refs) for refs in self._alive))
        return out


class _Send:
    """What a send returns. It ends when the neighbour has received; its tensor is read then."""

    def __init__(self, link: "Link", side: str, name: Pass, tensor: Tensor) -> None:
        self._link, self._side, self._name, self._tensor = link, side, name, tensor
        self._done = False

    def wait(self) -> None:
        """Blocks until the neighbour has received."""
        if not self._done:
            self._link._wait(self._side, self._name)
            self._done = True
            self._link._arrived[self._side][self._name[1]] = self._tensor.clone()


class Link:
    """The connections of one stage. `before`, `after`: what the neighbours do with it, in the order of their lists."""

    def __init__(
        self, stage: int, stages: int, lists: list[list[Pass]], inputs: list[Tensor], gradients: list[Tensor]
    ) -> None:
        self.first, self.last = stage == 0, stage == stages - 1
        self._stage, self._inputs, self._gradients = stage, inputs, gradients
        self._todo = {
            "before": [
                ("send" if what == "F" else "recv", what, k) for what, k in ([] if self.first else lists[stage - 1])
            ],
            "after": [
                ("recv" if what == "F" else "send", what, k) for what, k in ([] if self.last else lists[stage + 1])
            ],
        }
        self._posted: dict[str, dict[Pass, _Send]] = {"before": {}, "after": {}}
        self._arrived: dict[str, dict[int, Tensor]] = {"before": {}, "after": {}}
        self._losses: list[int] = []
        self._gradients_in: list[int] = []

    def input(self, k: int) -> Tensor:
        """The tokens of micro-batch k, on the first stage."""
        if not self.first:
            raise Stands(
                f"stage {self._stage} asks for `link.input`; only the first stage has tokens",
                "every-stage-is-the-first",
            )
        return self._inputs[k].clone()

    def receive_activation(self, k: int) -> Tensor:
        """Blocks until the stage before has sent the activation of micro-batch k."""
        self._take("before", "F", k)
        return self._inputs[k].clone()

    def receive_gradient(self, k: int) -> Tensor:
        """Blocks until the stage after has sent the gradient of micro-batch k."""
        self._take("after", "B", k)
        self._gradients_in.append(k)
        return self._gradients[k].clone()

    def send_activation(self, k: int, tensor: Tensor) -> _Send:
        """Begins to send to the stage after; `.wait()` of what comes back blocks until it has received."""
        return self._post("after", "F", k, tensor)

    def send_gradient(self, k: int, tensor: Tensor) -> _Send:
        """Begins to send to the stage before."""
        return self._post("before", "B", k, tensor)

    def loss(self, output: Tensor, k: int) -> Tensor:
        """The share of micro-batch k in the loss of the batch, on the last stage."""
        if not self.last:
            raise Stands(
                f"stage {self._stage} asks for `link.loss`; only the last stage has targets", "every-stage-has-a-loss"
            )
        self._losses.append(k)
        return (output - self._gradients[k]).square().sum() / 64

    def _neighbour(self, side: str) -> int:
        other = self._stage + (1 if side == "after" else -1)
        if not self._todo[side]:
            where = "after the last" if side == "after" else "before the first"
            raise Stands(
                f"stage {self._stage} wants to talk to stage {other}; there is none {where}",
                "every-stage-has-neighbours",
            )
        return other

    def _go_on(self, side: str) -> None:
        """The neighbour receives what has been sent to it, as far as its list comes."""
        todo, posted = self._todo[side], self._posted[side]
        while todo and todo[0][0] == "recv" and todo[0][1:] in posted:
            todo.pop(0)

    def _wanted(self, side: str) -> Pass | None:
        verb, what, k = self._todo[side][0]
        return (what, k) if verb == "recv" else None

    def _standing(self, side: str) -> str:
        verb, what, k = self._todo[side][0]
        thing = f"the {'activation' if what == 'F' else 'gradient'} of micro-batch {k}"
        if verb == "send":
            return f"waits until stage {self._stage} receives {thing}"
        return f"waits for {thing}"

    def _take(self, side: str, what: str, k: int) -> None:
        other = self._neighbour(side)
        self._go_on(side)
        todo = self._todo[side]
        if todo and todo[0] == ("send", what, k):
            todo.pop(0)
            return
        thing = f"the {'activation' if what == 'F' else 'gradient'} of micro-batch {k}"
        if ("send", what, k) not in todo:
            raise Stands(f"stage {self._stage} waits for {thing}, and stage {other} does not send it (again)")
        raise Stands(
            f"stage {self._stage} waits for {thing}, and stage {other} {self._standing(side)}",
            "any-order-will-do",
            self._wanted(side),
        )

    def _post(self, side: str, what: str, k: int, tensor: Any) -> _Send:
        other = self._neighbour(side)
        thing = f"the {'activation' if what == 'F' else 'gradient'} of micro-batch {k}"
        if tensor is None:
            raise Stands(
                f"{thing} that stage {self._stage} sends to stage {other} is None",
                "inputs-need-no-gradient" if what == "B" else "",
            )
        if not isinstance(tensor, Tensor):
            raise Stands(f"{thing} that stage {self._stage} sends is no tensor; it is a {type(tensor).__name__}")
        if (what, k) in self._posted[side]:
            raise Stands(f"stage {self._stage} sends {thing} twice")
        send = _Send(self, side, (what, k), tensor.detach())
        self._posted[side][what, k] = send
        return send

    def _wait(self, side: str, name: Pass) -> None:
        self._go_on(side)
        if any(entry[1:] == name for entry in self._todo[side]):
            other = self._stage + (1 if side == "after" else -1)
            thing = f"the {'activation' if name[0] == 'F' else 'gradient'} of micro-batch {name[1]}"
            text = f"stage {self._stage} waits until stage {other} has received {thing}, and stage {other}"
            raise Stands(f"{text} {self._standing(side)}", "every-send-is-waited-for-at-once", self._wanted(side))

    def _unsent(self) -> list[Pass]:
        """Sends whose end nobody waited for."""
        return [name for side in self._posted.values() for name, send in side.items() if not send._done]
