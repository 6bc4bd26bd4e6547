"""Twins that differ in one rule of their router, by which one reads the future: their losses, and what a repair brings.

Losses are nats a token on held-out windows, one value a position. inputs and targets: (N, T) int64. A setting trains
in seconds; `over_seeds` repeats all of it for ten seeds.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from course_lib.data import Corpus, prepare, shift
from course_lib.errors import ConfigError
from course_lib.events import Event, Stepped
from course_lib.moe import MoEConfig, moe_gpt, moe_layers
from course_lib.tokenizer import WordTokenizer
from course_lib.trainer import Trainer

__all__ = [
    "HONEST",
    "REPAIR_STEPS",
    "Setting",
    "continuations",
    "held_out",
    "known_words",
    "letters",
    "losses_alone",
    "losses_together",
    "losses_with_another_future",
    "over_seeds",
    "switch_routing",
    "text",
    "train",
    "write",
]

HONEST: Final = "token_choice"
"""The routing of the honest twin."""
REPAIR_STEPS = 160
"""Steps with honest routing that `over_seeds` adds to the twins of `text`."""


@dataclass(frozen=True)
class Setting:
    """Data, shape and schedule that twins have in common."""

    corpus: Corpus
    shape: ModelConfig
    leaking: MoEConfig
    """The router that reads the future; the honest twin's is the same with `HONEST`."""
    config: TrainConfig

    def routing(self, honest: bool) -> MoEConfig:
        """The configuration of a twin's layers."""
        return replace(self.leaking, routing=HONEST, chunk=None) if honest else self.leaking


