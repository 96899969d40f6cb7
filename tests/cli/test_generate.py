"""`decoding generate`: prompts of arguments, lines and JSON, chats, streams, samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import decoding
from tests.cli.program import Program, Said, one_line
from tests.text.trained_tokenizers import text_generation_directory

ROOT = Path(decoding.__file__).parent.parent
STORIES = str(ROOT / "tests/data/stories260K")
PROMPTS = ["Once upon a time", "", "The dog", "Lily and Tim went to the park. They"]
TEMPLATE = """
{%- for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.fixture(scope="module")
def stories() -> decoding.Model:
    return decoding.load(STORIES, device="cpu")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> decoding.Model:
    """A model with a chat template."""
    folder = text_generation_directory("llama", tmp_path_factory.mktemp("chatty"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return decoding.load(folder, device="cpu", dtype="float32")


class Generate:
    def __init__(self, program: Program, model: decoding.Model) -> None:
        self.program, self.model = program, model

    def __call__(self, *words: str, source: str = "", model: decoding.Model | None = None) -> Said:
        model = model or self.model
        return self.program("generate", "-m", "any", *words, source=source, model=model)


@pytest.fixture
def generate(program: Program, stories: decoding.Model) -> Generate:
    return Generate(program, stories)


def lines(texts: list[str]) -> str:
    """As the program writes and reads them."""
    signs = ("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")
    for character, sign in signs:
        texts = [text.replace(character, sign) for text in texts]
    return "".join(f"{text}\n" for text in texts)


@pytest.mark.parametrize("batch", ["1", "4096"])
def test_lines(generate: Generate, stories: decoding.Model, batch: str) -> None:
    """Each line has its completion, an empty one an empty one."""
    words = ["--max-new-tokens", "80", "--batch-tokens", batch]
    status, out, err = generate(*words, source=lines(PROMPTS))
    expected = [text and stories.complete(text, max_new_tokens=80) for text in PROMPTS]
    assert (status, out) == (0, lines(expected))
    assert one_line(err) and err.startswith("4 lines, 240 tokens in ")
    assert any("\n" in text for text in expected)


def test_signs(generate: Generate, stories: decoding.Model) -> None:
    """A prompt's newline is \\n in a line; --raw takes backslashes as they are."""
    prompt = "The end.\nOnce \\n"
    expected = stories.complete(prompt, max_new_tokens=40)
    words = ["--max-new-tokens", "40"]
    assert generate(*words, source=lines([prompt])).out == lines([expected])
    literal = "Once\\nupon"
    raw = stories.complete(literal, max_new_tokens=40)
    assert generate(*words, "--raw", source=f"{literal}\n").out == f"{raw}\n"


def test_prompts_of_arguments(generate: Generate, stories: decoding.Model) -> None:
    """One is answered as it is, several in a line each."""
    words = ["--max-new-tokens", "80"]
    one, other = stories.complete(["The dog", "Once\nupon"], max_new_tokens=80)
    assert generate(*words, "--prompt", "The dog").out == f"{one}\n"
    two = ["--prompt", "The dog", "-p", "Once\nupon"]
    assert generate(*words, *two).out == lines([one, other])
    assert generate(*words, "--prompt", "").out == f"{stories.complete('', max_new_tokens=80)}\n"


def test_prompts_that_look_like_options(generate: Generate, stories: decoding.Model) -> None:
    for prompt in ("-- a_b said", "--hello there=x"):
        expected = stories.complete(prompt, max_new_tokens=9)
        status, out, _ = generate("--max-new-tokens", "9", "-p", prompt)
        assert (status, out) == (0, f"{expected}\n")


def test_json_lines(generate: Generate, stories: decoding.Model) -> None:
    source = "".join(json.dumps({"id": i, "prompt": text}) + "\n" for i, text in enumerate(PROMPTS))
    words = "--input-format json --max-new-tokens 60 --num_beams 2 --n-best 2".split()
    out = generate(*words, source=source).out
    for i, (text, line) in enumerate(zip(PROMPTS, out.splitlines(), strict=True)):
        found = json.loads(line)
        assert (found["id"], found["prompt"]) == (i, text)
        if text:
            best = stories.complete(text, n_best=2, num_beams=2, max_new_tokens=60)
            texts = [one["completion"] for one in found["n_best"]]
            assert texts == [one.text for one in best]
            assert found["completion"] == best[0].text and found["tokens"] == best[0].tokens
            assert found["score"] == pytest.approx(best[0].score, abs=1e-5)
    assert json.loads(generate("--prompt", "The", "--json").out)["prompt"] == "The"


def test_options_of_a_line(generate: Generate, stories: decoding.Model) -> None:
    """A JSON line's own, beside lines that have none."""
    own: list[dict[str, Any]] = [
        {"max_new_tokens": 3},
        {"seed": 5, "temperature": 0.5},
        {"seed": 9, "top_k": 2},
        {},
    ]
    records = [{"prompt": "The dog", **options} for options in own]
    words = ["--input-format", "json", "--do-sample", "--seed", "3", "--max-new-tokens", "8"]
    source = "".join(json.dumps(record) + "\n" for record in records)
    found = [json.loads(line) for line in generate(*words, source=source).out.splitlines()]
    for line, (record, options) in enumerate(zip(found, own, strict=True)):
        given: dict[str, Any] = {"max_new_tokens": 8, "seed": 3 + line, **options}
        assert record["completion"] == stories.complete("The dog", do_sample=True, **given)
        assert record["tokens"] == given["max_new_tokens"]


@pytest.mark.parametrize(
    ("words", "fields", "says"),
    [
        ("", '"max_new_tokens": 0', "line 1: max_new_tokens must be at least 1, got 0"),
        ("", '"max_new_tokens": 3000', "line 1: max_new_tokens=3000 behind 2 tokens need 3001"),
        ("--do-sample", '"top_k": "x"', "line 1: 'top_k' must be a number, got 'x'"),
        ("--do-sample", '"top_p": 7', "line 1: top_p must be"),
        ("", '"seed": 4', "line 1: 'seed' is for samples: add --do-sample"),
    ],
)
def test_options_that_a_line_cannot_have(
    generate: Generate, words: str, fields: str, says: str
) -> None:
    line = f'{{"prompt": "a", {fields}}}'
    status, out, err = generate("--input-format", "json", *words.split(), source=line)
    assert (status, out) == (2, "") and one_line(err) and says in err


def test_samples_do_not_depend_on_their_batch(generate: Generate) -> None:
    """Each row has a seed of its own; scores are sums of log-probabilities, best first."""
    sampling = "--do-sample --top-k 20 --seed 3 --n-best 3 --max-new-tokens 12".split()
    several = generate(*sampling, source=lines(PROMPTS)).out
    assert several == generate(*sampling, "--batch-tokens", "1", source=lines(PROMPTS)).out
    rows = [line.split(" ||| ") for line in several.splitlines()]
    assert [number for number, *_ in rows] == list("0001222333")
    scores = [float(score) for number, _, score in rows if number == "0"]
    assert scores == sorted(scores, reverse=True) and scores[0] < 0
    assert several != generate(*sampling, "--seed", "4", source=lines(PROMPTS)).out
    same = generate(*sampling, "--top-k", "1", "--unique", source="The dog\n").out
    assert same.count("\n") == 1


@pytest.mark.parametrize("search", ["", "--num-beams 2", "--do-sample --seed 5"])
def test_streams(generate: Generate, search: str) -> None:
    """The same text, as it comes."""
    words = ["--max-new-tokens", "60", *search.split()]
    plain, streamed = (
        generate(*words, *more, source=lines(PROMPTS)) for more in ([], ["--stream"])
    )
    assert streamed.out == plain.out
    assert streamed.err.split(" in ")[0] == plain.err.split(" in ")[0]


def test_a_stream_is_written_piece_by_piece() -> None:
    command = [sys.executable, "-m", "decoding", "generate", "--model", STORIES, "--stream"]
    with subprocess.Popen(
        [*command, "--prompt", "Once upon a time", "--max-new-tokens", "300"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        first = os.read(process.stdout.fileno(), 4096)
        rest = process.stdout.read()
    assert process.returncode == 0 and 0 < len(first) < len(rest)


def test_chats(generate: Generate, chatty: decoding.Model, tmp_path: Path) -> None:
    words = ["--chat", "--max-new-tokens", "8"]
    user = [{"role": "user", "content": "Where is my key?"}]
    answer = chatty.chat(user, max_new_tokens=8)
    assert generate(*words, source="Where is my key?\n", model=chatty).out == lines([answer])
    source = json.dumps({"id": 1, "messages": user}) + "\n"
    out = generate(*words, "--input-format", "json", source=source, model=chatty).out
    assert json.loads(out)["completion"] == answer and json.loads(out)["messages"] == user
    (tmp_path / "template").write_text("{{ messages[0].content }}")
    template = ["--chat-template", str(tmp_path / "template")]
    completed = chatty.complete("Where is my key?", max_new_tokens=8)
    assert generate(*words, *template, source="Where is my key?\n", model=chatty).out.strip() in (
        lines([completed]).strip()
    )
    system = [{"role": "system", "content": "Be brief."}, *user]
    brief = chatty.chat(system, max_new_tokens=8)
    asked = ["--system", "Be brief.", "--prompt", "Where is my key?"]
    assert generate(*words, *asked, model=chatty).out == f"{brief}\n"
    streamed = generate(*words, *asked, "--stream", model=chatty).out
    assert streamed == f"{brief}\n" and brief != answer


@pytest.mark.parametrize(
    ("words", "source", "says"),
    [
        ("--prompt x file", "", "--prompt and files do not go together"),
        ("--system x", "", "--system is for chats: add --chat"),
        ("--stream --json", "", "--stream writes one answer as it comes"),
        ("--stream --n-best 2 --do-sample", "", "--stream writes one answer as it comes"),
        ("--n-best 2", "a\n", "greedy search finds one sequence"),
        ("", "a\n" + "the " * 600, "standard input, line 2 has 602 tokens, and the model has 512"),
        ("--chat", "a\n", "hold no chat template"),
        ("--input-format json", '{"text": "a"}\n', "an object in which 'prompt' is one"),
        ("--chat --chat-template nowhere", "a\n", "nowhere: No such file"),
    ],
)
def test_mistakes(generate: Generate, words: str, source: str, says: str) -> None:
    status, out, err = generate(*words.split(), source=source)
    assert (status, out) == (2, "") and one_line(err) and says in err, err


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (["hi"], "messages[0] must be a mapping with role and content, got str"),
        ([[{"role": "user", "content": "hi"}]], "messages[0] must be a mapping"),
        ([], "messages must hold at least one message"),
        ([{"role": "user", "content": "no"}], "the chat template refuses this chat: not this"),
    ],
)
def test_chats_that_are_none(
    generate: Generate, chatty: decoding.Model, tmp_path: Path, messages: Any, says: str
) -> None:
    template = tmp_path / "template"
    template.write_text(
        "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}x"
    )
    words = ["--chat", "--input-format", "json", "--chat-template", str(template)]
    sound = [{"role": "user", "content": "hi"}]
    source = "".join(json.dumps({"messages": each}) + "\n" for each in (sound, messages, sound))
    status, out, err = generate(*words, source=source, model=chatty)
    assert (status, out) == (2, "") and one_line(err)
    assert f"standard input, line 2: {says}" in err


@pytest.mark.parametrize("words", [[], ["--chat"]])
def test_a_prompt_that_is_no_text(
    generate: Generate, chatty: decoding.Model, words: list[str]
) -> None:
    """Bytes that are no UTF-8, as Python reads arguments."""
    status, _, err = generate(*words, "-p", "a", "-p", "\udcff", model=chatty)
    assert status == 2 and one_line(err)
    assert "error: --prompt 2" in err and "half of a surrogate pair" in err


def test_models_that_rewrite(program: Program) -> None:
    status, _, err = program("generate", "-m", str(ROOT / "models/demo"), "-p", "x")
    assert status == 2 and "use `decoding translate`" in err
    status, _, err = program("translate", "-m", STORIES, source="x\n")
    assert status == 2 and "`decoding generate`" in err
