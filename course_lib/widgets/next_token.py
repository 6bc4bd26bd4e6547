"""Type a prefix and see what a model expects next."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib.figures.next_token import next_token_bars
from course_lib.widgets.controls import FloatControl, IntControl, TextControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from course_lib.tokenizer import Tokenizer

__all__ = ["NextToken", "next_token_explorer", "reshape"]

_BARS = 12
_MARKS = "Thin marks: the model's own distribution, at temperature 1 with every token kept."


@dataclass(frozen=True)
class NextToken:
    """A distribution over the next token, and what one wants to know of it."""

    p: np.ndarray
    """(V,) float64: what is sampled from, after temperature and top-k."""
    bits: float
    """Its entropy in bits."""
    kept: float
    """The share of probability, after temperature, that top-k kept."""

    @property
    def choices(self) -> float:
        """As many equally likely tokens would be as uncertain: 2 to the power of the entropy."""
        return float(2**self.bits)


def reshape(logits: np.ndarray, temperature: float, top_k: int) -> NextToken:
    """Divide logits (V,) by the temperature, softmax, keep the `top_k` likeliest and renormalise."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    keep = np.argsort(-p, kind="stable")[:top_k]
    kept = float(p[keep].sum())
    cut = np.zeros_like(p)
    cut[keep] = p[keep] / kept
    positive = cut[cut > 0]
    return NextToken(cut, float(-(positive * np.log2(positive)).sum()), kept)


def next_token_explorer(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompt: str = "The value of the",
    *,
    context: int | None = None,
    presets: tuple[str, ...] = (),
) -> Explorer:
    """Display the explorer: a field for the prefix, the temperature, top-k, and the likeliest next tokens as bars.

    model: tokens (B, T) int64 -> logits (B, T, V), on any device. `context`: tokens that it can see (None: from
    `model.config`). An empty prefix is the start of a document. `presets` are more prefixes, each a button.
    """
    seen = context or int(getattr(getattr(model, "config", None), "context", 64))
    everything = tokenizer.vocab_size

    @lru_cache(maxsize=64)
    def logits(prefix: str) -> np.ndarray:
        import torch

        ids = [tokenizer.eos, *tokenizer.encode(prefix).tolist()][-seen:]
        device = next(model.parameters()).device
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                out = model(torch.tensor([ids], device=device))[0, -1]
        finally:
            model.train(training)
        return np.asarray(out.float().cpu().numpy())

    def distribution(prefix: str, temperature: float, top_k: int) -> NextToken:
        return reshape(logits(prefix)[:everything], temperature, top_k)

    def top(next_token: NextToken) -> list[tuple[str, float]]:
        order = np.argsort(-next_token.p, kind="stable")[:_BARS]
        return [(tokenizer.token_text(int(i)), float(next_token.p[i])) for i in order if next_token.p[i] > 0]

    def draw(prefix: str, temperature: float, top_k: int) -> View:
        now, plain = distribution(prefix, temperature, top_k), distribution(prefix, 1.0, everything)
        order = np.argsort(-now.p, kind="stable")[:_BARS]
        highest = max(float(now.p.max()), float(plain.p[order].max()))
        scale = next(end for end in (0.1, 0.25, 0.5, 1.0) if highest <= end + 1e-9)
        moved = temperature != 1 or top_k < everything
        rows = "".join(
            _row(tokenizer.token_text(int(i)), float(now.p[i]), float(plain.p[i]) if moved else None, scale)
            for i in order
            if now.p[i] > 0
        )
        first = [f"{text} {share:.0%}" for text, share in top(now)[:5]]
        return View(
            f'<div class="course-bars" style="margin: 8px 0; min-height: {24 * _BARS}px">{rows}</div>',
            alt=f"Next token after “{prefix}”: {', '.join(first)}",
            numbers=[
                (f"{now.bits:.2f} bits", "entropy of the next token"),
                (f"{now.choices:,.1f}", "equally likely tokens, as uncertain"),
                (f"{now.kept:.1%}", f"of the probability kept by top-k, of {everything:,} tokens"),
            ],
            message=f"The bars' full width is {scale:.0%}." + (f" {_MARKS}" if moved else ""),
            data={"top": [share for _, share in top(now)], "bits": now.bits},
        )

    def still(prefix: str, temperature: float, top_k: int) -> Figure:
        now = distribution(prefix, temperature, top_k)
        texts, shares = zip(*top(now), strict=True)
        end = prefix if len(prefix) <= 40 else "…" + prefix[-40:]
        return next_token_bars(
            texts,
            shares,
            title=f"After “{end}”: {texts[0]} at {shares[0]:.0%}",
            subtitle=f"The likeliest next tokens. {now.bits:.1f} bits, as if {now.choices:.0f} were equally likely.",
        )

    def untouched(values: Any) -> bool:
        return bool(values["temperature"] == 1 and values["top_k"] == everything)

    return explorer(
        draw,
        [
            TextControl(name="prefix", label="prefix", default=prompt, placeholder="the start of a document"),
            FloatControl(name="temperature", label="temperature", min=0.1, max=3.0, step=0.05, default=1.0),
            IntControl(name="top_k", label="top-k", unit="tokens kept", min=1, max=everything, default=everything),
        ],
        presets=[
            *(Preset(f"“{text}”", {"prefix": text}) for text in presets),
            Preset("cold", {"temperature": 0.3}),
            Preset("hot", {"temperature": 2.0}),
            Preset("top 5", {"top_k": 5}),
        ],
        goals=[
            Goal(
                "A prefix after which the model gives one token over 90%, at temperature 1 with every token kept",
                lambda values, view: untouched(values) and values["prefix"] != prompt and view.data["top"][0] > 0.9,
            ),
            Goal(
                "A temperature other than 1 at which the first token has half of the probability (48% to 52%)",
                lambda values, view: (
                    values["temperature"] != 1 and values["top_k"] == everything and 0.48 <= view.data["top"][0] <= 0.52
                ),
            ),
            Goal(
                "A temperature or top-k with which the model is as unsure as among 4 equal tokens (1.9 to 2.1 bits)",
                lambda values, view: not untouched(values) and 1.9 <= view.data["bits"] <= 2.1,
            ),
        ],
        title="What does the model expect next?",
        caption="The likeliest next tokens and their probabilities; ␣ is a space, ⏎ a line end.",
        still=still,
    )


def _row(text: str, share: float, own: float | None, scale: float) -> str:
    grid = "display: grid; grid-template-columns: 130px 1fr 64px; align-items: center; height: 24px"
    bar = f"width: {100 * share / scale:.2f}%; height: 16px; background: #0072B2; border-radius: 2px"
    mark = ""
    if own is not None:
        place = f"position: absolute; left: {100 * own / scale:.2f}%; top: -2px; width: 2px; height: 20px"
        mark = f'<div style="{place}; background: #D55E00"></div>'
    return (
        f'<div title="{-math.log2(share):.2f} bits" style="{grid}">'
        f'<code style="overflow: hidden; white-space: pre; text-overflow: ellipsis">{html.escape(text)}</code>'
        f'<div style="position: relative; height: 16px"><div style="{bar}"></div>{mark}</div>'
        f'<span style="text-align: right; font-variant-numeric: tabular-nums">{share:.1%}</span></div>'
    )
