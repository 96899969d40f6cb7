"""The program: what it reads, writes and says, and how it ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import decoding
from tests.cli.program import Program, Said, one_line
from tests.support import stand_in


class Translate:
    """Runs `decoding translate` with the stand-in for a model."""

    def __init__(self, program: Program) -> None:
        self.program, self.monkeypatch = program, program.monkeypatch
        self.loaded: dict[str, Any] = {}
        self.model = stand_in.StandIn()
        self.positions = 512
        self.monkeypatch.setattr(decoding, "load", self.load)

    def load(self, name: str, **arguments: Any) -> stand_in.StandIn:
        self.loaded = arguments
        self.model = stand_in.load(name, self.positions)
        return self.model

    def __call__(self, *words: str, source: bytes | io.BytesIO = b"") -> Said:
        return self.program("translate", "--model", "words", *words, source=source)


@pytest.fixture
def translate(program: Program) -> Translate:
    return Translate(program)


def test_text_in_text_out(translate: Translate) -> None:
    code, out, err = translate(source="ein haus\n\nzwei äpfel\r\n  \nende".encode())
    assert (code, out) == (0, "EIN HAUS\n\nZWEI ÄPFEL\n\nENDE\n")
    assert one_line(err) and err.startswith("5 lines, 8 tokens in ")
    assert "lines/s" in err and "tokens/s with 1 thread, busy 0%\n" in err


def test_nothing_in_nothing_out(translate: Translate) -> None:
    code, out, err = translate()
    assert (code, out) == (0, "") and err.startswith("0 lines, 0 tokens")


def test_one_line_for_each_line_even_where_the_model_breaks_one(translate: Translate) -> None:
    translate.monkeypatch.setattr(stand_in.Words, "text_of", lambda *_: "a\nb")
    assert translate(source=b"x\n")[1] == "a b\n"


def test_files(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b\nc\n")
    code, out, _ = translate("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"))
    assert (code, out) == (0, "")
    assert (tmp_path / "out").read_bytes() == b"A B\nC\n"


def test_scores_and_n_best(translate: Translate) -> None:
    source = b"a b\n\nc\n"
    assert (
        translate("--scores", source=source)[1] == "A B ||| -0.0300\n ||| 0.0000\nC ||| -0.0200\n"
    )
    best = "0 ||| A B ||| -0.0300\n0 ||| A B B ||| -1.0400\n"
    rest = "1 |||  ||| 0.0000\n2 ||| C ||| -0.0200\n2 ||| C C ||| -1.0300\n"
    assert translate("--n-best", "2", source=source)[1] == best + rest
    assert translate("--n-best", "2", "--scores", source=source)[1] == best + rest


def test_order_of_many_lines(translate: Translate) -> None:
    lines = [f"w{i % 97} " * (i * 7 % 13) for i in range(1000)]
    code, out, _ = translate("--batch-tokens", "50", source="\n".join(lines).encode())
    assert code == 0
    assert out.splitlines() == [line.strip().upper() for line in lines]
    assert len(translate.model.calls) > 20


def test_arguments_reach_the_model(translate: Translate) -> None:
    translate("--threads", "3", "--device", "cpu", "--dtype", "float32", source=b"a\n")
    expected: dict[str, Any] = {"device": "cpu", "dtype": "float32", "threads": 3}
    expected |= {"tokenizer": None, "download": False, "trust_paths": False, "tensor_parallel": 1}
    expected |= {"kv_cache_dtype": "auto", "activation_dtype": "auto"}
    assert translate.loaded == expected
    search = "--num-beams 2 --length-penalty 0.5 --early-stopping never --max-length 9"
    translate(*search.split(), source=b"a\n")
    [(_, options)] = translate.model.calls
    expected = {"num_beams": 2, "length_penalty": 0.5, "early_stopping": "never"}
    expected["max_new_tokens"] = 8  # max_length counts the start token
    assert expected.items() <= options.items()
    extras = "--early-stopping true --patience 2 --length-normalization gnmt --coverage-penalty 0.3"
    extras += " --diversity-rate 0.2 --repetition-penalty 1.2 --no-repeat-ngram-size 3"
    extras += " --frequency-penalty 0.4 --presence-penalty -0.1"
    translate(*extras.split(), source=b"a\n")
    [(_, options)] = translate.model.calls
    expected = {"early_stopping": True, "patience": 2.0, "length_normalization": "gnmt"}
    expected |= {"coverage_penalty": 0.3, "diversity_rate": 0.2, "repetition_penalty": 1.2}
    expected |= {"frequency_penalty": 0.4, "presence_penalty": -0.1}
    assert expected.items() <= options.items() and options["no_repeat_ngram_size"] == 3
    translate(*"--num-beam-groups 2 --diversity-penalty 0.5".split(), source=b"a\n")
    [(_, options)] = translate.model.calls
    assert {"num_beam_groups": 2, "diversity_penalty": 0.5}.items() <= options.items()
    sampling = "--num-beams 1 --do-sample --temperature 0.5 --top-k 3 --top-p 0.9 --seed 4"
    translate(*sampling.split(), *"--max-new-tokens 5 --min-p 0.1".split(), source=b"a\n")
    [(_, options)] = translate.model.calls
    expected = {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4}
    assert expected.items() <= options.items() and options["max_new_tokens"] == 5
    assert options["min_p"] == 0.1
    translate(source=b"a\n")
    [(_, options)] = translate.model.calls
    assert not {*expected, "num_beams", "early_stopping"} & set(options)
    translate("--early-stopping", "false", source=b"a\n")
    assert translate.model.calls[0][1]["early_stopping"] is False


def test_warnings_are_one_line_each(translate: Translate) -> None:
    translate.positions = 8
    code, out, err = translate(source=b"a bb. C d.\n" * 2)
    assert (code, out) == (0, "A BB. C D.\n" * 2)
    first, second, summary, end = err.split("\n")
    assert first.startswith("decoding: warning: line 1 has 5 tokens")
    assert second.startswith("decoding: warning: line 2 has 5 tokens")
    assert "2 lines" in summary and end == ""


def test_progress(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n\nb\n")
    _, out, err = translate("--progress", "--input", str(tmp_path / "in"))
    assert out == "A\n\nB\n"
    assert "3/3" in err and "lines/s" in err and "100%" in err
    assert "3/3" not in translate("--input", str(tmp_path / "in"))[2]


def test_without_a_total_progress_counts_alone(translate: Translate) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    _, out, err = translate("--progress", source=Pipe(b"a\nb\n"))
    assert out == "A\nB\n" and "2 lines" in err and "/2" not in err


def test_profile(translate: Translate) -> None:
    """Of each phase the seconds by the clock, and those of the device's work."""
    err = translate("--model", "slow", "--profile", "--quiet", source=b"a\nb b\n")[2]
    phases = [line.split() for line in err.splitlines()]
    assert [phase for phase, *_ in phases] == "reading encoding device decoding writing".split()
    assert all(float(wall) >= 0 and float(busy) >= 0 for _, wall, _, _, busy, _ in phases)
    assert float(phases[2][4]) >= 0.1
    err = translate("--model", "slow", "--progress", source=b"a\n")[2]
    assert " tokens/s]" in err and "busy 0%" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num-beams", "0"], "num_beams must be at least 1, got 0"),
        (["--num-beams", "two"], "--beams: must be a whole number, got 'two'"),
        (["--suppress-tokens", "1,x"], "must be whole numbers with commas between them"),
        (["--bad-words-ids", "[["], "must be JSON"),
        (["--n-best", "0"], "must be a whole number of at least 1, got '0'"),
        (["--n-best", "9"], "n_best=9"),
        (["--num-beams", "1", "--n-best", "2"], "pass num_beams or do_sample=True"),
        (["--early-stopping", "maybe"], "early_stopping must be True, False"),
        (["--input", "there is none"], "there is none: No such file"),
        (["there is none"], "there is none: No such file"),
        (["--output", "no/folder/out"], "no/folder/out: No such file"),
        (["--model", "unknown"], "unknown/config.json is missing"),
        (["--encoding", "utf-7000"], "there is no encoding 'utf-7000'"),
        (["--encoding", "utf-16"], "lines of utf-16 do not end with one byte"),
        (["--input-format", "tsv", "--field", "text"], "columns are numbered, from 1"),
    ],
)
def test_mistakes_are_one_line(translate: Translate, arguments: list[str], says: str) -> None:
    code, out, err = translate(*arguments, source=b"a\n")
    assert (code, out) == (2, "")
    assert one_line(err) and says in err and err.startswith("decoding")


