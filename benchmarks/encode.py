"""Hidden states of ragged batches: ours, transformers' on padded rows, and torch's nested tensors.

python -m benchmarks.encode [--device cuda --dtype float16] [--lengths 128 256] [--output FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import decoding
from benchmarks.cases.workloads import SEED
from benchmarks.report.rows import show_and_write
from decoding.compare.environment import environment
from decoding.compare.timing import percentile

BATCH = 16
LENGTHS = (128, 256, 512, 1024)  # of the longest row
SHARE = 0.6  # of it that rows have on average
# Of two engines in one type, relative to the largest state: half precision rounds every block.
CLOSE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}

ROUNDED = ("ours-int8", "ours-w8a8")  # their weights, and what they read, too

Encode = Callable[[Tensor, Tensor], Tensor]  # ids and mask, [B, T], to states [B, T, H]


@dataclass(frozen=True)
class EncodeRow:
    """Milliseconds of a batch. times: of ours that it takes. cosine: the least one of a sentence's
    mean state with huggingface's."""

    model: str
    batch: int
    length: int
    tokens: int  # that count
    engine: str
    dtype: str
    threads: int
    repeats: int
    p20: float
    p50: float
    p80: float
    unit: str
    times: float
    cosine: float
    device: str
    flags: str
    commit: str
    date: str

    def __str__(self) -> str:
        taken = f"{self.p50:9.3f} ms  {self.times:6.2f}x ours"
        return f"{self.length:5} {self.engine:14} {taken}  cosine {self.cosine:.5f}"


def random_bert(layers: int) -> Any:
    """BERT-base, with positions for the longest rows."""
    import transformers

    torch.manual_seed(SEED)
    config = transformers.BertConfig(max_position_embeddings=max(LENGTHS), num_hidden_layers=layers)
    return transformers.BertModel(config, add_pooling_layer=False).eval()


class Nested(nn.Module):
    """torch's TransformerEncoder, whose fast path drops padding, with the weights of a BERT."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        config = bert.config
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            activation="gelu",
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
        )
        self.embeddings = bert.embeddings
        self.encoder = nn.TransformerEncoder(
            layer, config.num_hidden_layers, enable_nested_tensor=True
        )
        for ours, theirs in zip(self.encoder.layers, bert.encoder.layer, strict=True):
            ours.load_state_dict(renamed(theirs))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(self.embeddings(ids), src_key_padding_mask=~mask)
        return nn.functional.pad(states, (0, 0, 0, ids.shape[1] - states.shape[1]))


def renamed(layer: Any) -> dict[str, Tensor]:
    """A BERT layer's weights by the names of nn.TransformerEncoderLayer."""
    attention, state = layer.attention, dict[str, Tensor]()
    parts = [getattr(attention.self, name) for name in ("query", "key", "value")]
    for kind in ("weight", "bias"):
        state[f"self_attn.in_proj_{kind}"] = torch.cat([getattr(part, kind) for part in parts])
        for name, part in {
            "self_attn.out_proj": attention.output.dense,
            "norm1": attention.output.LayerNorm,
            "linear1": layer.intermediate.dense,
            "linear2": layer.output.dense,
            "norm2": layer.output.LayerNorm,
        }.items():
            state[f"{name}.{kind}"] = getattr(part, kind)
    return state


def encoder_of(model: decoding.Model) -> Encode:
    return lambda ids, mask: model.encode(ids, mask).last_hidden_state


def engines(options: argparse.Namespace) -> dict[str, Encode]:
    dtype, bert = getattr(torch, options.dtype), random_bert(options.layers)
    threads = {"threads": options.threads} if options.device == "cpu" else {}
    models = {"ours": decoding.load(bert, options.device, options.dtype, **threads)}
    if options.w8a8:
        rounded: dict[str, Any] = {"dtype": "int8", "kv_cache_dtype": options.dtype}
        models["ours-int8"] = decoding.load(bert, options.device, **rounded)
        models["ours-w8a8"] = decoding.load(
            bert, options.device, activation_dtype="int8", **rounded
        )
    bert = bert.to(options.device, dtype)
    nested = Nested(bert).eval().to(options.device, dtype)
    return {
        **{name: encoder_of(model) for name, model in models.items()},
        "huggingface": lambda ids, mask: bert(ids, mask.long()).last_hidden_state,
        "torch-nested": nested,
    }


def ragged_batch(longest: int, device: str) -> tuple[Tensor, Tensor]:
    """Ids and mask, [BATCH, longest]: lengths evenly from 2 * SHARE - 1 of the longest to it."""
    torch.manual_seed(SEED)
    lengths = torch.linspace((2 * SHARE - 1) * longest, longest, BATCH).round()
    mask = torch.arange(longest) < lengths[:, None]
    ids = torch.randint(1000, 30000, mask.shape).where(mask, torch.tensor(0))
    return ids.to(device), mask.to(device)


@torch.inference_mode()
def measure(options: argparse.Namespace, longest: int, peers: dict[str, Encode]) -> list[EncodeRow]:
    """All of them in turns. Raises ValueError where the states of two differ."""
    ids, mask = ragged_batch(longest, options.device)
    times: dict[str, list[float]] = {name: [] for name in peers}
    expected, cosines = peers["huggingface"](ids, mask).float(), dict[str, float]()
    for name, encode in peers.items():
        states = encode(ids, mask).float()
        error = float((states - expected)[mask].abs().max() / expected[mask].abs().max())
        if error > CLOSE[options.dtype] and name not in ROUNDED:
            raise ValueError(f"the states of {name} differ from huggingface's by {error:.3g}")
        found, theirs = ((x * mask[..., None]).sum(1) for x in (states, expected))
        cosines[name] = float(nn.functional.cosine_similarity(found, theirs).min())
    for _ in range(options.repeats):
        for name, encode in peers.items():
            begin = time.perf_counter()
            encode(ids, mask)
            if options.device == "cuda":
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - begin))
    ours, where = percentile(times["ours"], 50), environment(options.device)
    rows = []
    for name, taken in times.items():
        p20, p50, p80 = (percentile(taken, percent) for percent in (20, 50, 80))
        rows.append(
            EncodeRow(
                model=f"bert-base, {options.layers} layers",
                batch=BATCH,
                length=longest,
                tokens=int(mask.sum()),
                engine=name,
                dtype=options.dtype,
                threads=options.threads if options.device == "cpu" else 0,
                repeats=options.repeats,
                p20=p20,
                p50=p50,
                p80=p80,
                unit="ms",
                times=p50 / ours,
                cosine=cosines[name],
                **asdict(where),
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=list(CLOSE))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="TOKENS")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--w8a8", action="store_true", help="ours in int8, and on both sides, too")
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    peers = engines(options)
    found = (row for longest in options.lengths for row in measure(options, longest, peers))
    show_and_write(found, options.output)


if __name__ == "__main__":
    main()
