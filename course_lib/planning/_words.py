"""What other programs call the choices of a layout, and the nearest of our own words."""

import difflib
from collections.abc import Collection

__all__ = ["near"]

_MEANT: dict[str, str] = {
    "zero3": "fsdp",
    "stage3": "fsdp",
    "fullshard": "fsdp",
    "fsdp2": "fsdp",
    "full": "fsdp",
    "shardgradop": "zero2",
    "stage2": "zero2",
    "stage1": "zero1",
    "distributedoptimizer": "zero1",
    "hybridshard": "hsdp",
    "hybrid": "hsdp",
    "zero0": "ddp",
    "dp": "ddp",
    "noshard": "ddp",
    "true": "all",
    "yes": "all",
    "off": "none",
    "false": "none",
    "no": "none",
    "vpp": "interleaved",
    "interleaved1f1b": "interleaved",
    "virtual": "interleaved",
    "zerobubble": "zb_h1",
    "zb1p": "zb_h1",
    "zbh2": "zbv",
    "dualpipe": "dualpipev",
    "afab": "gpipe",
    "bf16": "adamw-16bit-fp32-gradients",
    "fp16": "adamw-16bit-fp32-gradients",
    "mixed": "adamw-16bit-fp32-gradients",
    "adamw": "adamw-16bit-fp32-gradients",
    "amp": "adamw-fp32",
    "autocast": "adamw-fp32",
    "fp32": "adamw-fp32",
    "sgd": "sgd-fp32",
}
"""Letters and digits of a word, and ours."""
_ALSO = {"full": "all"}
"""Where the first meaning is not among the words."""


def near(word: str, words: Collection[str]) -> str:
    """Text like "; did you mean 'fsdp'?" for another name of it or a slip of spelling; "" where nothing is near."""
    plain = "".join(letter for letter in word.lower() if letter.isalnum())
    for table in (_MEANT, _ALSO):
        if table.get(plain) in words:
            return f"; did you mean {table[plain]!r}?"
    by_case = {one.lower(): one for one in words}
    match = difflib.get_close_matches(word.lower(), by_case, n=1, cutoff=0.55)
    return f"; did you mean {by_case[match[0]]!r}?" if match else ""
