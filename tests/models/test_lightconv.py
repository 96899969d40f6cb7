"""fairseq's LightConv and DynamicConv: tokens and log-probabilities of the model in the file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from decoding import reference
from decoding.models import load
from decoding.reference import Rules, Tokens
from tests.conftest import assert_same_bits
from tests.models.test_models import oracle as torch_text
from tests.serving.engines import assert_idle, assert_same, tight_engine
from tests.support.comparison import assert_as_exact
from tests.support.lightconv import DYNAMIC, EOS, LIGHT, VOCAB, LightConv

SOURCES = [[7, 5, 9, 33, 12, 4, 20, EOS], [20, EOS], [44, 8, 15, 31, 6, EOS], [EOS]]
BEAMS, STEPS = 4, 10
MODELS: dict[str, tuple[int, dict[str, Any]]] = {"light": (4, LIGHT), "dynamic": (4, DYNAMIC)}


@cache
def oracle(name: str) -> LightConv:
    seed, options = MODELS[name]
    return LightConv(seed, **options)


@pytest.fixture(params=MODELS)
def theirs(request: pytest.FixtureRequest) -> LightConv:
    return oracle(request.param)


def logits_of(model: LightConv, source: list[int]) -> reference.Logits:
    memory = model.encode(source)
    return lambda tokens: model.logits(memory, [EOS, *tokens])[-1]


def ours(model: LightConv, folder: Path, device: str = "cpu", **options: Any) -> decoding.Model:
    path = model.write(folder / "checkpoint_best.pt")
    if device == "cpu":
        options = {"threads": 2, **options}
    return decoding.load(path, device, **{"dtype": "float32", **options})


def generate(model: decoding.Model, sources: Any = SOURCES, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "max_new_tokens": STEPS,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    plain: dict[str, Any] = {"bad_words_ids": None, "min_new_tokens": None, "early_stopping": False}
    return model.generate(sources, **defaults, **plain, **options)


def ended(row: list[int]) -> Tokens:
    """A row without its start and what follows its end."""
    tokens = row[1:]
    return tuple(tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens)


def test_greedy_search(theirs: LightConv, device: str, tmp_path: Path) -> None:
    found = generate(ours(theirs, tmp_path, device), num_beams=1)
    rules = Rules(max_new=STEPS, eos=(EOS,))
    expected = [reference.greedy(logits_of(theirs, source), rules) for source in SOURCES]
    assert [ended(row) for row in found.sequences.tolist()] == expected
    assert len(set(expected)) >= 3, "too alike to tell anything"


def test_beam_search(theirs: LightConv, device: str, tmp_path: Path) -> None:
    found = generate(ours(theirs, tmp_path, device), num_beams=BEAMS, num_return_sequences=BEAMS)
    rules = Rules(max_new=STEPS, eos=(EOS,))
    expected = [
        hypothesis
        for source in SOURCES
        for hypothesis in reference.beam_search(logits_of(theirs, source), rules, beams=BEAMS)
    ]
    assert [ended(row) for row in found.sequences.tolist()] == [h.tokens for h in expected]
    scores = torch.tensor([h.score for h in expected])
    torch.testing.assert_close(found.sequences_scores.cpu(), scores, rtol=1e-4, atol=1e-4)
    assert len({len(h.tokens) for h in expected}) > 2, "too alike to tell anything"


def some_labels() -> list[list[int]]:
    """Longer than the widest convolution."""
    generator = torch.Generator().manual_seed(1)
    labels: list[list[int]] = torch.randint(
        4, VOCAB, (len(SOURCES), 40), generator=generator
    ).tolist()
    return labels


def expected_logprobs(theirs: LightConv) -> torch.Tensor:
    """[sources, 40], of the labels."""
    rows = []
    for source, row in zip(SOURCES, some_labels(), strict=True):
        exact = theirs.logits(theirs.encode(source), [EOS, *row[:-1]]).log_softmax(-1)
        rows.append(exact.gather(1, torch.tensor(row)[:, None])[:, 0])
    return torch.stack(rows)


def test_log_probabilities(theirs: LightConv, device: str, tmp_path: Path) -> None:
    found = ours(theirs, tmp_path, device).score(SOURCES, some_labels()).token_logprobs
    torch.testing.assert_close(found.cpu(), expected_logprobs(theirs), rtol=1e-4, atol=1e-4)


def test_a_sentence_does_not_depend_on_its_batch(theirs: LightConv, tmp_path: Path) -> None:
    model = ours(theirs, tmp_path)
    together = generate(model, num_beams=BEAMS)
    for i, source in enumerate(SOURCES):
        alone = generate(ours(theirs, tmp_path, threads=1), [source], num_beams=BEAMS)
        assert ended(alone.sequences[0].tolist()) == ended(together.sequences[i].tolist())
        assert_same_bits(alone.sequences_scores, together.sequences_scores[i : i + 1])


def test_padding_is_not_there(theirs: LightConv, tmp_path: Path) -> None:
    """Behind a sentence's end convolutions see zeros; masked tokens in the middle are refused."""
    model = ours(theirs, tmp_path)
    longest = max(map(len, SOURCES))
    ids = torch.tensor([row + [5] * (longest - len(row)) for row in SOURCES])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in SOURCES])
    found = generate(model, ids, attention_mask=mask, num_beams=1).sequences
    assert torch.equal(found, generate(model, num_beams=1).sequences)
    mask[0, 3] = 0
    with pytest.raises(decoding.Error, match="only its ends may be masked"):
        generate(model, ids, attention_mask=mask)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("int8", 0.2)])