def test_invalid_utf8_names_the_line(translate: Translate) -> None:
    code, out, err = translate(source=b"a\nb\nM\xfcller\n")
    assert (code, out) == (2, "")
    where = "standard input, line 3 is not UTF-8: byte 2 is 0xfc"
    assert err == f"decoding: error: {where} (see --encoding and --errors)\n"


def test_what_is_finished_is_kept(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b\n" * 100 + b"\xff\n")
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    code, _, err = translate(*files, "--batch-tokens", "10")
    assert code == 2 and f"{tmp_path / 'in'}, line 101" in err
    kept = (tmp_path / "out").read_bytes()
    assert 50 < kept.count(b"\n") <= 100 and kept == b"A B\n" * kept.count(b"\n")


def test_an_older_output_survives_mistakes(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"old\n")
    assert translate("--output", str(tmp_path / "text"), "--num-beams", "0")[0] == 2
    both = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "text")]
    code, _, err = translate(*both)
    assert code == 2 and "is the input too" in err
    assert (tmp_path / "text").read_bytes() == b"old\n"


def test_several_files(translate: Translate, tmp_path: Path) -> None:
    """In the order of their names; a file's last line may have no end."""
    for name, text in (("a", b"a\nb"), ("b", b""), ("c", b"\xef\xbb\xbfc\n\n"), ("d", b"d\n")):
        (tmp_path / name).write_bytes(text)
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    assert translate(a, b, c, d)[1] == "A\nB\nC\n\nD\n"
    assert translate("-i", a, b, "-i", c, d)[1] == "A\nB\nC\n\nD\n"
    assert translate(a, "--num_beams=2", "-", source=b"in\n")[1] == "A\nB\nIN\n"
    assert translate.model.calls[0][1]["num_beams"] == 2
    assert "5/5" in translate(a, b, c, d, "--progress")[2]


