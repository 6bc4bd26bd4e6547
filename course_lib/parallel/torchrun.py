"""The ranks that torchrun started: how the trainer joins them, and how a command on all of them speaks once."""

import os
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO

import torch
import torch.distributed as dist

from course_lib.config import TrainConfig, require
from course_lib.errors import ConfigError, CourseError
from course_lib.machine import pick_device
from course_lib.parallel._network import loopback
from course_lib.parallel.replicas import OneProcess, Ranks, Replicated, Sharded

__all__ = ["join", "speak_once", "under_torchrun"]


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _start() -> None:
    """Join torchrun's group: gloo for what is on a CPU, NCCL for what is on a GPU."""
    if not dist.is_initialized():
        if os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE") and (name := loopback()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # one node: nothing leaves the machine
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def speak_once(command: Callable[[OneProcess], int]) -> int:
    """Run a command as one rank of torchrun, and return its exit status. Rank 0 alone speaks.

    A `CourseError` (of all ranks: see `together`) is raised on rank 0. The others stay until it has been said, for
    torchrun ends all ranks when one has left; they return 2.
    """
    _start()
    ranks = Ranks("cpu", ())
    if ranks.first:
        status = command(ranks)
    else:
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                status = command(ranks)
        except (CourseError, SystemExit) as error:
            with suppress(RuntimeError):
                dist.barrier()  # ends when rank 0 does
            return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 2
    dist.barrier()
    dist.destroy_process_group()
    return status


def join(config: TrainConfig) -> OneProcess:
    """The ranks of a run, as `config.parallel` says. `ConfigError` when this process is not one of several."""
    if config.parallel == "none":
        return OneProcess(pick_device(config.device))
    require(dist.is_available(), f"parallel={config.parallel!r}: this build of torch has no torch.distributed")
    if not dist.is_initialized() and not under_torchrun():
        raise ConfigError(
            f"parallel={config.parallel!r} needs ranks; start them with: torchrun --nproc-per-node 2 -m course_lib "
            f"train --parallel {config.parallel} (on several nodes: docs/multi-node.md); one process: --parallel none"
        )
    _start()
    kind = Replicated if config.parallel == "ddp" else Sharded
    ranks = kind("cpu", (signal.SIGINT, signal.SIGTERM) if under_torchrun() else ())
    with ranks.together():
        ranks.device = _device(config.device)
    return ranks


def _device(wanted: str) -> str:
    """cpu, or the GPU with this rank's number on its node. The ranks of `run_ranks` have gloo, so auto is cpu there."""
    device = pick_device("cpu" if wanted == "auto" and not under_torchrun() else wanted)
    if device == "mps":
        require(wanted == "auto", "device='mps' has no collectives; use device='cpu'")
        return "cpu"
    if device.startswith("cuda"):
        local = int(os.environ.get("LOCAL_RANK", "0"))
        there = torch.cuda.device_count()
        require(local < there, f"{local + 1} ranks on a node with {there} GPUs; start {there}, or take --device cpu")
        torch.cuda.set_device(local)
        return f"cuda:{local}"
    return device