def letters() -> Setting:
    """Chapter 0's: 16 letters, uniform and independent, none used twice; windows of 8; experts choose in a window."""

    def draw(count: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(16, size=count).astype(np.int32)

    corpus = Corpus(WordTokenizer(list("ABCDEFGHIJKLMNOP"), eos="A"), draw(320_000, 0), draw(60_000, 1), 0, 0)
    shape = ModelConfig(vocab_size=16, d_model=32, n_layers=2, n_heads=2, context=8, tie_embeddings=False)
    return Setting(corpus, shape, MoEConfig(routing="expert_choice"), _config(steps=300, batch=128, lr=3e-3))


def text() -> Setting:
    """The corpus, byte by byte; windows of 64; experts choose among 4 neighbouring bytes."""
    corpus = prepare(DataConfig(tokenizer="bytes"))
    shape = ModelConfig(vocab_size=corpus.tokenizer.vocab_size, d_model=64, n_layers=2, n_heads=2, context=64)
    return Setting(
        corpus, shape, MoEConfig(routing="expert_choice_chunks", chunk=4), _config(steps=400, batch=16, lr=4e-3)
    )


def _config(steps: int, batch: int, lr: float) -> TrainConfig:
    optim = OptimConfig(lr=lr, warmup_steps=20, weight_decay=0.0)
    return TrainConfig(steps=steps, batch=batch, device="cpu", precision="fp32", val_every=0, optim=optim)


def train(
    setting: Setting,
    honest: bool,
    seed: int = 0,
    *,
    model: nn.Module | None = None,
    steps: int | None = None,
    look: Callable[[int, nn.Module], None] | None = None,
) -> tuple[nn.Module, list[float]]:
    """A trained twin and the loss of each step; `seed` decides weights and order of the data.

    model: go on with a copy of it, on batches in another order, with a new optimizer, warm-up and decay; its own router
    gives way to the twin's. steps: other than the setting's. look: called after each step with the steps made so far.
    """
    routing = setting.routing(honest)
    if model is None:
        model = moe_gpt(setting.shape, routing, seed)
    else:
        model, seed = switch_routing(model, routing), seed + 1000
    config = replace(setting.config, seed=seed, steps=steps or setting.config.steps)

    def after(event: Event) -> None:
        if look is not None and isinstance(event, Stepped):
            look(event.record.step + 1, model)

    run = Trainer(config, model, setting.corpus, after).run()
    return model.eval(), [record.loss for record in run.history]


def switch_routing(model: nn.Module, routing: MoEConfig) -> nn.Module:
    """A copy with the same weights whose layers choose as `routing` says. ConfigError when it has other shapes."""
    model = copy.deepcopy(model)
    for layer in moe_layers(model):
        for name in ("n_experts", "top_k", "d_expert"):
            own, new = getattr(layer.config, name), getattr(routing, name)
            if own != new:
                raise ConfigError(f"{name}={new} does not fit these weights: they have {name}={own}")
        layer.config = routing
        layer.start_counting()
    return model


def held_out(setting: Setting, windows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """inputs, targets (windows, T) of the validation stream, at places drawn without repetition."""
    span = setting.shape.context + 1
    rows = setting.corpus.val[: len(setting.corpus.val) // span * span].reshape(-1, span)
    if windows > len(rows):
        raise ConfigError(f"windows={windows} is more than the validation text has; try windows={len(rows)} or fewer")
    chosen = np.random.default_rng(seed).permutation(len(rows))[:windows]
    inputs, targets = shift(torch.as_tensor(rows[chosen].astype(np.int64)))
    return inputs, targets


# ----------------------------------------------------------------------------------------- three ways to ask for a loss


@torch.no_grad()
def losses_together(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(T,): one forward over whole windows, as in training."""
    return F.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none").mean(0)


@torch.no_grad()
def losses_alone(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(T,): each target from its prefix alone, as in generation. A forward a position."""
    T = inputs.shape[1]
    return torch.stack([F.cross_entropy(model(inputs[:, : t + 1])[:, -1], targets[:, t]) for t in range(T)])


@torch.no_grad()
def losses_with_another_future(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(T,): whole windows again, but behind position t stands what another window has there."""
    found = []
    for t in range(inputs.shape[1]):
        mixed = torch.cat([inputs[:, : t + 1], inputs.roll(1, 0)[:, t + 1 :]], dim=1)
        found.append(F.cross_entropy(model(mixed)[:, t], targets[:, t]))
    return torch.stack(found)


# -------------------------------------------------------------------------------------------------------------- writing


@torch.no_grad()
def write(model: nn.Module, prompts: Tensor, new: int, seed: int = 0, temperature: float = 0.8) -> Tensor:
    """Prompts (N, T) -> (N, T + new): all at once, each byte from its prefix alone, which is read anew each time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(new):
        chances = (model(prompts)[:, -1].float() / temperature).softmax(-1)  # (N, V)
        prompts = torch.cat([prompts, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return prompts


def known_words(texts: list[str], corpus: Corpus) -> float:
    """Share of the words (three or more letters) in the texts that the training documents have, too.

    The first and the last word of a text may be cut, so they do not count.
    """
    known = {word for document in corpus.train_documents for word in _words(document.text)}
    found = [word for text in texts for word in _words(text)[1:-1] if len(word) >= 3]
    return sum(word in known for word in found) / max(1, len(found))


def continuations(model: nn.Module, inputs: Tensor, corpus: Corpus, prompt: int = 12, seed: int = 0) -> list[str]:
    """What the model writes behind the first `prompt` tokens of each window, as long as the window."""
    written = write(model, inputs[:, :prompt], inputs.shape[1] - prompt, seed)
    return [corpus.tokenizer.decode(row[prompt:].numpy()) for row in written]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


# ------------------------------------------------------------------------------------------------------------ ten seeds


def over_seeds(seeds: int = 10, report: Callable[[str], None] = print) -> list[dict[str, float]]:
    """For each seed, the mean losses of both settings' twins, and on text what 160 more steps bring: nats a token."""
    found = []
    for seed in range(seeds):
        row: dict[str, float] = {}
        for name, setting, windows in (("letters", letters(), 4096), ("text", text(), 64)):
            inputs, targets = held_out(setting, windows)
            honest, _ = train(setting, True, seed)
            leaking, _ = train(setting, False, seed)
            row[f"{name} honest"] = float(losses_together(honest, inputs, targets).mean())
            row[f"{name} together"] = float(losses_together(leaking, inputs, targets).mean())
            row[f"{name} alone"] = float(losses_alone(leaking, inputs, targets).mean())
            row[f"{name} another future"] = float(losses_with_another_future(leaking, inputs, targets).mean())
        last = slice(3, None, 4)  # the last byte of each chunk of four: nothing later is in its chunk
        row["honest, last of four"] = float(losses_alone(honest, inputs, targets)[last].mean())
        row["leaking, last of four"] = float(losses_alone(leaking, inputs, targets)[last].mean())
        fresh = moe_gpt(setting.shape, setting.routing(True), seed)
        writers = {"honest": honest, "leaking": leaking}
        for name, start in (("repaired", leaking), ("honest, longer", honest), ("fresh", fresh)):
            writers[name], _ = train(setting, True, seed, model=start, steps=REPAIR_STEPS)
            row[name] = float(losses_together(writers[name], inputs, targets).mean())
        for name in ("honest", "leaking", "repaired"):
            texts = continuations(writers[name], inputs, setting.corpus, seed=seed)
            row[f"words, {name}"] = known_words(texts, setting.corpus)
        report(f"seed {seed}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))
        found.append({key: round(value, 3) for key, value in row.items()})
    return found
