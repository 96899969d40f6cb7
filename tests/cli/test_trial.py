"""What a new user types, and what must come: status, standard output, standard error.

Each case names what it shows. An expected text is part of the output; one that begins with "!" must
not be in it. MODEL is the demo model, STORIES a model that goes on with texts, HERE a folder with
the input files below.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import decoding
from tests.cli.program import Program

ROOT = Path(decoding.__file__).parent.parent
FILES = {
    "de.txt": b"Guten Morgen, hast du gut geschlafen?\nIch habe keine Zeit.\n",
    "more.txt": b"Das ist ein Haus.",
    "late.txt": b"Guten Morgen.\n" * 3 + b"Das ist f\xfcr dich.\n",
    "text.tsv": b"1\tDas ist ein Haus.\n",
    "text.jsonl": b'{"id": 7, "text": "Das ist ein Haus."}\n',
    "en.txt": b"Good morning, did you sleep well?\nI have no time.\n",
    "model.gguf": b"GGUF\x03\0\0\0",
    "once.txt": b"Once upon a time\n",
}
INTERNALS = ("Traceback", "Errno", "pybind", "PYBIND", "allow_pickle", "numpy", "object at 0x")


class Case(NamedTuple):
    shows: str
    words: str
    status: int = 0
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()
    source: bytes = b""


MORNING, TIME = "Good morning, did you sleep well?\n", "I don't have time.\n"
HOUSE = "a house.\n"
CASES = [
    # names of commands and options
    Case("help", "--help", 0, ("translate ", "generate ", "embed ", "score ")),
    Case("help of a command", "translate --help", 0, ("--num-beams", "--json", "--target-prefix")),
    Case("nothing", "", 2, (), ("say what to do: one of translate",)),
    Case("typo", "trnslate", 2, (), ("did you mean translate? (see decoding --help)",)),
    Case("help", "help", 2, (), ("did you mean --help?",)),
    Case("another name", "complete -m STORIES", 2, (), ("did you mean generate?",)),
    Case("another name", "chat -m STORIES", 2, (), ("did you mean generate?",)),
    Case(
        "misspelt option",
        "translate -m MODEL --num-beam 4",
        2,
        (),
        ("did you mean --num-beams? (see decoding translate --help)",),
    ),
    Case("fairseq's name", "translate -m MODEL --lenpen 1", 2, (), ("mean --length-penalty?",)),
    Case("Marian's name", "translate -m MODEL --mini-batch 1", 2, (), ("mean --batch-tokens?",)),
    Case("Marian's flag", "translate -m MODEL --max-length-crop", 2, (), ("mean --truncate?",)),
    Case("CTranslate2's name", "translate -m MODEL --compute-type int8", 2, (), ("mean --dtype?",)),
    Case("fairseq's flag", "translate -m MODEL --fp16", 2, (), ("mean --dtype?",)),
    Case("GPUs", "translate -m MODEL --num-gpus 2", 2, (), ("each of --devices", "--workers")),
    Case("underscores", "translate -m MODEL --num_beams 2 de.txt", 0, (MORNING,)),
    Case("beams", "translate -m MODEL --beams 2 de.txt", 0, (MORNING,)),
    Case("beam-size", "translate -m MODEL --beam-size=2 de.txt", 0, (MORNING,)),
    Case("short names", "translate -m MODEL -i de.txt more.txt", 0, (MORNING, TIME, HOUSE)),
    # models
    Case("demo by name", "translate -m demo de.txt", 0, (MORNING,)),
    Case("no such model", "translate -m no/such/place", 2, (), ("no/such/place",)),
    Case("GGUF", "translate -m model.gguf", 2, (), ("model.gguf", "GGUF")),
    Case("a model's file", "translate -m MODEL/model.safetensors", 2, (), ("pass", "directory")),
    Case("GPT", "translate -m STORIES de.txt", 2, (), ("`decoding generate`",)),
    Case("no GPT", "generate -m MODEL -p x", 2, (), ("`decoding translate`",)),
    Case("no encoder", "embed -m MODEL --json de.txt", 2, (), ("embed needs an encoder",)),
    Case("short type", "translate -m MODEL --dtype bf16 de.txt", 0, (MORNING,)),
    Case(
        "short type", "translate -m MODEL --device cpu --dtype half", 2, (), ("float16", "on cpu")
    ),
    Case("many threads", "plan -m MODEL --threads 4096", 0, ("total",), ("4096 is more than",)),
    # search and scores
    Case("greedy scores", "translate -m MODEL --num-beams 1 --scores de.txt", 0, (" ||| -",)),
    Case(
        "samples",
        "translate -m MODEL --do-sample --num-beams 1 --n-best 2 --seed 1 more.txt",
        0,
        ("0 ||| ",),
        ("!warning",),
    ),
    Case(
        "samples in beams",
        "translate -m MODEL --do-sample --seed 1 de.txt",
        0,
        (),
        ("within the model's 4 beams", "--num-beams 1"),
    ),
    Case("one warning", "translate -m MODEL --top-k 5 de.txt", 0, (MORNING,), ("top_k=5 has no",)),
    Case("prefix", "translate -m MODEL --target-prefix Well, more.txt", 0, ("Well, ",)),
    Case("greedy n-best", "translate -m MODEL --num-beams 1 --n-best 2", 2, (), ("greedy search",)),
    Case("memory", "translate -m MODEL --beams 999999", 2, (), ("beams 999999", "!Limits("), b"x"),
    Case("n-best", "translate -m MODEL --n-best 9 de.txt", 2, (), ("n_best=9 must not be above",)),
    Case("no number", "translate -m MODEL --num-beams two", 2, (), ("a whole number, got 'two'",)),
    Case("too small", "translate -m MODEL --num-beams 0", 2, (), ("at least 1, got 0",)),
    # input and output
    Case("a pipe", "translate -m MODEL", 0, (HOUSE,), (), FILES["more.txt"]),
    Case("blank lines", "translate -m MODEL --quiet", 0, ("\n\n",), ("!lines",), b"\n\n"),
    Case("one line", "translate -m MODEL more.txt", 0, (HOUSE,), ("1 line, ",)),
    Case("wrong byte", "translate -m MODEL late.txt", 2, (), ("late.txt, line 4 is not UTF-8",)),
    Case("encoding", "translate -m MODEL --encoding cp1252 late.txt", 0, ("for you.", "!\ufffd")),
    Case("skipped", "translate -m MODEL --errors skip late.txt", 0, (), ("1 line not in UTF-8",)),
    Case("replaced", "translate -m MODEL --errors replace late.txt", 0, (), ("!late.txt",)),
    Case("quiet", "translate -m MODEL --quiet de.txt", 0, (MORNING,), ("!de.txt", "!lines")),
    Case("JSON out", "translate -m MODEL --json more.txt", 0, ('"translation": "', '"score": -')),
    Case("JSON in", "translate -m MODEL --input-format json text.jsonl", 0, ('{"id": 7, ',)),
    Case("TSV", "translate -m MODEL --input-format tsv --field 2 text.tsv", 0, ("1\tDas ist ein",)),
    Case("no JSON", "translate -m MODEL --input-format json de.txt", 2, (), ("line 1 is no JSON",)),
    Case("no file", "translate -m MODEL nowhere.txt", 2, (), ("nowhere.txt: No such file",)),
    Case("a folder", "translate -m MODEL HERE", 2, (), ("Is a directory",)),
    Case("full disk", "translate -m MODEL -o /dev/full de.txt", 2, (), ("/dev/full: No space",)),
    Case("same file", "translate -m MODEL -o de.txt de.txt", 2, (), ("is the input too",)),
    Case("no shortlist", "translate -m MODEL --shortlist de.txt", 2, (), ("is no shortlist",)),
    # other commands
    Case("prompt", "generate -m STORIES -p Once --max-new-tokens 5", 0, ("\n",), ("5 tokens",)),
    Case("stream", "generate -m STORIES --stream --max-new-tokens 9 once.txt", 0, (", there",)),
    Case("no template", "generate -m STORIES --chat once.txt", 2, (), ("no chat template",)),
    Case("score", "score -m MODEL --source de.txt --target en.txt", 0, (" ||| ",), ("perplexity",)),
    Case("score alone", "score -m MODEL en.txt", 2, (), ("say with --source what --target",)),
    Case("perplexity", "score -m STORIES once.txt", 0, (" ||| ",), ("perplexity",)),
    Case("plan", "plan -m MODEL --batch 32 --beams 4", 0, ("weights", "total", "!k_pages")),
    Case("all buffers", "plan -m MODEL --full", 0, ("k_pages", "weights", "total")),
    Case("long plan", "plan -m MODEL --target 100000", 2, (), ("the model's 512 positions",)),
    Case("compare no model", "compare -m no/model --text once.txt", 2, (), ("`hf download",)),
    Case(
        "nothing to compare", "compare -m STORIES --text once.txt", 2, (), ("nothing to compare",)
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("here")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.shows}: {case.words}")
def test_what_comes(
    case: Case, folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    monkeypatch.chdir(folder)
    places = {"MODEL": ROOT / "models/demo", "STORIES": ROOT / "tests/data/stories260K"}
    words = case.words
    for name, place in {**places, "HERE": folder}.items():
        words = words.replace(name, str(place))
    status, out, err = program(*words.split(), source=case.source)
    assert status == case.status, err
    for expected, said in ((case.out, out), (case.err, err)):
        for text in expected:
            assert text[1:] not in said if text.startswith("!") else text in said, said
    for text in INTERNALS:
        assert text not in err
    assert err.count("decoding: warning: ") == len(set(err.split("decoding: warning: "))) - 1
    if status:
        assert out == "" and err.count("\n") == 1 and err.startswith("decoding")


def test_each_command_is_tried() -> None:
    from decoding.cli.main import COMMANDS

    tried = {case.words.split()[0] for case in CASES if case.words}
    assert set(COMMANDS) - tried <= {"convert", "serve", "shortlist"}  # tests/cli has these