def test_encodings(translate: Translate) -> None:
    source = "zwei äpfel\nein haus\n".encode("cp1252")
    assert translate("--encoding", "cp1252", source=source)[1] == "ZWEI ÄPFEL\nEIN HAUS\n"
    assert translate("--errors", "replace", source=source)[1] == "ZWEI \ufffdPFEL\nEIN HAUS\n"
    status, out, err = translate("--errors", "skip", source=source * 2)
    assert (status, out) == (0, "\nEIN HAUS\n" * 2)
    where = "standard input, line 1; standard input, line 3"
    assert f"warning: 2 lines not in UTF-8, taken as empty: {where}\n" in err


def test_tsv(translate: Translate) -> None:
    source = b"1\ta b\n2\tc\n\n"
    tsv = ["--input-format", "tsv", "--field", "2"]
    assert translate(*tsv, source=source)[1] == "1\ta b\tA B\n2\tc\tC\n\t\t\n"
    scored = "1\ta b\tA B\t-0.0300\n1\ta b\tA B B\t-1.0400\n"
    assert translate(*tsv, "--n-best", "2", source=source)[1].startswith(scored)
    status, _, err = translate(*tsv, source=b"1\ta\n2\n")
    assert status == 2 and "standard input, line 2 has 1 columns, and column 2 is asked for" in err


def test_json_lines(translate: Translate) -> None:
    out = translate("--json", source=b'a "b"\n\n')[1]
    first, second = map(json.loads, out.splitlines())
    assert first == {"text": 'a "b"', "translation": 'A "B"', "score": -0.03, "tokens": 3}
    assert second == {"text": "", "translation": "", "score": 0.0, "tokens": 0}
    source = '{"id": 7, "text": "ä\\tb"}\n"c"\n\n'.encode()
    out = translate("--input-format", "json", "--n-best", "2", source=source)[1]
    first, second, third = map(json.loads, out.splitlines())
    assert first["id"] == 7 and first["text"] == "ä\tb" and "ä\\tb" in out
    best, other = first["n_best"]
    assert best == {"translation": "Ä B", "score": -0.03, "tokens": 3}
    assert best.items() <= first.items() and other["translation"] == "Ä B B"
    assert second["text"] == "c" and third["translation"] == ""
    plain = translate("--input-format", "json", "--output-format", "lines", source=source)[1]
    assert plain == "Ä B\nC\n\n"
    own = b'{"s": "a"}\n'
    assert translate("--input-format", "json", "--field", "s", "--json", source=own)[0] == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plain", "line 1 is no JSON: "),
        ("{}", "line 1 must be a string, or an object in which 'text' is one"),
        ('{"text": 3}', "line 1 must be a string, or"),
        ('"\\ud800"', "line 1 holds half of a UTF-16 surrogate pair"),
        ("[" * 100_000, "line 1 is no JSON: "),
        ("9" * 5000, "line 1 is no JSON: "),
    ],
)
def test_what_is_no_json(translate: Translate, line: str, says: str) -> None:
    status, out, err = translate("--input-format", "json", source=f"{line}\n".encode())
    assert (status, out) == (2, "") and one_line(err) and says in err


