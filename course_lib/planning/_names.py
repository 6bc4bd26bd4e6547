"""What other programs call the keys of a plan, so that a wrong key can be answered with the right one and its value."""

from typing import Any, NamedTuple

from course_lib.planning.values import RANGES, number_in, plain

__all__ = ["SECTION_NAMES", "other_name"]


class Name(NamedTuple):
    """Another name of a key."""

    section: str
    key: str
    factor: float = 1.0
    """What the value is multiplied by."""


SECTION_NAMES = {
    "parallel": "layout",
    "parallelism": "layout",
    "strategy": "layout",
    "training": "data",
    "train": "data",
    "cluster": "hardware",
    "device": "hardware",
    "system": "hardware",
    "assumptions": "assume",
    "architecture": "model",
}
"""What else a section is called."""

_KEYS: dict[tuple[str, str], str] = {
    ("model", "layers"): "n_layers num_layers num_hidden_layers n_layer depth blocks",
    ("model", "width"): "d_model hidden_size hidden dim n_embd embed_dim model_dim hidden_dim d",
    ("model", "heads"): "n_heads num_heads num_attention_heads n_head attention_heads",
    ("model", "kv_heads"): "n_kv_heads num_key_value_heads num_query_groups num_kv_heads kv",
    ("model", "ffn"): "d_ff intermediate_size ffn_dim ffn_hidden_size mlp feed_forward ff ffn_size",
    ("model", "vocab"): "vocab_size vocabulary n_vocab vocabulary_size",
    ("model", "tied"): "tie_embeddings tie_word_embeddings tied_embeddings weight_tying",
    ("model", "biases"): "bias use_bias",
    ("model", "experts"): "num_experts n_experts num_local_experts n_routed_experts",
    ("model", "active_experts"): "top_k topk num_experts_per_tok experts_per_token moe_top_k",
    ("model", "shared_experts"): "n_shared_experts num_shared_experts",
    ("model", "expert_ffn"): "moe_intermediate_size moe_ffn expert_width d_expert",
    ("data", "tokens"): "n_tokens num_tokens train_tokens total_tokens training_tokens",
    ("data", "sequence"): "seq_len seq_length sequence_length context_length max_seq_len seq block_size",
    ("data", "global_batch"): "batch batch_size global_batch_size gbs sequences",
    ("hardware", "devices"): "gpus n_gpus num_gpus world_size num_devices n_devices accelerators tpus chips",
    ("hardware", "device"): "gpu accelerator device_name gpu_type device_type",
    ("hardware", "devices_per_node"): "gpus_per_node per_node node_size",
    ("hardware", "memory_gib"): "memory_gb memory vram vram_gb hbm hbm_gb memory_per_device",
    ("hardware", "peak_tflops"): "peak tflops peak_tflop_s peak_tflops_bf16",
    ("hardware", "inside_gb_per_s"): "inside nvlink nvlink_gb_per_s intra_node inside_gbytes_per_s inside_gbs",
    (
        "hardware",
        "across_gb_per_s",
    ): "across network bandwidth inter_node across_gbs network_gb_per_s bandwidth_gb_per_s",
    ("hardware", "storage_gb_per_s"): "storage storage_bandwidth storage_gbs",
    ("hardware", "failures_per_device_year"): "failure_rate failures failures_per_year",
    ("hardware", "price_per_device_hour"): "price cost price_per_hour price_per_gpu_hour",
    ("layout", "data"): "dp data_parallel dp_size data_parallel_size",
    ("layout", "tensor"): "tp tensor_parallel tp_size tensor_parallel_size",
    ("layout", "pipeline"): "pp pipeline_parallel pp_size stages pipeline_parallel_size",
    ("layout", "context"): "cp context_parallel cp_size context_parallel_size",
    ("layout", "expert"): "ep expert_parallel ep_size expert_parallel_size",
    ("layout", "micro_batch"): "mbs micro_batch_size microbatch local_batch_size",
    ("layout", "chunks"): "virtual_stages vpp v model_chunks",
    ("layout", "sharding"): "zero data_parallel_strategy fsdp dp_strategy",
    ("layout", "recompute"): "activation_checkpointing checkpointing recomputation remat",
    ("layout", "recipe"): "precision dtype optimizer",
    ("layout", "fused_attention"): "flash_attention flash",
    ("assume", "mfu"): "utilisation utilization model_flops_utilization",
}
_OTHERS = {word: Name(*pair) for pair, words in _KEYS.items() for word in words.split()}
_OTHERS |= {
    "memory_mib": Name("hardware", "memory_gib", 2.0**-10),
    "memory_mb": Name("hardware", "memory_gib", 2.0**-10),
    "memory_tb": Name("hardware", "memory_gib", 2.0**10),
    "memory_tib": Name("hardware", "memory_gib", 2.0**10),
    "memory_bytes": Name("hardware", "memory_gib", 2.0**-30),
    "peak_flops": Name("hardware", "peak_tflops", 1e-12),
    "flops": Name("hardware", "peak_tflops", 1e-12),
    "peak_gflops": Name("hardware", "peak_tflops", 1e-3),
    "peak_pflops": Name("hardware", "peak_tflops", 1e3),
    "restart_seconds": Name("assume", "restart_minutes", 1 / 60),
    "restart_hours": Name("assume", "restart_minutes", 60.0),
    "checkpoint_every_seconds": Name("assume", "checkpoint_every_minutes", 1 / 60),
    "checkpoint_every_hours": Name("assume", "checkpoint_every_minutes", 60.0),
    "mfu_percent": Name("assume", "mfu", 0.01),
    "tokens_billion": Name("data", "tokens", 1e9),
    "tokens_b": Name("data", "tokens", 1e9),
    "tokens_trillion": Name("data", "tokens", 1e12),
    "tokens_t": Name("data", "tokens", 1e12),
}
_BANDWIDTHS: dict[str, float] = {
    "gbit_per_s": 1 / 8,
    "gbps": 1 / 8,
    "gbit": 1 / 8,
    "mb_per_s": 1e-3,
    "tb_per_s": 1e3,
    "bytes_per_s": 1e-9,
    "gib_per_s": 2**30 / 1e9,
}
for _place in ("inside", "across", "storage"):
    _OTHERS |= {
        f"{_place}_{word}": Name("hardware", f"{_place}_gb_per_s", times) for word, times in _BANDWIDTHS.items()
    }

