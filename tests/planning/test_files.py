"""Plans as TOML files: read strictly, written back the same; every wrong one is one line that says what to write."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ConfigError
from course_lib.planning.files import SECTIONS, from_dict, load, loads, merged, read, to_toml, with_settings
from course_lib.planning.presets import about, preset, preset_sections, presets
from course_lib.planning.rules import check
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec
from course_lib.planning.values import RANGES, kinds, number_in

GOOD = """name = "mine"
[model]
layers = 32
width = 4096
heads = 32
vocab = 32_000
[data]
tokens = 2e12
sequence = 4096
global_batch = 1024
[hardware]
devices = 64
device = "A100 SXM 80GB"
[layout]
data = 64
[assume]
restart_minutes = 5
"""

# (a line of GOOD, what stands there instead, what the error has to say)
WRONG = [
    # of the wrong kind
    ("layers = 32", "layers = 2.5", "model.layers = 2.5 must be a whole number (blocks); try 2 or 3"),
    ("layers = 32", "layers = 32.0", "model.layers = 32 must be a whole number, without point or exponent: write 32"),
    ("layers = 32", "layers = 1e3", "write 1000"),
    ("layers = 32", 'layers = "32"', 'model.layers = "32" is text; write a number: layers = 32'),
    (
        "layers = 32",
        'layers = "many"',
        'model.layers = "many" is text; it must be a whole number, without quotes; try 32',
    ),
    ("layers = 32", "layers = true", "model.layers is true or false; it must be a whole number; try 32"),
    ("layers = 32", "layers = [32]", "model.layers is a list"),
    ("layers = 32", "layers = {a = 1}", "model.layers is a section or table"),
    ("layers = 32", "layers = 2026-11-30", "model.layers is a date or time"),
    ("tokens = 2e12", 'tokens = "2T"', 'data.tokens = "2T" is text; write a number: tokens = 2e+12'),
    ("tokens = 2e12", 'tokens = "1e12"', "write a number: tokens = 1e+12"),
    ("tokens = 2e12", "tokens = false", "data.tokens is true or false; it must be a number; try 300e9"),
    ("data = 64", "data = 64\nfused_attention = 1", "layout.fused_attention = 1 must be true or false, without quotes"),
    ("data = 64", 'data = 64\nfused_attention = "yes"', "must be true or false, without quotes"),
    ("data = 64", "data = 64\nsharding = 3", "layout.sharding = 3 must be one of ddp, zero1"),
    (
        "data = 64",
        'data = 64\nsharding = "fspd"',
        "is unknown; did you mean 'fsdp'? (there are: ddp, zero1, zero2, fsdp",
    ),
    ("data = 64", 'data = 64\nrecompute = "selectiv"', "did you mean 'selective'?"),
    ('device = "A100 SXM 80GB"', "device = 100", 'hardware.device = 100 must be text, in quotes: device = "..."'),
    ('name = "mine"', "name = 3", "name = 3 must be text"),
    ('name = "mine"', 'name = ""', "must be text on one line, 1 to 80 characters"),
    ('name = "mine"', 'name = "a\\nb"', "must be text on one line"),
    # of the wrong size
    ("layers = 32", "layers = 0", "model.layers = 0 must be at least 1 (blocks); try 32"),
    ("layers = 32", "layers = -4", "model.layers = -4 must be at least 1"),
    (
        "layers = 32",
        "layers = 99999999999999999999",
        "model.layers = 1e+20 cannot be meant: at most 10000",
    ),
    ("tokens = 2e12", "tokens = nan", "data.tokens = nan must be a number that is finite"),
    ("tokens = 2e12", "tokens = inf", "data.tokens = inf must be a number that is finite"),
    ("tokens = 2e12", "tokens = -inf", "must be a number that is finite"),
    ("tokens = 2e12", "tokens = 0", "data.tokens = 0 must be at least 1"),
    ("tokens = 2e12", "tokens = 1e300", "data.tokens = 1e+300 cannot be meant: at most 1e+18"),
    ("restart_minutes = 5", "restart_minutes = -1", "assume.restart_minutes = -1 must be at least 0 (minutes)"),
    ("restart_minutes = 5", "mfu = 0", "assume.mfu = 0 must be above 0"),
    # in another unit
    ("restart_minutes = 5", "mfu = 40", "looks like percent, not a share between 0 and 1: write mfu = 0.4"),
    ("restart_minutes = 5", 'mfu = "40%"', "write a number: mfu = 0.4"),
    (
        "devices = 64",
        "devices = 64\nmemory_gib = 80e9",
        "looks like bytes, not GiB of 2**30 bytes: write memory_gib = 74.51",
    ),
    (
        "devices = 64",
        "devices = 64\nmemory_gib = 81920",
        "looks like MiB, not GiB of 2**30 bytes: write memory_gib = 80",
    ),
    ("devices = 64", 'devices = 64\nmemory_gib = "80GiB"', "write a number: memory_gib = 80"),
    ("devices = 64", 'devices = 64\nmemory_gib = "1.5 TiB"', "write a number: memory_gib = 1536"),
    ("devices = 64", "devices = 64\nmemory_gb = 80", "hardware.memory_gb is no key: write memory_gib = 80"),
    ("devices = 64", "devices = 64\nmemory_mib = 81920", "write memory_gib = 80"),
    ("devices = 64", "devices = 64\npeak_tflops = 9.89e14", "looks like FLOP/s, not TFLOP/s: write peak_tflops = 989"),
    ("devices = 64", "devices = 64\npeak_tflops = 989e3", "looks like GFLOP/s, not TFLOP/s: write peak_tflops = 989"),
    ("devices = 64", "devices = 64\npeak_flops = 312e12", "write peak_tflops = 312"),
    (
        "devices = 64",
        "devices = 64\ninside_gb_per_s = 300e9",
        "looks like bytes/s, not GB/s: write inside_gb_per_s = 300",
    ),
    ("devices = 64", 'devices = 64\nacross_gb_per_s = "200 Gbit/s"', "write a number: across_gb_per_s = 25"),
    ("devices = 64", "devices = 64\nacross_gbps = 200", "write across_gb_per_s = 25 (GB/s)"),
    ("tokens = 2e12", "tokens = 2 * 10", "write one number, without a unit: the unit stands in the key"),
    ("devices = 64", "devices = 64\nmemory_gib = 80GB # each", "write memory_gib = 80"),
    ("restart_minutes = 5", "mfu = 38%", "write mfu = 0.38"),
    ("restart_minutes = 5", "mfu = 1.5", "assume.mfu = 1.5 cannot be meant: at most 1"),
    ("data = 64", 'data = 64\nsharding = "ZeRO-3"', "did you mean 'fsdp'?"),
    ("data = 64", 'data = 64\nrecompute = "full"', "did you mean 'all'?"),
    ("devices = 64", 'devices = 64\nmemory = "80GB"', "hardware.memory is no key: write memory_gib = 80"),
    ("layers = 32", "LAYERS = 32", "did you mean 'layers'?"),
    ("layers = 32", "layers = 32\nmlp_ratio = 4", "model.mlp_ratio is no key ([model] has: layers"),
    ("[data]", "[model.moe]\nexperts = 8\n[data]", "[model.moe]: a section has no sections of its own"),
    # unknown, misplaced, missing
    ("layers = 32", "layres = 32", "model.layres is no key; did you mean 'layers'?"),
    ("layers = 32", "num_hidden_layers = 32", "model.num_hidden_layers is no key: write layers = 32 (blocks)"),
    ("width = 4096", "hidden_size = 4096", "write width = 4096"),
    ("global_batch = 1024", "batch_tokens = 4_194_304", "give data.global_batch, in sequences"),
    ("data = 64", "tensor_parallel_size = 8", "write tensor = 8 (ranks)"),
    ("data = 64", "data = 64\nlayers = 3", "layout.layers stands in the wrong section; layers belongs below [model]"),
    ("data = 64", "data = 64\ngradient_accumulation_steps = 8", "accumulation follows"),
    ('name = "mine"', "layers = 3", "layers stands outside of a section; it belongs below [model]"),
    ('name = "mine"', "nmae = 'x'", "nmae is no key of the top; did you mean 'name'?"),
    ("[layout]", "[layuot]", "there is no section [layuot]; did you mean 'layout'?"),
    ("[layout]", "[parallelism]", "there is no section [parallelism]; did you mean [layout]?"),
    ("[model]", "[[model]]", "[[model]] is a list; write [model] once"),
    ('name = "mine"', "model = 3", "(at line 2, column 7): [model]"),
    ("layers = 32", "", "model.layers is missing (blocks); for instance layers = 32"),
    (
        "[data]\ntokens = 2e12\nsequence = 4096\nglobal_batch = 1024\n",
        "",
        "the section [data] is missing; it needs tokens",
    ),
    ('name = "mine"', 'base = "7b-on-64"', "there is no preset '7b-on-64'; did you mean '7b-on-64-a100'?"),
    ('name = "mine"', "base = 7", "base = 7 must be text"),
    # no TOML
    ("layers = 32", "layers = ", "no TOML: Invalid value (at line 3, column 10)"),
    ("layers = 32", "layers: 32", "(at line 3, column 7): layers: 32; write key = value"),
    ("layers = 32", "layers = 32\nlayers = 33", "no TOML: Cannot overwrite a value (at line 4, column 12)"),
    ("layers = 32", "tied = True", "tied = True; write true"),
    ("tokens = 2e12", "tokens = 2T", "tokens = 2T; write tokens = 2e+12"),
    ('device = "A100 SXM 80GB"', "device = A100", "write words in quotes"),
    ("[layout]", "[layout", "no TOML: Expected ']' at the end of a table declaration (at line 14, column 8): [layout"),
    (GOOD, '{"model": {"layers": 32}}', "it looks like JSON; write sections like [model]"),
    (GOOD, "a = " + "[" * 5000, "no TOML that a plan needs"),
    (GOOD, "a = " + "9" * 5000, "no TOML that a plan needs"),
    (GOOD, "", "the section [model] is missing; it needs layers, width, heads, vocab"),
]


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    said = str(error.value)
    assert said.isprintable() and len(said) < 420, said
    return said


@pytest.mark.parametrize("line, instead, expected", WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_one_line_with_the_key_and_what_to_write(line, instead, expected):
    text = GOOD.replace(line, instead, 1)
    assert text != GOOD
    with pytest.raises(ConfigError) as error:
        loads(text, "my.toml")
    said = one_line(error)
    assert said.startswith("my.toml: ") and expected in said, said


def test_the_list_above_is_long():
    assert len(WRONG) >= 60


def test_a_good_file():
    run = loads(GOOD)
    assert run.name == "mine" and run.model.layers == 32 and run.data.tokens == 2e12 and run.layout.sharding == "fsdp"
    assert run.assume.restart_minutes == 5.0 and isinstance(run.assume.restart_minutes, float)
    assert (run.batch_tokens, run.accumulation, run.steps) == (4_194_304, 16, 476_838)


def test_what_is_no_file(tmp_path):
    cases = {
        "missing.toml": "there is no such file",
        ".": "is a folder",
        "binary.toml": "is a binary file",
        "latin.toml": "line 2 is no UTF-8 text",
        "huge.toml": "a plan has about a thousand",
        "\0": "there is no such file",
        "a" * 5000: "cannot be read: File name too long",
    }
    (tmp_path / "binary.toml").write_bytes(b"a\0b")
    (tmp_path / "latin.toml").write_bytes("# ok\nname = 'é'".encode("latin-1"))
    (tmp_path / "huge.toml").write_bytes(b"#" * 1_000_001)
    for name, expected in cases.items():
        with pytest.raises(ConfigError, match=re.escape(expected)) as error:
            load(str(tmp_path / name) if name.isprintable() else name)
        assert str(error.value).isprintable()


def test_a_file_from_a_windows_editor(tmp_path):
    path = tmp_path / "wëird.toml"
    path.write_bytes(GOOD.replace('name = "mine"\n', "").replace("\n", "\r\n").encode("utf-8-sig"))
    assert load(path) == replace(loads(GOOD), name="wëird")


@pytest.mark.parametrize("name", presets())
def test_presets_are_legal_and_survive_the_way_to_a_file_and_back(name):
    run = preset(name)
    filled = check(run)
    assert run.name == name and about(name)
    assert loads(to_toml(run)) == run and loads(to_toml(filled)) == filled
    assert check(filled) == filled


def numbers(section, cls):
    """Every field of a section: a value in its range, or none where it may be left out."""

    def one(key, kind):
        if kind.type is bool:
            return st.booleans()
        if kind.type is str:
            free = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=80)
            return st.sampled_from(kind.choices) if kind.choices else free
        bounds = RANGES[section][key]
        if kind.type is int:
            return st.integers(int(bounds.low), int(bounds.high))
        return st.floats(bounds.low, bounds.high, exclude_min=bounds.above)

    made = {key: one(key, kind) for key, kind in kinds(cls).items()}
    optional = {key: st.none() | values if kinds(cls)[key].optional else values for key, values in made.items()}
    return st.builds(cls, **optional)


@settings(max_examples=200, deadline=None)
@given(
    st.builds(
        RunSpec,
        name=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=80),
        model=numbers("model", ModelSpec),
        data=numbers("data", DataSpec),
        hardware=numbers("hardware", HardwareSpec),
        layout=numbers("layout", LayoutSpec),
        assume=numbers("assume", Assumptions),
    )
)
def test_any_run_survives_the_way_to_a_file_and_back(run):
    assert loads(to_toml(run)) == run


WORDS = [word for word in re.split(r"(\W)", GOOD) if word] + [
    "nan", "-", "1e999", '"', "'''", "[[", "{}", "\x00", "ä", "base", "0x" + "f" * 400, "9" * 30, "true", "#", "\\",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mangled_file_is_a_run_or_a_config_error(data):
    """Words of a good file changed, left out or doubled."""
    words = [word for word in re.split(r"(\W)", GOOD) if word]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(words) - 1))
        words[place : place + data.draw(st.integers(0, 2))] = data.draw(st.lists(st.sampled_from(WORDS), max_size=2))
    try:
        assert isinstance(check(loads("".join(words))), RunSpec)
    except ConfigError as error:
        assert str(error).isprintable()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*SECTIONS, "name", "base", "x"]) | st.text(max_size=8), JUNK, max_size=4),
    st.data(),
)
def test_any_data_is_a_run_or_a_config_error(junk, data):
    """Also a good run with one value replaced by anything."""
    good = preset_sections("70b-on-512-h100")
    section = data.draw(st.sampled_from(list(SECTIONS)))
    key = data.draw(st.sampled_from(list(kinds(SECTIONS[section]))))
    value = data.draw(st.none() | st.integers(0, 10**6) | JUNK)
    value = 10**5000 if value is None else value
    for trial in (junk, {**good, section: {**good.get(section, {}), key: value}}):
        try:
            assert isinstance(check(from_dict(trial)), RunSpec)
        except ConfigError as error:
            assert str(error).isprintable()


def test_a_base_is_changed_key_by_key():
    run = loads('base = "7b-on-64-a100"\n[layout]\nmicro_batch = 4\n')
    base = preset("7b-on-64-a100")
    assert run == replace(base, name="run", layout=replace(base.layout, micro_batch=4))


def test_another_device_takes_no_figure_of_the_old_one_along():
    base = {"hardware": {"devices": 8, "device": "TPU v4", "devices_per_node": 3072, "storage_gb_per_s": 9.0}}
    assert merged(base, {"hardware": {"device": "H100 SXM"}})["hardware"] == {
        "devices": 8,
        "device": "H100 SXM",
        "storage_gb_per_s": 9.0,
    }
    assert merged(base, {"hardware": {"devices": 16}})["hardware"]["devices_per_node"] == 3072


def test_settings_are_toml_values_or_words():
    run = from_dict(
        with_settings(
            preset_sections("70b-on-512-h100"),
            ["layout.tensor=4", "layout.data = 32", "hardware.device=B200 SXM", 'name="x y"', "model.tied=true"],
        )
    )
    assert (run.layout.tensor, run.layout.data, run.hardware.device) == (4, 32, "B200 SXM")
    assert run.name == "x y" and run.model.tied
    for wrong, expected in {
        "tensor=4": "write section.key=value",
        "layout.tensor": "write section.key=value",
        "layuot.tensor=4": "did you mean 'layout'?",
        "layout.tensro=4": "did you mean 'tensor'?",
        "layout.tensor=": 'layout.tensor = "" is text',
        "layout.tensor=2.5": "must be a whole number",
        "name=": "must be text on one line",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(expected)):
            from_dict(with_settings(preset_sections("70b-on-512-h100"), [wrong]))


def test_the_file_of_the_data_is_not_changed_by_settings():
    data = read_only = preset_sections("laptop")
    before = repr(read_only)
    with_settings(data, ["layout.data=2", "hardware.device=TPU v4"])
    assert repr(data) == before


def test_numbers_in_texts():
    found = {
        ("80 GB", "GiB of 2**30 bytes"): 80,
        ("400Gb/s", "GB/s"): 50,
        ("3.2 TB/s", "GB/s"): 3200,
        ("1,024", "sequences"): 1024,
        ("7B", "parameters"): 7e9,
        ("2 PFLOP/s", "TFLOP/s"): 2000,
        ("90 s", "minutes"): 1.5,
    }
    for (text, unit), number in found.items():
        assert number_in(text, unit) == pytest.approx(number)
    assert [number_in(text) for text in ("", "x", "1e999", "1 2 3", "80 zorkmids", "9" * 100)] == [None] * 6


def test_a_dataclass_says_the_same_as_a_file():
    with pytest.raises(ConfigError, match=r"model\.layers = 2\.5 must be a whole number"):
        ModelSpec(layers=2.5, width=8, heads=2, vocab=8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="looks like FLOP/s"):
        HardwareSpec(devices=8, peak_tflops=9.89e14)


def test_read_is_not_yet_checked(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("[anything]\na = 1\n", encoding="utf-8")
    assert read(path) == {"anything": {"a": 1}}
