"""Configurations: what cannot run says which field and a value that works, and that value works."""

from pathlib import Path
from typing import Any

import pytest

from course_lib.config import (
    PRESETS,
    DataConfig,
    ModelConfig,
    ModelOverrides,
    OptimConfig,
    TrainConfig,
    from_dict,
    preset,
    stream_seed,
    to_dict,
)
from course_lib.errors import ConfigError
from course_lib.planning.formulas import model_params

BAD: list[tuple[Any, dict[str, Any], str, dict[str, Any]]] = [
    (ModelConfig, {"d_model": 130}, "d_model=128", {"d_model": 128}),
    (ModelConfig, {"d_model": 12, "n_heads": 4}, "d_model=16", {"d_model": 16, "n_heads": 4}),
    (ModelConfig, {"n_kv_heads": 3}, "n_kv_heads=1", {"n_kv_heads": 1}),
    (ModelConfig, {"n_layers": 0}, "n_layers=0", {"n_layers": 1}),
    (ModelConfig, {"dropout": 1.0}, "dropout=0.1", {"dropout": 0.1}),
    (ModelConfig, {"norm_eps": 0.0}, "norm_eps=1e-5", {"norm_eps": 1e-5}),
    (DataConfig, {"tokenizer": "byte"}, "bytes", {"tokenizer": "bytes"}),
    (DataConfig, {"vocab_size": 100}, "vocab_size=1024", {"vocab_size": 1024}),
    (DataConfig, {"val_fraction": 0.0}, "val_fraction=0.1", {"val_fraction": 0.1}),
    (OptimConfig, {"lr": 0.0}, "lr=4e-3", {"lr": 4e-3}),
    (OptimConfig, {"betas": (0.9, 1.0)}, "0.9 0.95", {"betas": (0.9, 0.95)}),
    (OptimConfig, {"clip_norm": 0.0}, "clip_norm=1.0", {"clip_norm": 1.0}),
    (TrainConfig, {"micro_batch": 4}, "micro_batch=3", {"micro_batch": 3}),
    (TrainConfig, {"steps": 0}, "steps=0", {"steps": 1}),
    (
        TrainConfig,
        {"steps": 40, "optim": OptimConfig(warmup_steps=50)},
        "warmup_steps=4",
        {"steps": 40, "optim": OptimConfig(warmup_steps=4)},
    ),
    (TrainConfig, {"precision": "fp64"}, "fp32", {"precision": "fp32"}),
    (TrainConfig, {"preset": "tinny"}, "'tiny'", {"preset": "tiny"}),
    (
        TrainConfig,
        {"model": ModelOverrides(d_model=100, n_heads=8)},
        "d_model=96",
        {"model": ModelOverrides(d_model=96, n_heads=8)},
    ),
]


@pytest.mark.parametrize(
    ("kind", "bad", "says", "good"), BAD, ids=[f"{k.__name__}-{'-'.join(b)}" for k, b, _, _ in BAD]
)
def test_a_bad_value_is_one_line_that_names_a_value_that_works(
    kind: Any, bad: dict[str, Any], says: str, good: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**bad)
    message = str(caught.value)
    assert says in message and "\n" not in message
    kind(**good)


def test_presets_go_from_about_one_to_about_ten_million_parameters() -> None:
    sizes = [sum(model_params(config).values()) for config in PRESETS.values()]
    assert sizes == sorted(sizes)
    assert 0.8e6 < sizes[0] < 1.05e6 and 9e6 < sizes[-1] < 12e6


def test_a_changed_width_derives_its_feed_forward_anew() -> None:
    assert preset("tiny", d_model=256).ff == 704  # 8/3 of 256 is 682.7, rounded up to a multiple of 32
    assert preset("tiny", n_heads=8).kv_heads == 8
    with pytest.raises(ConfigError, match="n_layers"):
        preset("tiny", n_layer=3)


def test_a_configuration_survives_json() -> None:
    config = TrainConfig(
        out=Path("runs") / "a",
        data=DataConfig(text=Path("x.txt")),
        model=ModelOverrides(dropout=0.1),
        optim=OptimConfig(clip_norm=None),
    )
    assert from_dict(to_dict(config)) == config
    with pytest.raises(ConfigError, match="step"):
        from_dict({**to_dict(config), "stps": 3})


def test_each_purpose_has_a_seed_of_its_own() -> None:
    seeds = {stream_seed(seed, purpose) for seed in range(50) for purpose in ("init", "training", "sample")}
    assert len(seeds) == 150 and all(0 <= seed < 2**63 for seed in seeds)
