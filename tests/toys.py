"""Small corpora and runs that train in milliseconds, for the trainer's tests."""

from typing import Any

import numpy as np

from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig
from course_lib.data import Corpus
from course_lib.tokenizer import BytesTokenizer

SENTENCES = ("the cat sat on the mat. ", "a dog ran to the door! ", "rain fell; then it stopped. ")


def toy_corpus(size: int = 6000, seed: int = 0) -> Corpus:
    """Random sentences as bytes: easy to predict, but not trivial."""
    rng = np.random.default_rng(seed)
    text = "".join(SENTENCES[i] for i in rng.integers(len(SENTENCES), size=size // 24))
    tokenizer = BytesTokenizer()
    ids = np.concatenate([[tokenizer.eos], tokenizer.encode(text), [tokenizer.eos]]).astype(np.int32)
    cut = len(ids) * 9 // 10
    return Corpus(tokenizer, ids[:cut], ids[cut:], train_bytes=cut - 1, val_bytes=len(ids) - cut - 2)


def toy_config(**changes: Any) -> TrainConfig:
    """Two narrow layers, 30 steps."""
    model = {"d_model": 16, "n_layers": 2, "n_heads": 2, "context": 16, **changes.pop("model", {})}
    return TrainConfig(
        **{
            "preset": "mini",
            "steps": 30,
            "batch": 8,
            "precision": "fp32",
            "val_every": 0,
            "data": DataConfig(tokenizer="bytes"),
            "optim": OptimConfig(lr=1e-2, warmup_steps=5),
            "model": ModelOverrides(**model),
            **changes,
        }
    )