def test_narrow_weights(theirs: LightConv, dtype: str, tolerance: float, tmp_path: Path) -> None:
    labels = [[7, 12, 40, 5]] * len(SOURCES)
    exact = ours(theirs, tmp_path).score(SOURCES, labels).token_logprobs
    found = ours(theirs, tmp_path, dtype=dtype).score(SOURCES, labels).token_logprobs
    assert 0 < (found - exact).abs().max() < tolerance * exact.abs().max()


def test_half_precision_is_as_exact_as_in_torch(
    theirs: LightConv, half_place: tuple[str, torch.dtype], tmp_path: Path
) -> None:
    """Log-probabilities of given tokens."""
    device, dtype = half_place
    labels, exact = some_labels(), expected_logprobs(theirs)
    found = ours(theirs, tmp_path, device, dtype=dtype).score(SOURCES, labels).token_logprobs
    half = torch_text(load(tmp_path)).to(device, dtype)
    rows = []
    for source, row in zip(SOURCES, labels, strict=True):
        ids = torch.tensor([source], device=device)
        target = torch.tensor([[EOS, *row[:-1]]], device=device)
        logits = half(ids, torch.ones_like(ids).bool(), target)[0].float().log_softmax(-1).cpu()
        rows.append(logits.gather(1, torch.tensor(row)[:, None])[:, 0])
    assert_as_exact(found, torch.stack(rows), exact, dtype)


def test_a_step_keeps_as_many_inputs_as_it_looks_back(theirs: LightConv, tmp_path: Path) -> None:
    limits = decoding.Limits(batch=3, beams=2, source=8, target=50)
    plan = ours(theirs, tmp_path).memory_plan(limits)
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    most = max(theirs.options["decoder_kernel_size_list"])
    assert list(buffers["inputs"].shape) == [2 * 4, 3 * 2, most, 8]
    assert list(buffers["k_pages"].shape) == [2 * 4, 3, 16, 8]  # of the sources alone
    narrow = ours(theirs, tmp_path, kv_cache_dtype="bfloat16").memory_plan(limits)
    [inputs] = [buffer for buffer in narrow.buffers if buffer.name == "inputs"]
    assert 2 * inputs.bytes == buffers["inputs"].bytes


def test_a_converted_model(theirs: LightConv, tmp_path: Path) -> None:
    model = ours(theirs, tmp_path)
    model.save(tmp_path / "converted")
    again = decoding.load(tmp_path / "converted", "cpu", threads=2)
    assert again.spec == model.spec
    assert torch.equal(generate(again).sequences, generate(model).sequences)


