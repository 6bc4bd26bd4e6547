"""Symptoms, and for each the faults that can be behind it: check, findings, remedy, and what does harm."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__: list[str] = []

DATA, NUMERICS, OPTIMIZER, SYSTEM = range(4)
Finding = Callable[[Any], str]


@dataclass(frozen=True)
class Suspect:
    """One fault. `sound` and `faulty` make the line that its check prints, with numbers from a generator."""

    kind: int
    minutes: int
    check: str
    sound: Finding
    faulty: Finding
    fault: str
    remedy: str
    harm: str


@dataclass(frozen=True)
class Symptom:
    """What the dashboards show, and who can be behind it. `moved`: the dashboards that changed."""

    moved: dict[str, float]
    suspects: tuple[Suspect, ...]
    end: str = ""


def whole(rng: Any, low: int, high: int) -> str:
    return f"{int(rng.integers(low, high)):,}"


def real(rng: Any, low: float, high: float, form: str = ".3f") -> str:
    return format(float(rng.uniform(low, high)), form)


CHECKSUMS = Suspect(
    SYSTEM,
    6,
    "compare the checksums of the weights over the data-parallel ranks",
    lambda rng: "16 of 16 ranks have the same",
    lambda rng: f"15 ranks have the same, rank {whole(rng, 1, 16)} another",
    "one rank's weights are others than those of the rest",
    "give that rank the weights and moments of another one, find why its gradients were left out, and go on",
    "average the weights of all ranks and go on",
)

AFTER_RESUME = Symptom(
    {"loss": 1.03, "val_loss": 1.03, "grad_norm": 1.07, "update_ratio": 1.2},
    (
        Suspect(
            DATA,
            20,
            "compare the first batches after the resume with the plan, token by token",
            lambda rng: "512 of 512 sequences are the planned ones",
            lambda rng: f"0 of 512 are; {whole(rng, 300, 420)} of 1,000 words are cut into other tokens than before",
            "the text goes through another tokenizer since the resume",
            "load the tokenizer that the checkpoint was trained with; go back to that checkpoint and resume once more",
            "train on: the model gets used to the new tokens",
        ),
        Suspect(
            DATA,
            15,
            "change the document before, and watch the logits of the one after it",
            lambda rng: "they move by 0",
            lambda rng: f"they move by up to {real(rng, 0.2, 4)}",
            "the documents of a sequence see each other since the resume",
            "give attention the borders of the documents; go back to that checkpoint and resume once more",
            "train on: the model learns to ignore the other documents",
        ),
        Suspect(
            NUMERICS,
            12,
            "compare the FP32 master weights after the resume with those in the checkpoint",
            lambda rng: "0 of 10,000 sampled ones differ",
            lambda rng: f"{whole(rng, 9_900, 10_000)} of 10,000 sampled ones differ, all by less than one in 256",
            "the masters were made from the 16-bit weights",
            "save and load the FP32 masters; go back to the checkpoint before, if it has them",
            "raise the learning rate until the loss is back",
        ),
        Suspect(
            OPTIMIZER,
            8,
            "compare the moments after the resume with those in the checkpoint",
            lambda rng: "ratio of their norms 1.000",
            lambda rng: "norm of the second moment 0 on load, in the checkpoint " + real(rng, 2, 9, ".2e"),
            "the optimizer starts with empty moments",
            "load the optimizer's state; go back to the checkpoint and resume once more",
            "lower the learning rate by hand and wait until the moments have filled",
        ),
        CHECKSUMS,
    ),
    "It was resumed from a checkpoint in the middle of this log.",
)

NAN = Symptom(
    {"loss": math.nan, "grad_norm": math.nan, "update_ratio": math.nan},
    (
        Suspect(
            DATA,
            10,
            "count the targets of that batch that are not ignored",
            lambda rng: f"{whole(rng, 400_000, 520_000)} in all, at least {whole(rng, 900, 1_900)} in each micro-batch",
            lambda rng: f"{whole(rng, 400_000, 500_000)} in all, 0 in micro-batch {whole(rng, 2, 16)}",
            "a micro-batch had no target: 0 / 0",
            "divide by the targets of the whole batch, and go back to the checkpoint before the step",
            "replace NaN by 0 in the loss and go on",
        ),
        Suspect(
            NUMERICS,
            15,
            "find the operation whose output is the first that is not finite, and its largest input",
            lambda rng: "the loss itself; largest activation before it " + real(rng, 20, 90, ".1f"),
            lambda rng: (
                f"the product in layer {whole(rng, 20, 40)}, in FP16; largest input " + whole(rng, 59_000, 65_000)
            ),
            "an activation left the range of FP16",
            "compute that product in BF16, and go back to the checkpoint before the step",
            "clip the gradients at a smaller norm and go on",
        ),
        Suspect(
            OPTIMIZER,
            8,
            "find the farthest step of a single weight before the NaN, in learning rates",
            lambda rng: real(rng, 0.7, 1.1),
            lambda rng: real(rng, 900, 4_000, ",.0f"),
            "the second moment rounds to 0 beside an epsilon that does, too",
            "keep the second moment in FP32, and go back to the checkpoint before the steps grew",
            "skip every step that is not finite, and call the run healthy",
        ),
        Suspect(
            SYSTEM,
            25,
            "replay the step, from the checkpoint before it, on other devices",
            lambda rng: "NaN again",
            lambda rng: f"loss {real(rng, 2, 2.6)}, finite; rank {whole(rng, 0, 64)} gives NaN each time it runs alone",
            "one device computes wrongly",
            "take the node out, and go back to the checkpoint before the step",
            "start again from the beginning with another seed",
        ),
    ),
)

TOO_GOOD = Symptom(
    {"loss": 0.72, "val_loss": 0.72, "grad_norm": 0.81},
    (
        Suspect(
            DATA,
            15,
            "change later tokens, and watch the logits before them",
            lambda rng: "they move by 0",
            lambda rng: f"they move by up to {real(rng, 0.2, 4)}, from layer {whole(rng, 2, 30)} on",
            "a layer reads later tokens",
            "put the mask back; what this run has learned since is of no use, go back to before the change",
            "be glad of the loss, and tune on top of it",
        ),
        Suspect(
            DATA,
            20,
            "count the padding among the targets of the loss, in training and held-out batches",
            lambda rng: f"0 of {whole(rng, 400_000, 520_000)}",
            lambda rng: f"{whole(rng, 120_000, 140_000)} of {whole(rng, 430_000, 460_000)}",
            "the loss counts padding, which is easy to predict",
            "leave padding out of the loss, and go back to before the change; logs since then are not to be compared",
            "announce the gain now, and look into it later",
        ),
        Suspect(
            NUMERICS,
            12,
            "add up the loss of a batch once more in FP32",
            lambda rng: f"{real(rng, 0.99999, 1.00001, '.5f')} of what was logged",
            lambda rng: f"{real(rng, 1.37, 1.41)} of what was logged; the code's own sum is in BF16",
            "the sum of the loss stops before its end",
            "add the loss up in FP32, and go back to before the change; logs since then are not to be compared",
            "compare this loss with another run's, and choose by it",
        ),
        Suspect(
            OPTIMIZER,
            8,
            "compare the steps that the optimizer has counted with those of the log",
            lambda rng: "20,000 and 20,000",
            lambda rng: f"{whole(rng, 60_000, 90_000)} and 20,000",
            "the run began from another run's checkpoint",
            "begin again from what the configuration names, and keep this run's results apart",
            "keep it: a lower loss is a lower loss",
        ),
        Suspect(
            SYSTEM,
            9,
            "compare the losses that the ranks report for one step",
            lambda rng: f"{real(rng, 0.96, 0.97)} to {real(rng, 1.03, 1.04)} of their mean, 64 ranks",
            lambda rng: f"46 ranks {real(rng, 1.33, 1.36)} to {real(rng, 1.41, 1.43)} of the mean, 18 ranks 0.000",
            "some ranks report a loss without having computed one",
            "take those nodes out, and go back to the checkpoint before they first reported 0",
            "report the loss as it is: it was measured",
        ),
    ),
    "An earlier run of the same size and text stood higher at this step.",
)

PLATEAU = Symptom(
    {"loss": 1.0, "val_loss": 1.0, "update_ratio": 0.6},
    (
        Suspect(
            DATA,
            20,
            "compare the words of each step's batch with those of the whole text",
            lambda rng: f"overlap {real(rng, 0.92, 0.93)} to {real(rng, 0.94, 0.95)} at every step",
            lambda rng: f"overlap {real(rng, 0.92, 0.95)}, and {real(rng, 0.3, 0.5)} for the last 2,000 steps",
            "the text has been of another kind for some time",
            "shuffle over all shards, and go back to where the text changes",
            "smooth the curve until it looks right",
        ),
        Suspect(
            NUMERICS,
            10,
            "count the weights that an update changes, in the format in which they are kept",
            lambda rng: f"{real(rng, 99.2, 99.9, '.1f')}% of them",
            lambda rng: f"{real(rng, 1, 6, '.1f')}% of them; they are kept in BF16",
            "updates round to nothing",
            "keep FP32 master weights, made from the weights as they are now, and go on",
            "raise the learning rate until something moves",
        ),
        Suspect(
            OPTIMIZER,
            5,
            "compare the names that the optimizer holds with those of the model",
            lambda rng: "all 291 of 291",
            lambda rng: f"{whole(rng, 20, 60)} of 291; the others have gradients, and are in no group",
            "the optimizer holds a part of the parameters",
            "give the optimizer all parameters, and go back to where the groups were made",
            "wait: it will come down when the learning rate falls",
        ),
        CHECKSUMS,
    ),
    "The loss has not fallen for 2,000 steps; an earlier run fell on. The learning rate is as planned.",
)

SLOW = Symptom(
    {"step_seconds": 1.6},
    (
        Suspect(
            SYSTEM,
            7,
            "time how long each rank waits for its batch",
            lambda rng: f"{real(rng, 2, 9, '.1f')} ms a step, on every rank",
            lambda rng: f"{real(rng, 4, 4.6, '.2f')} s a step, on every rank",
            "the loader is slower than the step",
            "load ahead in more processes, and unpack the text once",
            "add devices",
        ),
        Suspect(
            SYSTEM,
            11,
            "time each rank's own computing, without its waiting",
            lambda rng: f"{real(rng, 7, 7.4)} to {real(rng, 7.4, 7.6)} s",
            lambda rng: (
                f"{real(rng, 7, 7.4)} to {real(rng, 7.4, 7.6)} s, rank {whole(rng, 0, 64)} {real(rng, 11, 12)} s"
            ),
            "one device is slow, and all wait for it",
            "replace that node, and resume from the last checkpoint",
            "raise the timeout of the collectives",
        ),
        Suspect(
            SYSTEM,
            16,
            "time an all-reduce between each pair of nodes",
            lambda rng: f"{real(rng, 44, 46, '.1f')} to {real(rng, 46, 48, '.1f')} GB/s",
            lambda rng: (
                f"{real(rng, 44, 46, '.1f')} to {real(rng, 46, 48, '.1f')} GB/s, one pair {real(rng, 3, 6, '.1f')}"
            ),
            "one link is slow",
            "take that link's node out, and resume from the last checkpoint",
            "make the batch smaller, so that less is sent",
        ),
    ),
)

SYMPTOMS = (AFTER_RESUME, NAN, SLOW, TOO_GOOD, PLATEAU)