def test_quiet(translate: Translate) -> None:
    translate.positions = 8
    assert translate("--quiet", source=b"a bb. C d.\n") == (0, "A BB. C D.\n", "")


def test_a_warning_comes_once(translate: Translate) -> None:
    source = b"a\nb b\nc c c\n"
    err = translate("--top-k", "5", "--batch-tokens", "1", source=source)[2]
    assert err.count("top_k=5 has no effect without do_sample=True") == 1
    err = translate("--do-sample", "--seed", "1", source=source)[2]
    assert err.count("(--num-beams 1) for plain sampling") == 1
    assert "warning" not in translate("--do-sample", "--num-beams", "4", source=source)[2]


def test_scores_of_searches_without_beams(translate: Translate) -> None:
    """Sums of log-probabilities: of the stand-in's, length * -length / 100."""
    assert translate("--num-beams", "1", "--scores", source=b"a b\n\n")[1] == (
        "A B ||| -0.0900\n ||| 0.0000\n"
    )
    sampling = "--num-beams 1 --do-sample --n-best 3".split()
    out = translate(*sampling, source=b"a b\n")[1]
    assert out.splitlines() == [
        "0 ||| A B ||| -0.0900",
        "0 ||| A B B ||| -0.1600",
        "0 ||| A B B B ||| -0.2500",
    ]
    assert "score" not in json.loads(translate("--num-beams", "1", "--json", source=b"a\n")[1])


def test_unique(translate: Translate) -> None:
    """The search looks among all beams; one text stays with its best score."""
    translate.monkeypatch.setattr(stand_in.Words, "text_of", lambda _, ids, __: str(len(ids) // 2))
    several = translate("--n-best", "3", source=b"a\n")[1].splitlines()
    assert several == ["0 ||| 1 ||| -0.0200", "0 ||| 1 ||| -1.0300", "0 ||| 2 ||| -2.0400"]
    unique = translate("--n-best", "2", "--unique", source=b"a\n")[1].splitlines()
    assert unique == ["0 ||| 1 ||| -0.0200", "0 ||| 2 ||| -2.0400"]
    assert translate.model.calls[0][1]["num_return_sequences"] == 4


def test_target_prefix(translate: Translate) -> None:
    translate("--target-prefix", "x y", source=b"a b\nc d\n")
    [(_, options)] = translate.model.calls
    words = translate.model.tokenizer
    assert isinstance(words, stand_in.Words)
    prompt = [stand_in.START, *words.encode("x y")[:-1]]
    assert options["decoder_input_ids"] == [prompt, prompt]
    assert translate("--target-prefix", "-- So", source=b"a\n").status == 0
    source = b'{"text": "a", "target_prefix": "x"}\n{"text": "b"}\n'
    translate("--input-format", "json", source=source)
    [(_, options)] = translate.model.calls
    assert [len(prompt) for prompt in options["decoder_input_ids"]] == [2, 1]
    status, _, err = translate("--target-prefix", "x " * 600, source=b"a\n")
    assert status == 2 and "target_prefix has 601 tokens" in err


def test_a_limit_of_a_line(translate: Translate) -> None:
    source = b'{"text": "a b c", "max_new_tokens": 2}\n{"text": "d e f"}\n'
    _, out, _ = translate("--input-format", "json", "--output-format", "lines", source=source)
    assert out == "A B\nD E F\n"
    source = b'{"text": "a", "max_new_tokens": 0}\n'
    status, _, err = translate("--input-format", "json", source=source)
    assert status == 2 and "line 1: max_new_tokens must be" in err


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ('"target_prefix": 5', "line 2: 'target_prefix' must be a string, got 5"),
        ('"max_new_tokens": 3000', "line 2: max_new_tokens=3000: the model has 512 positions"),
    ],
)
def test_what_a_line_cannot_have(translate: Translate, own: str, says: str) -> None:
    source = f'{{"text": "a"}}\n{{"text": "b", {own}}}\n'.encode()
    status, out, err = translate("--input-format", "json", source=source)
    assert (status, out) == (2, "") and one_line(err) and f"standard input, {says}" in err
