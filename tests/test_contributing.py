"""The guide to a new family, docs/how-to/new-family.md, followed to the letter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor

import decoding
from decoding.models import families, load, registry
from decoding.text import tokenizers as texts
from tests.models.test_models import oracle

GUIDE = Path(__file__).parent.parent / "docs/how-to/new-family.md"
CONFIG: dict[str, Any] = {
    "architectures": ["SparrowForCausalLM"],
    "model_type": "sparrow",
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
}


def steps() -> tuple[str, str, str]:
    """The importer, the registry's line, the tokenizers' line."""
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4, "the guide's code: an importer, two lines, a command"
    return blocks[0], blocks[1], blocks[2]


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = {name: torch.randn(40, 24) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    state["model.norm.weight"] = torch.rand(24) + 0.5
    for layer in ("model.layers.0.", "model.layers.1."):
        for name, heads in {"q_proj": 3, "k_proj": 1, "v_proj": 1}.items():
            state[f"{layer}self_attn.{name}.weight"] = 0.4 * torch.randn(8 * heads, 24)
            state[f"{layer}self_attn.{name}.bias"] = 0.4 * torch.randn(8 * heads)
        state[f"{layer}self_attn.o_proj.weight"] = 0.4 * torch.randn(24, 24)
        state[f"{layer}mlp.gate_up_proj.weight"] = 0.4 * torch.randn(80, 24)
        state[f"{layer}mlp.down_proj.weight"] = 0.4 * torch.randn(24, 40)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{layer}{norm}.weight"] = torch.rand(24) + 0.5
    return state


@pytest.fixture
def sparrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the new family, which the guide's steps have made known."""
    importer, line, loader = steps()
    house, folder = tmp_path / "families", tmp_path / "model"
    house.mkdir()
    folder.mkdir()
    (house / "sparrow.py").write_text(importer)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(house)])
    (entry,) = eval(f"[{line}]")
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, entry))
    monkeypatch.setattr(texts, "LOADERS", texts.LOADERS | eval(f"{{{loader}}}", vars(texts)))

    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights(), folder / "model.safetensors")
    words = {word: i for i, word in enumerate(["<s>", "a", "</s>", "little", "bird"])}
    cutter = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    cutter.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    cutter.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("beams", [1, 4])
@torch.no_grad()
def test_a_family_made_by_the_guide(sparrow: Path, beams: int, device: str) -> None:
    """Ragged prompts, token by token as its torch text has them."""
    model, text = decoding.load(sparrow, device, dtype="float32"), oracle(load(sparrow))
    prompts = [[7, 3, 9, 11, 5], [4, 6, 1], [10]]
    options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams}
    options |= {"max_new_tokens": 9, "eos_token_id": None, "pad_token_id": 0}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    found = model.generate(prompts, **options)
    for i, new in enumerate(found.sequences[:, 5:].tolist()):
        prompt = prompts[i // beams]
        logits = text(torch.tensor([prompt + new]))[0, len(prompt) - 1 : -1]
        if beams == 1:
            assert logits.argmax(-1).tolist() == new
        else:
            mean = logits.log_softmax(-1).gather(1, torch.tensor(new)[:, None]).mean()
            assert float(found.sequences_scores[i]) == pytest.approx(float(mean), abs=1e-4)
    assert (
        model.tokenizer.decode(model.tokenizer.encode("a little bird"), skip_special_tokens=True)
        == "a little bird"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported, only False"),
        (
            {"num_hidden_layers": None},
            r"must set num_hidden_layers to a whole number .*, got None",
        ),
        ({"hidden_act": "sine"}, "hidden_act='sine' is not supported"),
        ({"intermediate_size": 41}, r"gate_up_proj.weight must have the shape \[82, 24\]"),
    ],
)
def test_its_mistakes_are_named(sparrow: Path, changes: dict[str, Any], message: str) -> None:
    (sparrow / "config.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(ValueError, match=message):
        load(sparrow)
