"""A pipeline by sends and receives: the loop that runs a rank's actions, whatever the schedule.

It receives what an action needs, computes, and sends what comes out. Receives block, sends do not.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.parallel._pipeline_later import Later
from course_lib.parallel._pipeline_record import Clock
from course_lib.parallel.schedule import PipelineTimeline
from course_lib.parallel.strategy import rank_and_world

__all__ = ["Mail", "gradient_of", "run_actions"]


class Mail:
    """Tensors from stage to stage: over the network, or handed over where both are on this rank."""

    def __init__(self, home: Sequence[int], micro_batches: int) -> None:
        self.home, self.micro_batches = home, micro_batches
        self.rank = rank_and_world()[0]
        self.here: dict[tuple[int, int, int], Tensor] = {}
        self.sent: dict[tuple[int, int, int], tuple[Any, Tensor]] = {}

    def tag(self, source: int, to: int, k: int) -> int:
        """A number of its own for each message of a step, so that none is taken for another.

        gloo goes by it. NCCL has no tags and takes messages in the order in which they were sent.
        """
        return 2 * (min(source, to) * self.micro_batches + k) + (to < source)

    def send(self, tensor: Tensor, source: int, to: int, k: int) -> None:
        """Goes on at once: the tensor is on its way until it is received, and must not change."""
        if self.home[to] == self.rank:
            self.here[source, to, k] = tensor
        else:
            tensor = tensor.contiguous()
            work = dist.isend(tensor, self.home[to], tag=self.tag(source, to, k))
            self.sent[source, to, k] = work, tensor

    def receive(self, empty: Callable[[], Tensor], source: int, to: int, k: int) -> Tensor:
        """Waits until it is there."""
        if self.home[source] == self.rank:
            return self.here.pop((source, to, k))
        tensor = empty()
        dist.recv(tensor, self.home[source], tag=self.tag(source, to, k))
        if (to, source, k) in self.sent:  # a gradient answers an activation: that has arrived, and can go
            self.sent.pop((to, source, k))[0].wait()
        return tensor

    def finish(self) -> None:
        """Until everything sent has arrived."""
        for work, _ in self.sent.values():
            work.wait()
        self.sent.clear()


def run_actions(
    plan: PipelineTimeline,
    stages: Mapping[int, Any],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    clock: Clock | None = None,
) -> Tensor:
    """Run this rank's actions of a plan, one that `schedule.simulate` or `schedule.run` has found to be without error.

    stages: those of this rank, by stage id. All but the first have `arrives(tokens)`, which makes the empty tensor to
    receive their input in. inputs, targets: of each micro-batch, on every rank. Gradients are added to the parameters'
    `.grad`. Gives the sum of the losses computed here, (): 0 unless this rank has the last stage.
    """
    clock = clock or Clock()
    home, mine = plan.grid.homes, plan.actions[rank_and_world()[0]]
    last = len(home) - 1
    cut = {(action.stage, action.microbatch) for action in mine if action.kind == "I"}
    held: dict[tuple[int, int], tuple[Tensor, Tensor, Later | None]] = {}  # of forwards that wait for their backward
    later: dict[tuple[int, int], Later] = {}  # of I that wait for their W
    mail, loss = Mail(home, len(inputs)), torch.zeros(())
    for action in mine:
        _, s, k, kind, _ = action
        clock.asks()
        if kind == "F":
            x = inputs[k]
            if s > 0:
                x = mail.receive(partial(stages[s].arrives, x), s - 1, s, k).requires_grad_()
            clock.begins()
            postponed = Later() if (s, k) in cut else None
            with clock.follow(action, stages[s], postponed), postponed or nullcontext():
                y = stages[s](x)
                if s == last:
                    y = loss_fn(y, targets[k])
                    loss += y.detach()
            clock.ends(action)
            if s < last:
                mail.send(y.detach(), s, s + 1, k)
            held[s, k] = x, y, postponed
        elif kind == "W":
            clock.begins()
            later.pop((s, k)).run()
            clock.ends(action)
        else:
            x, y, postponed = held.pop((s, k))
            dy = None if s == last else mail.receive(partial(torch.empty_like, y), s + 1, s, k)
            clock.begins()
            y.backward(dy)
            clock.ends(action)
            if s > 0:
                mail.send(gradient_of(x), s, s - 1, k)
            if postponed is not None:
                later[s, k] = postponed
    mail.finish()
    return loss


def gradient_of(tensor: Tensor) -> Tensor:
    """What backward has left in `.grad`."""
    if tensor.grad is None:
        raise RuntimeError("no gradient has come back: the loss does not depend on this tensor")
    return tensor.grad