def test_searches_side_by_side(theirs: LightConv, device: str, tmp_path: Path) -> None:
    """Each class of requests keeps the inputs of its rows' convolutions apart."""
    model = ours(theirs, tmp_path, device)
    calls: list[tuple[list[int], dict[str, Any]]] = [
        (source, {"max_new_tokens": STEPS, "num_beams": beams, "decoder_input_ids": [prompt]})
        for source in SOURCES
        for prompt in ([EOS], [EOS, 9, 7])
        for beams in (1, 4, 2)
    ]
    with decoding.Engine(model, max_requests=16) as engine:
        requests = [engine.submit(source, **options) for source, options in calls]
        for (source, options), request in zip(calls, requests, strict=True):
            assert_same(request.result(60), model.generate([source], **options), device)
        assert_idle(engine)


def test_rows_need_no_pages_of_their_own(theirs: LightConv, tmp_path: Path) -> None:
    """Those of the source are all that a request waits for, and that a plan counts."""
    model = ours(theirs, tmp_path)
    source = [*range(3, 22), EOS]
    options: dict[str, Any] = {"max_new_tokens": 40, "num_beams": 4}
    with tight_engine(model, rows=8, pages=5) as engine:
        plan = engine.memory_plan()
        assert (plan.pages, plan.requests(source=20, target=40, beams=4)) == (5, 2)
        assert_same(
            engine.submit(source, **options).result(60), model.generate([source], **options)
        )
    plan = model.memory_plan(decoding.Limits(batch=3, beams=4, source=20, target=40))
    assert (plan.pages, plan.requests(source=20, target=40, beams=4)) == (3 * 2, 3)


def test_weights_of_fairseqs_cuda_kernels_lack_an_axis(tmp_path: Path) -> None:
    model = oracle("light")
    expected = load(model.write(tmp_path / "model.pt")).state
    for name in [name for name in model.state if name.endswith("conv.weight")]:
        model.state[name] = model.state[name].squeeze(1)
    found = load(model.write(tmp_path / "model.pt")).state
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_weights_that_are_taken_as_they_are(tmp_path: Path) -> None:
    model = LightConv(1, **LIGHT, weight_softmax=False)
    found = load(model.write(tmp_path / "model.pt")).state["encoder.layers.0.convolution.kernel"]
    assert torch.equal(found, model.state["encoder.layers.0.conv.weight"].squeeze(1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arch": "lightconv_lm"}, "arch='lightconv_lm' is not supported"),
        ({"encoder_conv_type": None}, "encoder_conv_type=None is not supported, only lightweight"),
        ({"decoder_conv_type": "dynamic"}, "lacks the tensor decoder.layers.0.conv.weight_linear."),
        ({"decoder_conv_dim": 64}, "decoder_conv_dim=64 is not supported, only 32"),
        ({"encoder_kernel_size_list": [3, 4]}, "encoder_kernel_size_list to 2 odd numbers"),
        ({"decoder_kernel_size_list": [3, 33]}, "decoder_kernel_size_list to 2 numbers from 1 to"),
        ({"decoder_kernel_size_list": [3, 6, 3]}, "decoder_kernel_size_list to 2 numbers"),
        ({"decoder_kernel_size_list": None}, "decoder_kernel_size_list to 2 numbers.*got None"),
        ({"decoder_kernel_size_list": [3]}, "decoder.layers.1.conv.weight must have the shape"),
        ({"encoder_glu": False}, "encoder.layers.0.linear1.weight must have the shape"),
    ],
)
def test_refused_options(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(oracle("light").write(tmp_path / "model.pt", **changed))


def test_dynamic_taps_are_a_softmax(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weight_softmax=False is not supported, only True"):
        load(oracle("dynamic").write(tmp_path / "model.pt", weight_softmax=False))


@pytest.mark.gpu
def test_keys_in_fp8_are_refused(theirs: LightConv, tmp_path: Path) -> None:
    with pytest.raises(decoding.Error, match="a decoder of convolutions keeps inputs and no keys"):
        ours(theirs, tmp_path, "cuda", dtype="float16", kv_cache_dtype="fp8")
