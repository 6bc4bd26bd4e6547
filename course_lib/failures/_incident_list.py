"""Each fault: what the dashboards show, which checks name it, what mends it, and how it is injected."""

from dataclasses import dataclass, field, replace
from typing import Any

from course_lib.config import OptimConfig
from course_lib.failures import _faults, _ranks
from course_lib.failures.evidence import CATEGORIES
from course_lib.failures.runs import SHORT

__all__: list[str] = []


@dataclass(frozen=True)
class Incident:
    """One fault and how it is found."""

    name: str
    title: str
    symptom: str
    """What the dashboards show."""
    category: str
    """One of CATEGORIES."""
    root: str
    """causality, bias, or neither."""
    why: str
    """Why that root, in a sentence."""
    checks: tuple[str, ...]
    """The checks that name it: all of them are abnormal, and no other fault has the same."""
    fix: str
    never: str
    """What not to do."""
    setup: dict[str, Any] = field(default_factory=dict)
    """What differs from the usual run, healthy twin included."""
    fault: dict[str, Any] = field(default_factory=dict)
    """What differs with the fault besides."""


DATA, NUMERICS, OPTIMIZER, SYSTEM = CATEGORIES
FAST = OptimConfig(lr=0.05, warmup_steps=30, weight_decay=0.1)
TWO_RANKS: dict[str, Any] = {"ranks": 2, "steps": 60, "resumes": ()}
USUAL = OptimConfig(lr=1e-2, warmup_steps=10, weight_decay=0.1)

