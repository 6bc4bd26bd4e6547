"""Common devices with their data-sheet figures, and what a plan's [hardware] takes from them.

    DEVICES["H100 SXM"].peak_tflops              # 989.0
    full = fill(HardwareSpec(devices=64, device="H100 SXM", memory_gib=94.0))
    full.inside_gb_per_s, full.memory_gib        # 450.0, 94.0: what is given stays
    assumed(full)                                # ["storage_gb_per_s"]: what of it no data sheet has

The figures are in `devices.toml`, each device with its source and with what is assumed.
"""

import tomllib
from dataclasses import dataclass, replace
from importlib import resources

from course_lib.errors import ConfigError
from course_lib.planning._words import near as words_near
from course_lib.planning.spec import HardwareSpec

__all__ = ["DEVICES", "STORAGE_GB_PER_S_A_DEVICE", "Device", "assumed", "fill", "find"]

STORAGE_GB_PER_S_A_DEVICE = 0.125
"""What storage takes in from each device when a plan does not say: 1 GB/s a node of eight. Llama 3 had 2 TB/s for
16,384 GPUs (arXiv 2407.21783, section 3.3.1), which is as much."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of device. Units as in `HardwareSpec`."""

    memory_gib: float
    memory_tb_per_s: float
    peak_tflops: float
    reached: float
    inside_gb_per_s: float
    across_gb_per_s: float
    devices_per_node: int
    failures_per_device_year: float
    assumed: tuple[str, ...]
    """Which of these stand in no data sheet."""
    source: str
    """Where the others do."""


def _read() -> dict[str, Device]:
    text = resources.files("course_lib.planning").joinpath("devices.toml").read_text(encoding="utf-8")
    return {name: Device(**{**row, "assumed": tuple(row["assumed"])}) for name, row in tomllib.loads(text).items()}


DEVICES: dict[str, Device] = _read()
"""By name, as `device = "..."` has it."""

_FILLED = (
    "devices_per_node",
    "memory_gib",
    "memory_tb_per_s",
    "peak_tflops",
    "reached",
    "inside_gb_per_s",
    "across_gb_per_s",
    "failures_per_device_year",
)
_WITHOUT_A_DEVICE = {"memory_tb_per_s": 2.0, "reached": 0.8, "failures_per_device_year": 0.173, "devices_per_node": 8}
"""For a device that is not in the list. What decides a plan (memory, peak, bandwidths) has to be given."""


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def find(name: str) -> str:
    """The name in `DEVICES`, whatever the case, blanks and hyphens; `ConfigError` with the nearest for another."""
    for known in DEVICES:
        if _letters(known) == _letters(name):
            return known
    starts = [known for known in DEVICES if _letters(name) and _letters(known).startswith(_letters(name))]
    near = f"; did you mean {' or '.join(map(repr, starts))}?" if starts else words_near(name, DEVICES)
    raise ConfigError(
        f'hardware.device = "{name}" is unknown{near} (there are: {", ".join(DEVICES)}); for another leave it out and '
        "give memory_gib, peak_tflops, inside_gb_per_s and across_gb_per_s"
    )


def fill(hardware: HardwareSpec) -> HardwareSpec:
    """The hardware with every number but the price, which nobody but you knows.

    `ConfigError` for an unknown device, for a figure that is missing and decides the plan, and for one that is so far
    from the device's data sheet that it must be in another unit.
    """
    known: dict[str, float | int] = {}
    name = None if hardware.device is None else find(hardware.device)
    if name is not None:
        known = {key: getattr(DEVICES[name], key) for key in _FILLED}
        for key in ("memory_gib", "peak_tflops", "inside_gb_per_s", "across_gb_per_s"):
            _check_unit(name, key, getattr(hardware, key), known[key])
    else:
        known = dict(_WITHOUT_A_DEVICE)
    known["storage_gb_per_s"] = STORAGE_GB_PER_S_A_DEVICE * hardware.devices
    alone = {"inside_gb_per_s", "across_gb_per_s"} if hardware.devices == 1 else set()
    found: dict[str, float | int | str] = {} if name is None else {"device": name}
    for key in (*_FILLED, "storage_gb_per_s"):
        if getattr(hardware, key) is None:
            if key not in known and key not in alone:
                raise ConfigError(
                    f"hardware.{key} is missing: give it, or name a device that brings it: "
                    f'device = "H100 SXM" (there are: {", ".join(DEVICES)})'
                )
            found[key] = known.get(key, 1.0)
    return replace(hardware, **found)  # type: ignore[arg-type]


def _check_unit(name: str, key: str, value: float | None, sheet: float) -> None:
    """Refuse a figure that is off the data sheet's by the factor between two units."""
    if value is None:
        return
    factors = [(1e3, "by a thousand"), (1e-3, "by a thousand")]
    if key.endswith("gb_per_s"):
        factors.append((8.0, "eight times: Gbit/s, or the sum of a node's cards, is not GB/s of one device"))
    for factor, why in factors:
        if abs(value / sheet / factor - 1) < 0.03:
            raise ConfigError(
                f"hardware.{key} = {value:g} is not what {name} has, {sheet:g} ({why}); "
                f"write {key} = {value / factor:g}, or leave device out"
            )


def assumed(hardware: HardwareSpec) -> list[str]:
    """Keys of a filled hardware whose figures are assumptions of ours: in no data sheet, and not given otherwise."""
    device = None if hardware.device is None else DEVICES[find(hardware.device)]
    guesses: dict[str, float] = {key: getattr(device, key) for key in device.assumed} if device else _WITHOUT_A_DEVICE
    storage = {"storage_gb_per_s": STORAGE_GB_PER_S_A_DEVICE * hardware.devices}
    return [key for key, guess in (guesses | storage).items() if getattr(hardware, key) == guess]
