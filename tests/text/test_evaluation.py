"""Measuring with lm-eval-harness: the answers of its own adapter for transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import decoding
from decoding.evaluation import EvaluatedModel
from tests.support.demo import DEMO
from tests.support.vocabularies import ENGLISH, TEXT
from tests.text.trained_tokenizers import text_generation_directory

Pair = tuple[EvaluatedModel, Any]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Our adapter of a model, and the harness's own."""
    folder = text_generation_directory(request.param, tmp_path_factory.mktemp(request.param), 160)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = EvaluatedModel(folder, device="cpu", dtype="float32", batch_size=5)
    return ours, HFLM(pretrained=theirs, tokenizer=tokenizer, batch_size=3, device="cpu")


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


def greedy_text(pair: Pair, text: str, tokens: int) -> str:
    return pair[0].model.complete(text, max_new_tokens=tokens)


def test_loglikelihood(pair: Pair) -> None:
    arguments = [(text, " " + other) for text in TEXT[:4] for other in TEXT[4:7]]
    arguments += [("", TEXT[0]), (TEXT[1] + "  ", TEXT[2]), (" ".join(TEXT) * 2, TEXT[3])]
    arguments += [(text, greedy_text(pair, text, n)) for text in TEXT for n in (1, 3)]
    arguments = [(context, text) for context, text in arguments if text]
    ours, theirs = (lm.loglikelihood(requests("loglikelihood", arguments)) for lm in pair)
    for (sum, same), (expected, greedy) in zip(ours, theirs, strict=True):
        assert sum == pytest.approx(expected, abs=2e-3)
        assert same == greedy
    assert {same for _, same in ours} == {True, False}


def test_loglikelihood_rolling(pair: Pair) -> None:
    arguments = [(text,) for text in (*TEXT, " ".join(TEXT), " ".join(TEXT * 3))]
    ours, theirs = (
        lm.loglikelihood_rolling(requests("loglikelihood_rolling", arguments)) for lm in pair
    )
    assert ours == pytest.approx(theirs, abs=1e-2)


@pytest.mark.parametrize("until", [["\n"], ["e", "qu"], [". ", "rain"], []], ids=str)
def test_generate_until(pair: Pair, until: list[str]) -> None:
    settings = {"until": until, "max_gen_toks": 12}
    contexts = [*TEXT, TEXT[0] + "q", TEXT[1] + " rai", " ".join(TEXT)]
    arguments = [(text, dict(settings)) for text in contexts]
    ours, theirs = (lm.generate_until(requests("generate_until", arguments)) for lm in pair)
    assert ours == theirs
    assert any(ours)


def task(name: str, folder: Path, lines: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """A task of the harness on a local file."""
    path = folder / f"{name}.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        **settings,
    }


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["gpt2"], indirect=True)
def test_three_tasks(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    choices = [
        {"question": text, "choices": [text[::-1], ENGLISH[i - 1], text], "answer": 2}
        for i, text in enumerate(ENGLISH)
    ]
    tasks = [
        task(
            "choose",
            tmp_path,
            choices,
            output_type="multiple_choice",
            doc_to_text="Question: {{question}}\nAnswer:",
            doc_to_choice="choices",
            doc_to_target="answer",
            metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
        ),
        task(
            "perplexity",
            tmp_path,
            [{"text": text} for text in TEXT],
            output_type="loglikelihood_rolling",
            doc_to_text="",
            doc_to_target="{{text}}",
            metric_list=[{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
        ),
        task(
            "write",
            tmp_path,
            [{"text": text, "answer": "e"} for text in TEXT],
            output_type="generate_until",
            doc_to_text="{{text}}\n",
            doc_to_target="{{answer}}",
            generation_kwargs={"until": ["\n", "a"], "max_gen_toks": 8},
            metric_list=[{"metric": "exact_match"}],
        ),
    ]
    manager = TaskManager(include_defaults=False)  # looking for the harness' own takes seconds
    settings: dict[str, Any] = {"task_manager": manager, "bootstrap_iters": 0, "log_samples": True}
    found, expected = (lm_eval.simple_evaluate(model=lm, tasks=tasks, **settings) for lm in pair)
    assert found["results"].keys() == {"choose", "perplexity", "write"}
    for name, metrics in expected["results"].items():
        for metric, value in metrics.items():
            if isinstance(value, float):
                assert found["results"][name][metric] == pytest.approx(value, rel=1e-4), metric
    written, theirs = (
        [sample["resps"] for sample in each["samples"]["write"]] for each in (found, expected)
    )
    assert written == theirs


def test_what_is_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="only models with a decoder alone"):
        EvaluatedModel(decoding.load(DEMO, device="cpu"))
    ours, _ = pair
    with pytest.raises(ValueError, match="256 new tokens leave no room for a context in 160"):
        ours.generate_until(requests("generate_until", [("a", {})]))
    with pytest.raises(ValueError, match=r"a continuation has \d+ tokens, and the model has 160"):
        ours.loglikelihood(requests("loglikelihood", [("a", " ".join(TEXT * 3))]))
    small = EvaluatedModel("tests/data/stories260K", device="cpu", max_gen_toks=4)
    assert small.generate_until(requests("generate_until", [("Once upon a", {"until": "x"})])) == [
        "time, there was"  # as the harness has it: decoded alone
    ]