ALL = (
    Incident(
        "label_shift",
        "Labels shifted twice",
        "the training loss settles above that of other runs, and the held-out loss climbs far above its start",
        DATA,
        "neither",
        "The targets are wrong tokens; nothing from the future is seen, and no error adds up.",
        ("targets",),
        "shift once: in the data set or in the model, and test it on a sequence 0, 1, 2, 3",
        "train longer in the hope that it catches up",
        fault={"fault": _faults.shift_twice},
    ),
    Incident(
        "padding_in_loss",
        "Padding counted in the loss",
        "the training loss lies well below the held-out loss from early on, and every step counts the same tokens",
        DATA,
        "bias",
        "Every batch's mean is off in the same direction, by the share of padding in it.",
        ("valid_tokens",),
        "give padding the ignored label, and divide by the count of valid targets",
        "compare such a loss with that of a run that ignores padding",
        fault={"fault": _faults.count_padding},
    ),
    Incident(
        "duplicated_shard",
        "One shard again and again",
        "the training loss keeps falling while the held-out loss turns and rises",
        DATA,
        "neither",
        "The gradients are right for the data that comes; the data is too little.",
        ("sample_hashes",),
        "repair the list of shards, and log a hash of every batch",
        "add dropout or weight decay against the overfitting before the data was looked at",
        fault={"fault": _faults.one_shard},
    ),
    Incident(
        "unshuffled_shard",
        "A sorted shard",
        "the training loss moves in waves, and the held-out loss jumps up between validations",
        DATA,
        "bias",
        "For many steps in a row the gradient leans to what the current stretch of the text holds.",
        ("batch_mix",),
        "shuffle documents over all shards before they are packed",
        "lower the learning rate until the waves are gone",
        fault={"fault": _faults.sorted_documents},
    ),
    Incident(
        "mask_leak",
        "The causal mask is missing in one layer",
        "training and held-out loss fall below what other runs reach, both alike",
        DATA,
        "causality",
        "A position reads the token that it has to predict.",
        ("mask_probe",),
        "put the mask back, and keep the probe as a test of every model",
        "be glad of the loss",
        setup={"optim": replace(USUAL, lr=2e-2)},
        fault={"fault": _faults.see_ahead},
    ),
    Incident(
        "bad_batch",
        "One bad batch",
        "at one step loss and gradient norm jump to several times their value, and come back",
        DATA,
        "neither",
        "One batch of noise; the steps before and after it are as they should be.",
        ("batch_content", "replay_elsewhere"),
        "take the file out; where the run does not recover, go back to a checkpoint and skip the batch",
        "change the learning rate for one spike",
        fault={"fault": _faults.bad_batch},
    ),
    Incident(
        "nan_from_ignored",
        "A batch without a single valid target",
        "the loss is NaN from one step on, without any sign before it",
        DATA,
        "neither",
        "A division of 0 by 0 in one step; nothing leaned to one side before it.",
        ("empty_batches",),
        "divide by at least 1, drop batches without targets, and go back to the checkpoint before the step",
        "replace NaN by 0 in the loss",
        fault={"fault": _faults.nothing_to_predict},
    ),
    Incident(
        "cursor_lost",
        "The data starts anew after a resume",
        "after each resume the counts of tokens per step are those of the first steps; the loss hardly tells",
        DATA,
        "neither",
        "The text is read again from its start; each gradient is right for what it reads.",
        ("sample_hashes", "resume_batches"),
        "save the data cursor in the checkpoint, and compare the first batch after a resume with the plan",
        "take the lower training loss for progress",
        fault={"left_out": ("cursor",)},
    ),
    Incident(
        "unscaled_clipping",
        "Gradients clipped before they are unscaled",
        "the gradient norm stands at tens of thousands, and the loss falls more slowly than it should",
        NUMERICS,
        "bias",
        "Every step is clipped as if its gradient were 65,536 times as long.",
        ("norm_ratio",),
        "call unscale_ before clipping",
        "raise the limit of the norm",
        setup={"precision": "fp16", **SHORT},
        fault={"fault": _faults.clip_before_unscale},
    ),
    Incident(
        "fp16_overflow",
        "Activations grow out of FP16",
        "activations climb to the end of FP16, then every update is skipped, and the loss scale halves step by step",
        NUMERICS,
        "neither",
        "A range is left at once; no small error adds up to it.",
        ("scale_log", "activation_range"),
        "put the norm back; BF16 has the range of FP32",
        "start from a higher loss scale",
        setup={"precision": "fp16", **SHORT},
        fault={"fault": _faults.no_norm},
    ),
    Incident(
        "bf16_stuck",
        "BF16 weights without FP32 masters",
        "the loss flattens out early while the learning rate is still high enough for a run with masters to go on",
        NUMERICS,
        "bias",
        "An update under half the spacing of BF16 is always rounded to nothing, at every step.",
        ("weights_moving",),
        "keep FP32 masters, or round stochastically",
        "raise the learning rate until the weights move",
        setup={"weights": "bf16", "precision": "bf16", "init_std": 0.3, "optim": replace(USUAL, lr=1e-3)},
        fault={"fault": _faults.without_masters},
    ),
    Incident(
        "epsilon_too_small",
        "Epsilon smaller than what the second moment lost",
        "in a few steps updates outgrow the weights, activations follow, and the loss comes down late or not at all",
        OPTIMIZER,
        "bias",
        "Small second moments are always rounded to 0, never up: every step divides by too little.",
        ("adam_bound",),
        "keep the second moment in FP32 or BF16, or take an epsilon above the square root of the smallest FP16 number",
        "clip the gradients harder: the gradients are fine",
        fault={"fault": _faults.half_moments},
    ),
    Incident(
        "lr_too_high",
        "Learning rate thirty times too high",
        "the loss stops far above other runs, and the updates stay large against the weights",
        OPTIMIZER,
        "neither",
        "The steps overshoot in every direction.",
        ("step_probe",),
        "lower the learning rate; find it with short runs that differ in nothing else",
        "train on and wait for the decay of the schedule",
        fault={"optim": replace(USUAL, lr=0.3)},
    ),
    Incident(
        "no_warmup",
        "Warm-up missing",
        "the learning rate is at its highest at the first step, the first updates are nearly as long as the weights, "
        "and the loss comes down later than with a warm-up",
        OPTIMIZER,
        "neither",
        "The first updates are too long for moments that are built from a few gradients.",
        ("lr_start",),
        "raise the learning rate over the first steps, and look at the log of it",
        "blame the data of the first steps",
        setup={"optim": FAST},
        fault={"optim": replace(FAST, warmup_steps=0)},
    ),
    Incident(
        "scheduler_reset",
        "The schedule starts anew after a resume",
        "the learning rate jumps at a resume instead of going on, and the updates grow with it",
        OPTIMIZER,
        "neither",
        "A number is not restored; what it does to each step is plain to see.",
        ("lr_resume",),
        "save and load the scheduler, and check the first learning rate after a resume",
        "lower the learning rate by hand to be safe",
        fault={"left_out": ("scheduler",)},
    ),
    Incident(
        "memory_leak",
        "Logits kept for a metric at the end",
        "memory grows by the same amount at every step until the device is full and the run stops; the loss is fine",
        SYSTEM,
        "neither",
        "Nothing that is computed is wrong.",
        ("memory_growth",),
        "keep numbers, not tensors, and what must be kept off the device",
        "buy memory, or restart the run every night",
        fault={"fault": _faults.hold_logits},
    ),
    Incident(
        "slow_loader",
        "The loader unpacks its shard for every batch",
        "steps take several times as long from one step on; loss, norms and memory are as before",
        SYSTEM,
        "neither",
        "The batches are right, and late.",
        ("loader_wait",),
        "unpack once, and load ahead in another process",
        "add ranks: they would wait for the same loader",
        setup=TWO_RANKS,
        fault={"fault": _ranks.unpack_every_batch},
    ),
    Incident(
        "rank_no_sync",
        "One rank updates from its own gradients",
        "the checksums of the two ranks part, and the loss is a little above its twin",
        SYSTEM,
        "neither",
        "Two models train on half of the batch each, and only one of them is reported.",
        ("checksums",),
        "use the synchronised gradients on every rank, and compare checksums every few hundred steps",
        "average the weights of the ranks and go on",
        setup=TWO_RANKS,
        fault={"fault": _ranks.keep_own_gradients},
    ),
    Incident(
        "straggler",
        "One rank computes longer than the other",
        "steps take several times as long from one step on; loss, norms and memory are as before",
        SYSTEM,
        "neither",
        "Every rank computes the right thing, one of them late.",
        ("rank_seconds",),
        "time each rank by itself, find what else runs there, replace the node if nothing does",
        "raise the timeout of the collectives",
        setup=TWO_RANKS,
        fault={"fault": _ranks.work_more},
    ),
    Incident(
        "hang",
        "A barrier that one rank alone reaches",
        "the log ends in the middle of the run, without an error",
        SYSTEM,
        "neither",
        "The ranks wait for each other; nothing is computed.",
        ("last_collective",),
        "make the same calls on every rank: take the barrier out of the branch",
        "raise the timeout",
        setup=TWO_RANKS,
        fault={"fault": _ranks.barrier_on_one},
    ),
)
