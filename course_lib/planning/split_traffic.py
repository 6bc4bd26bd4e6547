"""What tensor, sequence and context parallel send: elements of one rank, forward and backward of one micro-batch.

    tensor_calls(layers=32)                                        # all-reduces: 65 in forward, 65 in backward
    tensor_sent(32, tokens=8192, width=4096, vocabulary=128256, ranks=8)                  # by kind of collective
    tensor_sent(32, 8192, 4096, 128256, 8, sequence="regather", loss_parallel=True)
    context_sent(32, tokens=131072, kv_width=1024, parameters=8e9, ranks=16)              # "ring" or "all-gather"

tokens: of the micro-batch, over all ranks of the group. What is sent grows with them, not with the parameters, and is
sent again for each micro-batch (but the gradients' sums once a step). Ring convention of `communication`, in elements.
"""

from typing import Literal

from course_lib.errors import ConfigError

__all__ = ["context_sent", "tensor_calls", "tensor_sent", "tensor_share"]


def _around(ranks: int) -> float:
    if ranks < 1:
        raise ConfigError(f"ranks={ranks} must be at least 1")
    return (ranks - 1) / ranks


def tensor_calls(layers: int) -> int:
    """All-reduces of (tokens, width) in forward, and as many in backward: one a half-block, and one outside.

    Shoeybi et al. 2019 (arXiv 1909.08053), section 3: two a block in forward, two in backward. Outside of the blocks
    the split embedding sums in forward, the split output layer in backward.
    """
    return 2 * layers + 1


def tensor_sent(
    layers: int,
    tokens: int,
    width: int,
    vocabulary: int,
    ranks: int,
    *,
    sequence: Literal["keep", "regather"] | None = None,
    loss_parallel: bool = False,
) -> dict[str, float]:
    """Elements that one rank sends, by kind.

    sequence: each all-reduce becomes an all-gather and a reduce-scatter, of half its elements each; "regather" gathers
    the inputs of column-split matrices once more in backward, as Korthikanti et al. 2022 (arXiv 2205.05198) do; the
    gradients of 2 layers + 1 norms are summed. loss_parallel: three numbers a token instead of all logits, which else
    are gathered (the vocabulary padded to a multiple of the ranks).
    """
    around, activations, calls = _around(ranks), tokens * width, tensor_calls(layers)
    padded = -(-vocabulary // ranks) * ranks
    logits = 0 if loss_parallel else tokens * padded
    of_loss = 2 * 3 * tokens if loss_parallel else 0
    if sequence is None:
        sent = {"all_reduce": 2 * 2 * calls * activations + of_loss, "all_gather": logits}
    else:
        again = calls if sequence == "regather" else 0
        sent = {
            "all_reduce": of_loss + 2 * calls * width,
            "all_gather": (2 * calls + again) * activations + logits,
            "reduce_scatter": 2 * calls * activations,
        }
    return {kind: around * elements for kind, elements in sent.items() if elements}


def tensor_share(width: int, ff: int, heads: int, kv_heads: int, ranks: int) -> tuple[float, float]:
    """A block's matrix products for one token: (FLOPs of one rank, elements that it sends), forward and backward.

    Tokens cancel in their quotient: a larger batch hides nothing. Norms and the attention over the sequence, which
    computes and sends nothing, are left out.
    """
    matrices = width * width * 2 * (1 + kv_heads / heads) + 3 * width * ff
    return 6 * matrices / ranks, 8 * width * _around(ranks)


def context_sent(
    layers: int,
    tokens: int,
    kv_width: int,
    parameters: float,
    ranks: int,
    *,
    form: Literal["ring", "all-gather"] = "ring",
) -> dict[str, float]:
    """Elements that one rank sends, by kind: keys and values (each tokens x kv_width) a layer, and 2 P of gradients.

    all-gather: gathered in forward, their gradients reduce-scattered in backward. ring: passed on N - 1 times in
    forward; in backward again, and their gradients N - 1 times: half more in all. Queries are never sent.
    """
    if form not in ("ring", "all-gather"):
        raise ConfigError(f"form={form!r} is unknown (there are: ring, all-gather)")
    around, both = _around(ranks), 2 * tokens * kv_width * layers
    sums = {"all_reduce": 2 * parameters * around}
    if form == "ring":
        return {"send": 3 * both * around} | sums
    return {"all_gather": both * around, "reduce_scatter": both * around} | sums
