"""Loading holds what the engine keeps, and beside it one tensor at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from tests.models.quantised.checkpoints import LAYOUTS, quantise

LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
MB = 1 << 20
QUANTISED = {"fp8": "float-channel", "int8": "int-channel"}  # forms, and their layouts

# Prints what the process's resident set grows by at its peak, and what the engine keeps, in bytes.
PROGRAM = """
import sys
import torch
import decoding
from decoding.compare.memory import ResidentMemory

directory, device, dtype = sys.argv[1:]
if device == "cuda":
    torch.zeros(1, device=device)  # the context
decoding.load(sys.argv[1] + "/small", device, dtype, threads=2)  # what is imported late
memory = ResidentMemory()
with memory:
    model = decoding.load(directory, device, dtype, threads=2)
print(memory.growth, model.weight_bytes)
"""

# 40 to 50 M weights, so that what else a load needs is little; the largest is the token table.
SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 8000,
        "hidden_size": 768,
        "intermediate_size": 2112,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
    },
    "gpt2": {"vocab_size": 8000, "n_embd": 768, "n_layer": 6, "n_head": 12},
    "marian": {
        "vocab_size": 8000,
        "d_model": 768,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
        "pad_token_id": 7999,
        "decoder_start_token_id": 7999,
    },
    "t5": {
        "vocab_size": 8000,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 12,
    },
}
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 64},
    "gpt2": {"n_layer": 1, "vocab_size": 64},
    "marian": {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64, "pad_token_id": 63},
    "t5": {"num_layers": 1, "num_decoder_layers": 1, "vocab_size": 64},
}
KINDS = {
    "llama": transformers.LlamaForCausalLM,
    "gpt2": transformers.GPT2LMHeadModel,
    "marian": transformers.MarianMTModel,
    "t5": transformers.T5ForConditionalGeneration,
}


def write(directory: Path, family: str, form: str, **changes: Any) -> int:
    """A random checkpoint in bfloat16, or with layers in fp8 or int8; returns the bytes of its
    largest tensor in float32."""
    directory.mkdir(exist_ok=True)
    kind = KINDS[family]
    config = kind.config_class(**SIZES[family] | changes)
    with torch.device("meta"):
        model = kind(config)
    state: dict[str, Tensor] = {
        name: torch.empty(tensor.shape, dtype=torch.bfloat16).normal_(0, 0.02)
        for name, tensor in model.named_parameters()
    }
    written = config.to_dict() | {"architectures": [kind.__name__]}
    if form in QUANTISED:
        layout = LAYOUTS[QUANTISED[form]]
        written["quantization_config"] = layout.config()
        for name in [name for name in state if "_proj" in name]:
            found = quantise(state[name].float(), layout)
            state[name], state[f"{name}_scale"] = found.numbers, found.scale
    (directory / "config.json").write_text(json.dumps(written))
    if form == "torch":
        torch.save(state, directory / "pytorch_model.bin")
    else:
        save_file(state, directory / "model.safetensors")
    return max(4 * tensor.numel() for tensor in state.values())


def check_memory(directory: Path, family: str, form: str, device: str, dtype: str) -> None:
    largest = write(directory, family, form)
    write(directory / "small", family, form, **SMALL[family])
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), device, dtype],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, kept = map(int, found.stdout.split())
    allowed = (1.2 if device == "cpu" else 0.2) * kept + largest
    assert peak <= allowed, f"{peak / MB:.0f} MB for {kept / MB:.0f} and {largest / MB:.0f}"


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "form", "dtype"),
    [
        ("llama", "safetensors", "bfloat16"),
        ("llama", "torch", "bfloat16"),
        ("llama", "safetensors", "float32"),
        ("llama", "safetensors", "int8"),
        ("llama", "fp8", "bfloat16"),
        ("llama", "fp8", "int8"),
        ("llama", "int8", "int8"),
        ("gpt2", "safetensors", "bfloat16"),
        ("marian", "safetensors", "bfloat16"),
        ("t5", "safetensors", "bfloat16"),
    ],
)
def test_memory_while_loading(family: str, form: str, dtype: str, tmp_path: Path) -> None:
    check_memory(tmp_path, family, form, "cpu", dtype)


@LINUX
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["llama", "marian"])
def test_memory_while_loading_on_a_gpu(family: str, dtype: str, tmp_path: Path) -> None:
    check_memory(tmp_path, family, "safetensors", "cuda", dtype)
