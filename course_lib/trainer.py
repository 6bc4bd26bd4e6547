"""The trainer: runs the nine parts of a step in the precision that was asked for, validates, samples and saves."""

import math
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import resume
from course_lib.amp import MasterWeights, precision_policy
from course_lib.checkpoint import RandomState, look
from course_lib.config import ModelConfig, TrainConfig, require, stream_seed
from course_lib.data import IGNORE, BatchStream, Corpus, eval_batches
from course_lib.errors import ConfigError, CourseError
from course_lib.events import (
    Finished,
    OnEvent,
    Resumed,
    RunLog,
    Sampled,
    Saved,
    Started,
    Stepped,
    StepRecord,
    StopSignal,
    TrainResult,
    Validated,
    Validation,
)
from course_lib.files import Files
from course_lib.machine import compile_problem, keep_memory, set_threads
from course_lib.model import GPT, generate
from course_lib.optim import clip_by_global_norm, make_optimizer, make_scheduler
from course_lib.parallel.torchrun import join
from course_lib.recompute import recompute_blocks
from course_lib.resume import saved_config
from course_lib.step import Batch, StepParts, training_step

__all__ = ["Batch", "StepParts", "Trainer", "saved_config", "train_rank", "training_step"]


LOWEST_SCALE = 2.0**-100  # below 2^-128 GradScaler's 1 / scale is infinite, and it steps with NaN unseen


