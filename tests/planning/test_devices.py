"""Devices and their figures: against the data sheets as printed, and what a plan takes from them."""

import re
from dataclasses import fields, replace

import pytest

from course_lib.errors import ConfigError
from course_lib.planning.clusters import CLUSTERS
from course_lib.planning.devices import DEVICES, STORAGE_GB_PER_S_A_DEVICE, Device, assumed, fill, find
from course_lib.planning.files import from_dict, with_settings
from course_lib.planning.presets import preset_sections
from course_lib.planning.spec import HardwareSpec

# TFLOP/s (dense, 16 bits), GB, TB/s, one-way GB/s of the fast link, best measured matrix product in TFLOP/s.
SHEETS = {
    "A100 SXM 40GB": (312, 40, 1.555, 300, 271),
    "A100 SXM 80GB": (312, 80, 2.039, 300, 271),
    "H100 SXM": (989, 80, 3.35, 450, 794),
    "H200 SXM": (989, 141, 4.8, 450, 794),
    "B200 SXM": (2250, 180, 8.0, 900, 1745),
    "MI300X": (1307, 192, 5.3, 448, 668),
    "TPU v4": (275, 32, 1.2, 6 * 45, None),
    "TPU v5p": (459, 95, 2.76, 6 * 90, None),
    "RTX 4090": (165.2, 24, 1.008, 31, None),
}


@pytest.mark.parametrize("name", SHEETS)
def test_the_figures_of_the_sheets(name):
    one, (peak, memory, speed, link, measured) = DEVICES[name], SHEETS[name]
    assert (one.peak_tflops, one.memory_gib, one.memory_tb_per_s, one.inside_gb_per_s) == (peak, memory, speed, link)
    if measured:  # `reached` has two digits
        assert one.reached == pytest.approx(measured / peak, abs=0.005)


def test_network_cards_as_shares_of_a_node():
    """Eight cards of 200 and 400 Gbit/s for eight devices; four of 100."""
    assert DEVICES["A100 SXM 80GB"].across_gb_per_s == 8 * 200 / 8 / 8
    assert DEVICES["H100 SXM"].across_gb_per_s == 8 * 400 / 8 / 8
    assert DEVICES["V100 SXM 32GB"].across_gb_per_s == 4 * 100 / 8 / 8


def test_failure_rates_are_those_of_the_papers():
    llama = 419 / (16_384 * 54 / 365)
    rsc = 6.50 / 1000 / 8 * 365
    assert DEVICES["H100 SXM"].failures_per_device_year == pytest.approx(llama, rel=0.002)
    assert DEVICES["A100 SXM 80GB"].failures_per_device_year == pytest.approx(rsc, rel=0.002)


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_a_source_and_can_be_filled_in(name):
    one = DEVICES[name]
    assert len(one.source) > 40
    assert set(one.assumed) <= {field.name for field in fields(Device)} - {"assumed", "source"}
    full = fill(HardwareSpec(devices=16, device=name))
    left = [field.name for field in fields(full) if getattr(full, field.name) is None]
    assert left == ["price_per_device_hour"]
    assert fill(full) == full
    assert full.storage_gb_per_s == 16 * STORAGE_GB_PER_S_A_DEVICE
    assert assumed(full) == [*one.assumed, "storage_gb_per_s"]


def test_what_is_given_stays():
    given = HardwareSpec(devices=8, device="H100 SXM", memory_gib=94, failures_per_device_year=0.0, storage_gb_per_s=2)
    full = fill(given)
    assert (full.memory_gib, full.failures_per_device_year, full.storage_gb_per_s) == (94.0, 0.0, 2.0)
    assert assumed(full) == []


def test_a_device_that_is_not_in_the_list():
    own = HardwareSpec(devices=16, memory_gib=64, peak_tflops=400, inside_gb_per_s=200, across_gb_per_s=20)
    full = fill(own)
    assert full.device is None and full.devices_per_node == 8
    assert {"reached", "failures_per_device_year", "devices_per_node", "storage_gb_per_s"} <= set(assumed(full))
    for key in ("memory_gib", "peak_tflops", "inside_gb_per_s", "across_gb_per_s"):
        with pytest.raises(ConfigError, match=rf"hardware\.{key} is missing: give it, or name a device"):
            fill(replace(own, **{key: None}))
    alone = fill(HardwareSpec(devices=1, memory_gib=64, peak_tflops=400))  # nothing to send to
    assert alone.inside_gb_per_s is not None


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"device": "H100"}, "did you mean 'H100 SXM'?"),
        ({"device": "A100"}, "did you mean 'A100 SXM 40GB' or 'A100 SXM 80GB'?"),
        ({"device": "MI300"}, "did you mean 'MI300X'?"),
        ({"device": "abacus"}, "(there are: A100 SXM 40GB"),
        ({"across_gb_per_s": 400}, "across_gb_per_s = 400 is not what H100 SXM has, 50 (eight times: Gbit/s"),
        ({"inside_gb_per_s": 3600}, "write inside_gb_per_s = 450"),
        ({"peak_tflops": 0.989}, "by a thousand); write peak_tflops = 989"),
        ({"memory_gib": 0.08}, "write memory_gib = 80"),
    ],
)
def test_what_must_be_a_slip(changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        fill(HardwareSpec(**{"devices": 8, "device": "H100 SXM", **changes}))


def test_a_slower_or_faster_network_is_no_slip():
    for speed in (1.25, 12.5, 25, 100, 200):
        assert fill(HardwareSpec(devices=8, device="H100 SXM", across_gb_per_s=speed)).across_gb_per_s == speed


def test_names_are_found_whatever_their_case_and_hyphens():
    assert find("h100-sxm") == find("H100 SXM") == "H100 SXM" and find("a100sxm80gb") == "A100 SXM 80GB"
    run = from_dict(with_settings(preset_sections("laptop"), ["hardware.device=tpu-v4"]))
    assert fill(run.hardware).device == "TPU v4"


def test_the_clusters_take_their_figures_from_the_devices():
    for name, device in (("A100 nodes", "A100 SXM 80GB"), ("H100 nodes", "H100 SXM")):
        cluster, one = CLUSTERS[name], DEVICES[device]
        assert (cluster.peak, cluster.reached) == (one.peak_tflops * 1e12, one.reached)
        assert cluster.bandwidth == one.across_gb_per_s * one.devices_per_node * 1e9
