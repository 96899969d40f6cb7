"""What a rank of benchmarks.scale does: it times steps of a model that is split, or exchanges.

Rank 0 prints a line of JSON for each measurement.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import nn

import decoding
from benchmarks.cases.workloads import SEED

RANK, SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
STEPS, PROMPT = 64, 32
EXCHANGES = 200  # in a graph: ranks that begin 20 us apart wait 0.1 us in each
WARM = 0.5  # seconds
SIZES = tuple(1 << bits for bits in range(12, 23))  # bytes of a part, 4 KiB to 4 MiB
PROVIDERS = ("ours", "nccl", "torch-symmetric-memory")


def llama(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int) -> Any:
    return {
        "architecture": "Llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }


def nllb(hidden: int, ffn: int, layers: int, heads: int, vocab: int) -> Any:
    """layers: of the encoder, and of the decoder."""
    return {
        "architecture": "M2M100",
        "d_model": hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        **{f"{side}_layers": layers for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": ffn for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": heads for side in ("encoder", "decoder")},
    }


# The sizes of Llama and of NLLB-200, with random weights.
MODELS = {
    "llama-100M": llama(768, 2048, 12, 12, 4, 16000),
    "llama-1B": llama(2048, 8192, 16, 32, 8, 128256),
    "llama-8B": llama(4096, 14336, 32, 32, 8, 128256),
    "llama-70B": llama(8192, 28672, 80, 64, 8, 128256),
    "nllb-3.3B": nllb(2048, 8192, 24, 16, 256206),
}
DRAWN = 1 << 22  # random numbers, of which all weights are made
APART = 64  # numbers between the beginnings of two weights


def random_model(name: str, dtype: str) -> Any:
    """Each of its matrices begins in another place of the same numbers, since 70 G of them would
    take minutes to draw, and more memory than there is. An engine has copies of its own."""
    import transformers

    sizes = dict(MODELS[name])
    family = sizes.pop("architecture")
    kind = "CausalLM" if family == "Llama" else "ConditionalGeneration"
    with torch.device("meta"):
        config = getattr(transformers, f"{family}Config")(**sizes)
        model = getattr(transformers, f"{family}For{kind}")(config)
    drawn = torch.randn(DRAWN, generator=torch.Generator().manual_seed(SEED)) * config_std(config)
    most = max(each.numel() for each in model.parameters())
    numbers = drawn.to(getattr(torch, dtype)).repeat(-(-most // DRAWN) + 1)
    made: dict[int, nn.Parameter] = {}  # tables that are shared stay so
    places = count(0, APART)
    for module in model.modules():
        for each, given in module.named_parameters(recurse=False):
            if id(given) not in made:
                first = next(places) % DRAWN
                matrix = numbers[first : first + given.numel()].view(given.shape)
                weight = matrix if given.dim() > 1 else torch.ones(given.shape, dtype=matrix.dtype)
                made[id(given)] = nn.Parameter(weight, requires_grad=False)
            setattr(module, each, made[id(given)])
    return model


def config_std(config: Any) -> float:
    """Of its weights."""
    return float(getattr(config, "initializer_range", None) or config.init_std)


def steps(options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Of one row, and of eight; the prompt included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small models are split, too
        model = decoding.load(
            random_model(options["model"], options["dtype"]),
            options["device"],
            options["dtype"],
            threads=int(options["threads"]),
            tensor_parallel=SIZE,
        )
    for rows in (1, 8):
        ids = torch.randint(5, 1000, (rows, PROMPT), generator=torch.Generator().manual_seed(SEED))

        def call(ids: torch.Tensor = ids) -> None:
            model.generate(ids, min_new_tokens=STEPS, max_new_tokens=STEPS)

        seconds = median(call, int(options["repeats"]))
        yield {"what": f"{rows}x1", "p50": 1e3 * seconds / STEPS, "rate": rows * STEPS / seconds}


def median(call: Callable[[], object], repeats: int) -> float:
    """Seconds of a call, after one that does not count."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return sorted(times)[repeats // 2]


def exchanges(options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """All-reduces in a CUDA graph, each behind the one before."""
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    makers = {"ours": ours, "nccl": nccl, "torch-symmetric-memory": symmetric}
    # All stay: who ends early would take memory away from the others.
    made = {name: makers[name]() for name in PROVIDERS if name in options["providers"]}
    warm_up()
    for provider, make in made.items():
        for size in SIZES:
            numbers = torch.ones(1, size // 2, dtype=torch.bfloat16, device="cuda")
            seconds = median(replayed(make(numbers)), int(options["repeats"])) / EXCHANGES
            yield {
                "what": str(size),
                "provider": provider,
                "p50": 1e6 * seconds,
                "rate": size / seconds / 1e9,
            }


def warm_up() -> None:
    """A GPU that has been idle begins with a sixth of its clock."""
    numbers = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda")
    end = time.monotonic() + WARM
    while time.monotonic() < end:
        numbers @ numbers
        torch.cuda.synchronize()


def replayed(exchange: Callable[[], object]) -> Callable[[], None]:
    """Of a graph with many of them."""
    exchange()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL has a thread that asks after events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(EXCHANGES):
            exchange()

    def replay(held: object = exchange) -> None:
        """held: what the graph's kernels read and write."""
        graph.replay()
        torch.cuda.synchronize()

    return replay


Maker = Callable[[torch.Tensor], Callable[[], object]]


def ours() -> Maker:
    from decoding import _kernels
    from decoding.common.device import Device
    from decoding.engine.ranks import Group, join

    ranks = join(Group(SIZE), 8192, Device("cuda", torch.cuda.current_device()))
    ranks.collective.begin(0)
    assert ranks.gpus is not None
    ranks.gpus.enter()

    def make(numbers: torch.Tensor) -> Callable[[], object]:
        _kernels.all_reduce(ranks.gpus, numbers, numbers)  # the part stays there
        return lambda: _kernels.all_reduce(ranks.gpus, numbers)

    return make


def nccl() -> Maker:
    import torch.distributed as dist

    return lambda numbers: lambda: dist.all_reduce(numbers)


def symmetric() -> Maker:
    """Its one-shot kernel, which needs memory of its own."""
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as memory

    group = dist.group.WORLD
    assert group is not None
    name = group.group_name

    def make(numbers: torch.Tensor) -> Callable[[], object]:
        held = memory.empty(numbers.numel(), dtype=numbers.dtype, device=numbers.device)
        memory.rendezvous(held, name)
        held.copy_(numbers.view(-1))
        return lambda: torch.ops.symm_mem.one_shot_all_reduce(held, "sum", name)

    return make


def main() -> None:
    options = json.loads(sys.argv[1])
    for found in (steps if options["part"] == "steps" else exchanges)(options):
        if RANK == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