class Trainer:
    """Trains any `nn.Module` that maps tokens (b, T) to logits (b, T, V).

    model: None makes the configuration's GPT. corpus: None prepares its text. on_event: called with each
    event of `course_lib.events`. `ConfigError` before the first step for what cannot run.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module | None = None,
        corpus: Corpus | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        set_threads()
        keep_memory()
        self.config, self.on_event = config, on_event
        self.ranks = ranks = join(config)
        """The processes that train this model together: one, or those of torchrun."""
        micro_batches = ranks.micro_batches(config)
        self.device = ranks.device
        self.policy = ranks.from_first(lambda: precision_policy(self.device, config.precision, config.weights))
        found = None if config.resume is None else ranks.from_first(partial(look, config.resume))
        with ranks.together():
            self.corpus = resume.prepared(config, found) if corpus is None else corpus
        resume.require_same_run(self)
        tokenizer = self.corpus.tokenizer
        shape = config.model_config(tokenizer.vocab_size)
        self.model = (GPT(shape, config.seed) if model is None else model).to(self.device)
        if config.activation_checkpointing != "none":
            recompute_blocks(self.model, config.activation_checkpointing, config.recompute_every)
        own = getattr(self.model, "config", None)
        own = own if isinstance(own, ModelConfig) else None
        require(
            own is None or own.vocab_size >= tokenizer.vocab_size,
            f"the model's vocab_size={own and own.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size}; "
            f"set vocab_size={tokenizer.vocab_size}",
        )
        self.context = own.context if own else shape.context
        """Tokens per sequence."""
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.model_class = type(self.model).__name__
        if ranks.sharded:  # its FP32 shards are the masters
            self._call = ranks.wrap(self.model, config.weights)
        turned = config.weights == "bf16" and not ranks.sharded
        self.masters = MasterWeights(self.model, torch.bfloat16 if turned else None)
        self.trained = self.masters.trained()
        """What the optimizer updates, by name: the parameters, or the FP32 masters of those in 16 bits."""
        self.optimizer = make_optimizer(self.trained.values(), config.optim, self.device)
        self.scheduler = make_scheduler(self.optimizer, config.optim, config.steps)
        self.scaler = self.policy.scaler()
        """The loss scaler; None unless the precision is fp16."""
        self.skipped = False
        """The last update was left out, because the scaler found a gradient that is not finite."""
        self._scale: float | None = None
        self.stream = BatchStream(self.corpus.train, self.context, config.batch, config.seed)
        self.random = self.random_stream()
        self.resumed: Resumed | None = None
        """What a resume found; None for a run from its start."""
        self.files = Files()
        """Through which a checkpoint is written."""
        problem = compile_problem() if config.compile else None
        if problem:
            raise ConfigError(problem)
        if config.compile:
            self._call = torch.compile(self.model)
        elif not ranks.sharded:
            self._call = ranks.wrap(self.model, config.weights)
        self._global: tuple[int, np.ndarray, np.ndarray, int] | None = None
        self._passes = 0
        """Forward passes of this step so far."""
        self._interrupt = StopSignal()
        self.parts = StepParts(
            batch=self._batch,
            input_ids=self._input_ids,
            forward=self._forward,
            loss=self._loss,
            backward=self._backward,
            clip=self._clip,
            optimizer=self._optimizer,
            scheduler=self._scheduler,
            record=self._record,
            micro_batches=micro_batches,
        )
        if found is not None:
            with ranks.together():
                self.resumed = resume.resume(self, found)

    @property
    def step(self) -> int:
        """Optimizer steps done; the data cursor is the one place that knows."""
        return self.stream.step

    # The nine parts.

    def _batch(self, step: int, micro: int) -> Batch:
        if self._global is None or self._global[0] != step:
            inputs, targets = self.stream.global_batch(step)
            self._global = step, inputs, targets, int((targets != IGNORE).sum())
        _, inputs, targets, valid = self._global
        return Batch(*self.ranks.micro_batch(inputs, targets, micro, self.parts.micro_batches), valid)

    def _input_ids(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(batch.inputs).to(self.device), torch.from_numpy(batch.targets).to(self.device)

    def _forward(self, inputs: Tensor) -> Tensor:
        self._passes += 1
        last = self._passes >= self.parts.micro_batches
        with self.ranks.forward(last), self.random.use(), self.policy.autocast():
            return self._call(inputs)

    def _loss(self, logits: Tensor, targets: Tensor, valid: int) -> Tensor:
        total = F.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
        )  # (b T, V), (b T,) -> ()
        return total / max(valid, 1)

    def _backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def _clip(self) -> Tensor:
        self.masters.take_gradients()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)  # first: the limit is for the true gradients
        return clip_by_global_norm(self.trained.values(), self.config.optim.clip_norm, self.ranks.total_norm)

    def _optimizer(self) -> None:
        self.masters.take_gradients()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self._scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            scale = self.scaler.get_scale()
            self.skipped = scale < self._scale  # only a skipped step lowers it
            if scale < LOWEST_SCALE:
                raise CourseError(
                    f"step {self.step}: the loss scale has fallen to {scale:.0e}, for every step was skipped: the loss "
                    "or a gradient is not finite at any scale; find out why in precision='fp32'"
                )
        if not self.skipped:
            self.masters.copy_back()
        self.optimizer.zero_grad(set_to_none=True)
        self._passes = 0

    def _scheduler(self) -> float:
        used = float(self.scheduler.get_last_lr()[0])
        if not self.skipped:
            self.scheduler.step()
        return used

    def _record(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float, tokens: int, seconds: float) -> StepRecord:
        self.stream.step = step + 1
        total = self.ranks.global_loss(loss, self._interrupt.set)
        return StepRecord(step, total, float(grad_norm), lr, tokens, seconds, self._scale, self.skipped)

    def random_stream(self, step: int = 0) -> RandomState:
        """A stream for dropout, of this rank alone, from `step` on: ranks must not drop the same activations."""
        rank, world = self.ranks.rank, self.ranks.world_size
        mine = "" if world == 1 else f", rank {rank} of {world}"
        since = "" if step == 0 else f", from step {step}"
        return RandomState(self.config.seed, f"training{mine}{since}", self.device)

    # A run.

    def run(self, steps: int | None = None) -> TrainResult:
        """Train `steps` more steps, at most to the end of the configured run (None: all of them).

        Ctrl-C ends it after the current step, with a checkpoint if there is an `out`; a second one stops at once.
        Every rank returns the result; rank 0 alone calls `on_event` and writes metrics.jsonl.
        """
        config, ranks = self.config, self.ranks
        stop = config.steps if steps is None else min(config.steps, self.step + steps)
        self.model.train()
        ranks.new_run()
        with ExitStack() as stack:
            with ranks.together():
                log = RunLog(self.on_event, config.out) if ranks.first else RunLog()
                stack.enter_context(log)
            self._interrupt = interrupt = stack.enter_context(StopSignal(ranks.signals))
            log(Started(self.step, stop, self.parameters, self.device, self.policy.name, self.policy.reason))
            if self.resumed is not None and self.resumed.step == self.step:
                log(self.resumed)
            while self.step < stop and not ranks.stopping(interrupt.set):
                record = training_step(self.parts, self.step)
                self.stream.step = record.step + 1
                log(Stepped(record))
                if _due(self.step, config.val_every) and self.step < stop:
                    log(Validated(self.step, self.validate()))
                if config.out is not None and _due(self.step, config.checkpoint_every) and self.step < stop:
                    log(Saved(self.step, self.save()))
            stopped = ranks.stopping(interrupt.set)
            if not stopped:
                log(Validated(self.step, self.validate()))
                log(Sampled(self.step, self.sample()))
            if config.out is not None:
                log(Saved(self.step, self.save()))
            result = log.result(self.step, self.parameters, self.device, self.policy.name, stopped)
            log(Finished(result))
        return result

    @torch.no_grad()
    def validate(self) -> Validation:
        """Score every token of the validation stream once, in windows of `context` tokens side by side.

        In FP32; a model whose weights are in 16 bits runs as it does in training. Called on every rank: each scores
        its share, and all return the same.
        """
        was_training = self.model.training
        self.model.eval()
        total, count = 0.0, 0
        for inputs, targets in eval_batches(self.corpus.val, self.context, 64 * self.ranks.world_size):
            ids, wanted = self._input_ids(Batch(*self.ranks.share(inputs, targets), 1))
            with self._scoring():
                logits = self.model(ids)
            total += float(self._loss(logits, wanted, 1))
            count += int((targets != IGNORE).sum())
        self.model.train(was_training)
        self.ranks.drop_gathered()
        total = self.ranks.sum(total)
        size = self.corpus.val_bytes
        return Validation(total / count, total / math.log(2) / size if size else None, count)

    def sample(
        self, prompt: str = "", tokens: int = 120, temperature: float = 0.8, top_k: int | None = None, seed: int = 0
    ) -> str:
        """The prompt and `tokens` sampled tokens, as text; "" begins a document. Same seed and weights, same text.

        Called on every rank.
        """
        tokenizer = self.corpus.tokenizer
        start = torch.tensor([tokenizer.eos, *tokenizer.encode(prompt).tolist()], device=self.device)
        generator = torch.Generator(self.device).manual_seed(stream_seed(seed, "sample"))
        with self._scoring():
            ids = generate(self.model, start, tokens, self.context, temperature, top_k, generator)
        self.ranks.drop_gathered()
        return tokenizer.decode(ids[1:].cpu().numpy())

    def _scoring(self) -> AbstractContextManager[object]:
        return self.policy.autocast() if self.masters.masters or self.config.weights == "bf16" else nullcontext()

    # Checkpoints.

    def save(self, folder: Path | None = None) -> Path:
        """Write a checkpoint to `folder` (None: `out`/step-N, or checkpoints/step-N), crash-safe, and return it.

        Called on every rank.
        """
        if folder is None:
            folder = (self.config.out or Path("checkpoints")) / f"step-{self.step:06d}"
        return resume.save(self, Path(folder))

    @classmethod
    def resume(
        cls,
        folder: Path,
        model: nn.Module | None = None,
        corpus: Corpus | None = None,
        on_event: OnEvent | None = None,
        **changes: Any,
    ) -> "Trainer":
        """The trainer of a checkpoint (or of the newest one in an `out` folder), to go on as if never stopped.

        A model or corpus of your own has to be given again. `changes` replace fields of the saved configuration.
        """
        return cls(saved_config(folder, **changes), model, corpus, on_event)


def train_rank(config: TrainConfig, corpus: Corpus | None = None, steps: int | None = None) -> TrainResult:
    """What each rank runs: `run_ranks(train_rank, 2, TrainConfig(parallel="ddp"))[0]` is the result of a run on two.

    Every rank is given the same arguments. corpus: None prepares the configuration's text on each of them. steps: at
    most so many more; None: to the end. The same call under torchrun, or, with parallel="none", in one process.
    """
    return Trainer(config, corpus=corpus).run(steps)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
