"""What no section of a plan sees alone: whether model, data, devices and layout fit together.

    run = check(run)          # with every figure of the hardware filled in; ConfigError: key, why, the nearest that fit

What is possible but unwise (tensor parallelism across nodes, a bubble, too little memory) is a risk, not an error.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from math import gcd

from course_lib.errors import ConfigError, ScheduleError
from course_lib.planning._words import near
from course_lib.planning.devices import fill
from course_lib.planning.formulas import RECIPES
from course_lib.planning.spec import RunSpec

__all__ = ["check", "divisors", "nearest_numbers"]


LARGEST_BATCH = 1e9
"""Tokens: ten times what anybody has published is taken for a slip, if it is a multiple of the sequence."""


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return small + [number // k for k in reversed(small) if k * k != number]


def nearest_numbers(wanted: int, choices: Iterable[int]) -> str:
    """The largest choice not above and the smallest not below, in words: "4 or 8"."""
    found = sorted(set(choices))
    below = [k for k in found if k <= wanted][-1:]
    above = [k for k in found if k >= wanted][:1]
    return " or ".join(str(k) for k in dict.fromkeys(below + above))


def _multiples(wanted: int, of: int) -> str:
    """The multiples around a number, at least one of them."""
    return nearest_numbers(wanted, [max(1, wanted // of) * of, -(-wanted // of) * of])


def _divides(key: str, value: int, what: str, number: int) -> None:
    """`value` has to divide `number`; the message has the nearest that do."""
    if number % value:
        fits = nearest_numbers(value, divisors(number))
        raise ConfigError(f"{key} = {value} does not divide {what} = {number}; try {fits}")


def check(run: RunSpec) -> RunSpec:
    """The run with its hardware filled in, and zbv's and dualpipev's two chunks written out; else `ConfigError`."""
    run = replace(run, hardware=fill(run.hardware))
    _model(run)
    _devices(run)
    _batch(run)
    _tensor_and_context(run)
    _experts(run)
    _sharding(run)
    return _pipeline(run)


def _model(run: RunSpec) -> None:
    model, data = run.model, run.data
    if model.head_dim is None and model.width % model.heads:
        fits = max(1, round(model.width / model.heads)) * model.heads
        raise ConfigError(
            f"model.heads = {model.heads} does not divide model.width = {model.width}; try heads = "
            f"{nearest_numbers(model.heads, divisors(model.width))}, or width = {fits}, or give head_dim"
        )
    if model.kv_heads is not None:
        _divides("model.kv_heads", model.kv_heads, "model.heads", model.heads)
    if 0 < model.positions < data.sequence:
        raise ConfigError(
            f"data.sequence = {data.sequence} is longer than model.positions = {model.positions}, the learned ones; "
            f"try sequence = {model.positions}, or positions = {data.sequence}"
        )
    if model.experts == 0:
        for key in ("active_experts", "shared_experts", "dense_layers", "expert_ffn"):
            if getattr(model, key):
                raise ConfigError(
                    f"model.{key} = {getattr(model, key)} without experts; give model.experts, or leave {key} out"
                )
        return
    if not 1 <= model.active_experts <= model.experts:
        raise ConfigError(
            f"model.active_experts = {model.active_experts} must be from 1 to model.experts = {model.experts}; "
            f"try {min(model.active_experts or 2, model.experts)}"
        )
    if model.dense_layers >= model.layers:
        raise ConfigError(
            f"model.dense_layers = {model.dense_layers} leaves no layer of {model.layers} for the experts; "
            f"try {model.layers - 1} or fewer, or experts = 0"
        )


def _devices(run: RunSpec) -> None:
    layout, devices = run.layout, run.hardware.devices
    one = layout.tensor * layout.pipeline * layout.context
    if layout.devices == devices:
        return
    product = " x ".join(f"{key} {getattr(layout, key)}" for key in ("data", "tensor", "pipeline", "context"))
    if devices % one == 0:
        way = f"try layout.data = {devices // one}, or hardware.devices = {layout.devices}"
    else:
        way = f"data-parallel ranks of {one} devices each: try hardware.devices = {_multiples(devices, one)}"
        for key in ("tensor", "pipeline", "context"):
            rest = one // getattr(layout, key)
            if devices % rest == 0:
                fits = nearest_numbers(getattr(layout, key), divisors(devices // rest))
                way += f", or layout.{key} = {fits} and data to match"
    raise ConfigError(
        f"layout.data = {layout.data} does not fit: {product} are {layout.devices} devices, and hardware.devices = "
        f"{devices}; {way}"
    )


def _batch(run: RunSpec) -> None:
    layout, data = run.layout, run.data
    batch, once = data.global_batch, layout.data * layout.micro_batch
    if run.batch_tokens > LARGEST_BATCH and batch % data.sequence == 0:
        raise ConfigError(
            f"data.global_batch = {batch} looks like tokens, as it makes {run.batch_tokens:.3g} of them; it is in "
            f"sequences: write global_batch = {batch // data.sequence}"
        )
    if batch % once:
        ways = [f"global_batch = {_multiples(batch, once)}"]
        if batch % layout.micro_batch == 0:
            fits = nearest_numbers(layout.data, divisors(batch // layout.micro_batch))
            ways.append(f"layout.data = {fits} (and devices to match)")
        if batch % layout.data == 0:
            ways.append(f"layout.micro_batch = {nearest_numbers(layout.micro_batch, divisors(batch // layout.data))}")
        raise ConfigError(
            f"data.global_batch = {batch} is not divisible by data {layout.data} x micro_batch {layout.micro_batch} = "
            f"{once} sequences; try {', or '.join(ways)}"
        )
    if data.tokens < run.batch_tokens:
        raise ConfigError(
            f"data.tokens = {data.tokens:g} are not one update: global_batch x sequence = {run.batch_tokens:,} tokens; "
            f"try tokens = {run.batch_tokens * 1000:.3g}, or a smaller batch"
        )


def _tensor_and_context(run: RunSpec) -> None:
    model, data, layout = run.model, run.data, run.layout
    tensor, context = layout.tensor, layout.context
    kv_heads = model.kv_heads or model.heads
    # Heads of keys and values are shared out, or each is on several ranks, as Megatron-LM and PaLM have it.
    fits = [k for k in divisors(model.heads) if kv_heads % k == 0 or k % kv_heads == 0]
    if tensor not in fits:
        raise ConfigError(
            f"layout.tensor = {tensor} does not share out model.heads = {model.heads} with kv_heads = {kv_heads}; "
            f"try {nearest_numbers(tensor, fits)}"
        )
    if model.experts == 0 or model.dense_layers or model.expert_ffn is None:
        _divides("layout.tensor", tensor, "model.ffn", model.ffn or 4 * model.width)
    if model.expert_ffn is not None:
        _divides("layout.tensor", tensor, "model.expert_ffn", model.expert_ffn)
    if context > 1 and data.sequence % (2 * context):
        halves = [k for k in divisors(data.sequence) if data.sequence % (2 * k) == 0] or [1]
        raise ConfigError(
            f"layout.context = {context}: each rank has two pieces of the sequence, and data.sequence = "
            f"{data.sequence} is not divisible by 2 x {context}; try context = {nearest_numbers(context, halves)}, "
            f"or sequence = {_multiples(data.sequence, 2 * context)}"
        )
    if tensor > 1 and layout.sequence_parallel and data.sequence // context % tensor:
        raise ConfigError(
            f"layout.sequence_parallel cuts {data.sequence // context} tokens over layout.tensor = {tensor}, which "
            f"does not divide them; try sequence = {_multiples(data.sequence, 2 * context * tensor)}, or "
            "sequence_parallel = false"
        )


def _experts(run: RunSpec) -> None:
    model, layout = run.model, run.layout
    if layout.expert > 1 and model.experts == 0:
        raise ConfigError(f"layout.expert = {layout.expert} without experts in the model; try expert = 1")
    fits = divisors(gcd(model.experts, layout.data))
    if layout.expert > 1 and layout.expert not in fits:
        raise ConfigError(
            f"layout.expert = {layout.expert} must divide model.experts = {model.experts} and layout.data = "
            f"{layout.data}; try {nearest_numbers(layout.expert, fits)}"
        )


def _sharding(run: RunSpec) -> None:
    layout = run.layout
    training = [name for name, recipe in RECIPES.items() if recipe.gradients]
    if layout.recipe not in training:
        what = "trains nothing" if layout.recipe in RECIPES else f"is unknown{near(layout.recipe, training)}"
        raise ConfigError(f'layout.recipe = "{layout.recipe}" {what} (there are: {", ".join(training)})')
    if layout.sharding != "hsdp":
        if layout.replicas > 1:
            raise ConfigError(
                f'layout.replicas = {layout.replicas} belongs to sharding = "hsdp", not "{layout.sharding}"; '
                "try replicas = 1"
            )
        return
    groups = [k for k in divisors(layout.data // layout.expert) if k > 1]
    if not groups and layout.expert > 1:
        raise ConfigError(
            f'layout.sharding = "hsdp" leaves no two groups of layout.expert = {layout.expert} in layout.data = '
            f'{layout.data}; try sharding = "fsdp", or data = {2 * layout.expert} or more'
        )
    if not groups:
        raise ConfigError('layout.sharding = "hsdp" needs layout.data of 2 or more; try sharding = "fsdp"')
    if layout.replicas not in groups:
        of = "layout.data / expert" if layout.expert > 1 else "layout.data"
        raise ConfigError(
            f"layout.replicas = {layout.replicas} must be 2 or more for hsdp and divide {of} = "
            f"{layout.data // layout.expert}; "
            f'try {nearest_numbers(layout.replicas, groups)}, or sharding = "fsdp"'
        )


def _pipeline(run: RunSpec) -> RunSpec:
    """A schedule's own rules are asked of `parallel.schedule`. Layers need not divide: some stages have one more."""
    from course_lib.parallel.schedule import SCHEDULES, bubble_formula

    layout, layers = run.layout, run.model.layers
    name, ranks, m = layout.schedule, layout.pipeline, run.accumulation
    if name not in SCHEDULES:
        raise ConfigError(
            f'layout.schedule = "{name}" is unknown{near(name, SCHEDULES)} (there are: {", ".join(SCHEDULES)})'
        )
    chunks = 2 if name in ("zbv", "dualpipev") and layout.chunks == 1 and ranks > 1 else layout.chunks
    if ranks == 1:
        if chunks > 1:
            raise ConfigError(f"layout.chunks = {chunks} without a pipeline; try chunks = 1, or pipeline = 2 or more")
        return run
    if ranks * chunks > layers:
        way = f"pipeline = {layers // chunks} or fewer" if layers >= chunks else f"pipeline = {layers} and chunks = 1"
        if chunks > 1 and layers >= ranks:
            way += f", or chunks = {layers // ranks}"
        raise ConfigError(
            f"layout.pipeline = {ranks} x chunks {chunks} = {ranks * chunks} stages are more than model.layers = "
            f"{layers}; try {way}"
        )

    def wrong(micro_batches: int) -> str:
        try:
            bubble_formula(name, ranks, micro_batches, chunks, anywhere=True)
        except ScheduleError as error:
            return str(error)
        return ""

    said = wrong(m)
    if said and not wrong(2 * ranks):  # another number of micro-batches would do: say it in sequences
        fits = next(n for far in count() for n in (m - far, m + far) if n >= 1 and not wrong(n))
        raise ConfigError(
            f'layout.schedule = "{name}" with pipeline = {ranks} has no order for {m} micro-batches '
            f"(data.global_batch / (data x micro_batch)); it has one for {fits}: "
            f"try data.global_batch = {fits * layout.data * layout.micro_batch}"
        )
    if said:
        raise ConfigError(f"layout.chunks = {layout.chunks}: {said}")
    return replace(run, layout=replace(layout, chunks=chunks))