_FOLLOWS: dict[str, str] = {
    "accumulation": "accumulation follows: data.global_batch / (layout.data x layout.micro_batch)",
    "grad_accum_steps": "accumulation follows: data.global_batch / (layout.data x layout.micro_batch)",
    "gradient_accumulation_steps": "accumulation follows: data.global_batch / (layout.data x layout.micro_batch)",
    "batch_tokens": "give data.global_batch, in sequences: tokens of a batch / data.sequence",
    "nodes": "give hardware.devices, of all nodes together, and devices_per_node",
    "parameters": "parameters follow from the shapes: give layers, width, heads, vocab",
    "params": "parameters follow from the shapes: give layers, width, heads, vocab",
    "steps": "steps follow: data.tokens / (data.global_batch x data.sequence)",
    "mtbf_hours": "give hardware.failures_per_device_year: 8760 / (hours between failures x devices)",
    "mtbf": "give hardware.failures_per_device_year: 8760 / (hours between failures x devices)",
    "epochs": "give data.tokens: all tokens that are trained on, repeats counted",
}


def other_name(section: str, word: str, value: Any) -> str | None:
    """What to write instead of a key that other programs have, with the value in our unit; None for any other word."""
    spelled = word.lower().replace("-", "_").strip()
    if spelled in _FOLLOWS:
        return _FOLLOWS[spelled]
    name = _OTHERS.get(spelled)
    if name is None:
        return None
    place = "" if name.section == section else f" in [{name.section}]"
    bounds = RANGES[name.section].get(name.key)
    if isinstance(value, str) and bounds is not None:
        value = number_in(value, bounds.unit)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if bounds is None or not number or not bounds.low <= value * name.factor <= bounds.high:
        unit = "" if bounds is None else f" ({bounds.unit})"
        return f"the key is {name.key}{place}{unit}"
    whole = isinstance(value, int) and name.factor == 1
    return f"write {name.key} = {plain(value * name.factor, whole)}{place} ({bounds.unit})"
