"""A run that was stopped and resumed is, bit by bit, the run that never stopped: every combination, and every part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_checkpoint import CORPUS, train
from toys import toy_config, toy_corpus

from course_lib import checkpoint
from course_lib.config import DataConfig, TrainConfig
from course_lib.data import Corpus, load_text
from course_lib.errors import ConfigError
from course_lib.resume import PARTS, restore
from course_lib.step import training_step
from course_lib.trainer import Trainer

EPOCHS = {"mid-epoch": 60.0, "over the end of an epoch": 24.5, "at the end of an epoch": 20.0}
"""Steps of an epoch, for a run that is saved at step 20 and at step 26 and ends at 30."""

BATCH, CONTEXT = 4, 8


def small(**changes: Any) -> TrainConfig:
    """One narrow layer: what is tested is the state, not the model."""
    model = {"d_model": 8, "n_layers": 2, "n_heads": 1, "context": CONTEXT, "d_ff": 16, **changes.pop("model", {})}
    return toy_config(batch=BATCH, model=model, **changes)


def corpus_of(epoch: float) -> Corpus:
    """A corpus of which an epoch takes so many steps."""
    whole = toy_corpus(6000)
    tokens = whole.train[: int(epoch * BATCH) * CONTEXT + CONTEXT]
    return Corpus(whole.tokenizer, tokens, whole.val[:200], train_bytes=len(tokens), val_bytes=199)


CORPORA = {name: corpus_of(epoch) for name, epoch in EPOCHS.items()}


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Everything that decides how a run goes on. Tensors are copies."""
    out: dict[str, Any] = {f"weight {name}": p for name, p in trainer.model.state_dict().items()}
    out |= {f"master {name}": p for name, p in trainer.masters.state_dict().items()}
    for number, entries in trainer.optimizer.state_dict()["state"].items():
        out |= {f"optimizer {number} {key}": value for key, value in entries.items()}
    out |= {f"random {name}": state for name, state in trainer.random.states.items()}
    out = {name: value.clone() for name, value in out.items()}
    out["groups"] = trainer.optimizer.state_dict()["param_groups"]
    out["scheduler"] = {k: v for k, v in trainer.scheduler.state_dict().items() if k != "lr_lambdas"}
    out["scaler"] = None if trainer.scaler is None else trainer.scaler.state_dict()
    out["cursor"] = trainer.stream.state_dict()
    return out


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Names of what is not the same, tensors bit by bit."""
    both = first.keys() & second.keys()
    return [
        *sorted(first.keys() ^ second.keys()),
        *(
            name
            for name, value in first.items()
            if name in both
            and not (torch.equal(value, second[name]) if isinstance(value, torch.Tensor) else value == second[name])
        ),
    ]


def losses(trainer: Trainer, steps: int) -> list[float]:
    """Train on; the loss of each step."""
    trainer.model.train()
    return [training_step(trainer.parts, trainer.step).loss for _ in range(steps)]


PRECISIONS: dict[str, dict[str, str]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16 weights": {"precision": "bf16", "weights": "bf16"},
}


def settings(precision: str, accumulation: int, dropout: float, recompute: str) -> dict[str, Any]:
    return {
        **PRECISIONS[precision],
        "micro_batch": BATCH // accumulation,
        "model": {"dropout": dropout},
        "activation_checkpointing": recompute,
    }


def twenty_and_ten(way: dict[str, Any], corpus: Corpus, folder: Path) -> None:
    """Stopped at 20 and again at 26, in trainers of their own, against a run that only writes checkpoints there."""
    straight = Trainer(small(**way), corpus=corpus)
    wanted = losses(straight, 20)
    first, at_20 = straight.save(folder / "a"), state_of(straight)
    wanted += losses(straight, 10)
    torch.rand(3)  # the global stream is somewhere else by now
    resumed = Trainer.resume(first, corpus=corpus)
    assert resumed.step == 20 and differing(state_of(resumed), at_20) == []
    assert losses(resumed, 6) == wanted[20:26]
    again = Trainer.resume(resumed.save(folder / "b"), corpus=corpus)
    assert losses(resumed, 4) == losses(again, 4) == wanted[26:]
    assert differing(state_of(resumed), state_of(straight)) == []
    assert differing(state_of(again), state_of(straight)) == []


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "all"])
@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["", "dropout"])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_twenty_steps_and_ten_are_thirty(
    precision: str, accumulation: int, dropout: float, recompute: str, tmp_path: Path
) -> None:
    """In the middle of an epoch, over its end and right at it; resumed once, and twice."""
    for name, corpus in CORPORA.items():
        twenty_and_ten(settings(precision, accumulation, dropout, recompute), corpus, tmp_path / name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_everything_at_once(precision: str, tmp_path: Path) -> None:
    """The hardest of the combinations above, for the fast tests."""
    way = settings(precision, 4, 0.1, "keep_attention")
    twenty_and_ten(way, CORPORA["over the end of an epoch"], tmp_path)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_save_changes_nothing(precision: str, tmp_path: Path) -> None:
    """Thirty steps without a checkpoint are the thirty that wrote one at 20."""
    way, corpus = settings(precision, 4, 0.1, "none"), CORPORA["mid-epoch"]
    plain, saving = Trainer(small(**way), corpus=corpus), Trainer(small(**way), corpus=corpus)
    wanted, found = losses(plain, 30), losses(saving, 20)
    saving.save(tmp_path / "a")
    assert found + losses(saving, 10) == wanted and differing(state_of(plain), state_of(saving)) == []


def test_the_corpora_are_what_they_are_called() -> None:
    epochs = {name: Trainer(small(), corpus=corpus).stream.windows / BATCH for name, corpus in CORPORA.items()}
    assert epochs["mid-epoch"] > 30 and 20 < epochs["over the end of an epoch"] < 26
    assert epochs["over the end of an epoch"] % 1 != 0  # one batch holds the end of an epoch and the start of the next
    assert epochs["at the end of an epoch"] == 20


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_needed(part: str, tmp_path: Path) -> None:
    """Leave one part out of the restoring: the state is another one, and the thirty steps come out different."""
    way = {"precision": "fp16", "model": {"dropout": 0.1}}
    straight = train(None, 30, **way)
    first = train(tmp_path / "a", 20, **way)
    resumed = Trainer(toy_config(**way), corpus=CORPUS)
    restore(resumed, tmp_path / "a", [one for one in PARTS if one != part])
    assert differing(state_of(resumed), state_of(first)) != []
    if part != "scaler":  # its own test is in test_drill: nothing shows before an overflow
        resumed.run(10)
        assert any(name.startswith("weight") for name in differing(state_of(resumed), state_of(straight)))


def test_a_part_that_does_not_exist(tmp_path: Path) -> None:
    trainer = train(tmp_path / "a", 1)
    with pytest.raises(ConfigError, match="there are: weights, optimizer"):
        restore(trainer, tmp_path / "a", ["weight"])


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_another_number_of_threads_goes_on(first: int, then: int, tmp_path: Path) -> None:
    """Said, not refused. (At this size the bits are even the same; nobody promises that.)"""
    before = torch.get_num_threads()
    try:
        trainer = Trainer(toy_config(), corpus=CORPUS)
        torch.set_num_threads(first)
        trainer.run(20)
        trainer.save(tmp_path / "a")
        torch.set_num_threads(then)
        resumed = Trainer.resume(tmp_path / "a", corpus=CORPUS)
        here = torch.get_num_threads()
        assert resumed.resumed is not None
        expected = () if here == first else (f"machine.threads was {first}, is {here}",)
        assert resumed.resumed.differs == expected
        assert resumed.run().steps == 30
    finally:
        torch.set_num_threads(before)


def test_the_tokenizer_comes_from_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, not learned again: another version of its library could learn another one."""
    text = tmp_path / "text.txt"
    lines = "\n\n".join(f"Line {i}: " + "the cat sat on the mat. " * (i % 7 + 3) for i in range(90))
    text.write_text(lines, encoding="utf-8", newline="\n")
    assert len(load_text(text)) > 1
    config = toy_config(data=DataConfig(text=text, vocab_size=300), out=tmp_path / "out")
    trainer = Trainer(config)
    trainer.run(3)

    def never(*_: object) -> None:
        raise AssertionError("a tokenizer was trained")

    monkeypatch.setattr("course_lib.tokenizer.BPETokenizer.train", never)
    resumed = Trainer.resume(tmp_path / "out")
    assert resumed.step == 3 and resumed.config.out == tmp_path / "out"
    assert np.array_equal(resumed.corpus.train, trainer.corpus.train)
    assert resumed.corpus.tokenizer.decode(resumed.corpus.val) == trainer.corpus.tokenizer.decode(trainer.corpus.val)
    assert differing(state_of(resumed), state_of(trainer)) == []
    assert checkpoint.find(tmp_path / "out").name == "step-000003"
