"""The same answers as transformers, token for token, over the whole grammar of options.

    python -m tests.fuzz.generate --cases 20000 --seed 1        the longer run
    python -m tests.fuzz.generate --seed 1 --only 1234          one case again, in words

Each case is a function of the seed and its number: a small random model of one of the families, a
ragged batch, and options drawn from all that transformers has too. Rows may differ only where the
reference itself cannot tell: where noise of 1e-5 on its log-probabilities gives ours (`is_tie`).
What is drawn at random cannot be equal: there the distributions are, and our draw is the one that
our documented noise makes of the reference's.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from decoding.reference import gumbel
from tests.support.comparison import LOST, Noise, assert_close_scores, is_tie, rows_of
from tests.support.grammar import Case, Draw, Each, as_list
from tests.support.random_models import ours, reference


def run_reference(case: Case, **more: Any) -> Any:
    options = {name: value for name, value in case.options.items() if name != "seed"}
    if case.prompt is not None:
        options["decoder_input_ids"] = torch.tensor(case.prompt)
    functions = dict(case.functions)
    if "logits_processor" in more:
        own = functions.pop("logits_processor", [])
        more["logits_processor"] = LogitsProcessorList([*own, *more["logits_processor"]])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return reference(case.model).generate(
            **case.inputs,
            **options,
            **functions,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **more,
        )


def run_ours(case: Case, model: Any) -> Any:
    options = {name: list(v) if isinstance(v, Each) else v for name, v in case.options.items()}
    shown = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    given: dict[str, Any] = {**case.inputs, **options, **case.functions, **shown}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(decoder_input_ids=case.prompt, **given)


def compare(case: Case, mine: Any) -> str:
    """ "same" or "tie"; AssertionError for anything else."""
    if not case.row_by_row:
        return compare_rows(case, run_reference(case), mine, 0)
    found = {
        compare_rows(one, theirs := run_reference(one), only(mine, i, len(case.ids), theirs), i)
        for i, one in enumerate(map(case.row, range(len(case.ids))))
    }
    return "tie" if "tie" in found else "same"


def only(found: Any, item: int, batch: int, theirs: Any) -> Any:
    """What was found for one item of a call, in the shape that it has alone."""
    returned, rows = (len(x) // batch for x in (found.sequences, found.scores[0]))
    mine = slice(item * returned, (item + 1) * returned)
    scores, logits = (
        tuple(step[item * rows : (item + 1) * rows] for step in kept[: len(theirs.scores)])
        for kept in (found.scores, found.logits)
    )
    lengths = found.lengths[mine]
    longest = int(lengths.max())
    generated = getattr(theirs, "beam_indices", torch.empty(1, len(theirs.scores))).shape[1]
    prompt = theirs.sequences.shape[1] - generated
    alone = SimpleNamespace(
        sequences=found.sequences[mine, : prompt + longest],
        lengths=lengths,
        scores=scores,
        logits=logits,
    )
    if hasattr(found, "beam_indices"):
        indices = found.beam_indices[mine, :longest]
        indices = torch.where(indices >= 0, indices - item * rows, -1)
        alone.beam_indices = indices.to(torch.int32)
        alone.sequences_scores = found.sequences_scores[mine]
    return alone


def compare_rows(case: Case, theirs: Any, mine: Any, item: int) -> str:
    if "do_sample" in case.options:
        return compare_draws(case, theirs, mine, item)
    assert mine.sequences.dtype == torch.int64
    if rows_of(mine) != rows_of(theirs):
        assert is_tie(lambda **more: run_reference(case, **more), mine), (
            f"theirs {theirs.sequences.tolist()}\nours   {mine.sequences.tolist()}"
        )
        return "tie"
    kept = torch.ones(len(mine.sequences), dtype=torch.bool)
    if hasattr(theirs, "sequences_scores"):
        scale = mine.lengths ** max(0.0, -case.options.get("length_penalty", 1.0))
        assert_close_scores(mine.sequences_scores, theirs.sequences_scores, scale)
        assert mine.beam_indices.dtype == torch.int32
        kept = theirs.sequences_scores > LOST
        if bool(kept.all()) and not torch.equal(mine.beam_indices, theirs.beam_indices):
            assert moves_tie(case, mine), f"{theirs.beam_indices}\n{mine.beam_indices}"
            return "tie"
    # Where a forced token ends a row, transformers goes on with rows of nothing but banned tokens.
    assert len(mine.logits) == len(mine.scores) >= int(mine.lengths.max())
    last = mine.scores[int(mine.lengths.max()) - 1]
    forced = bool((last.isfinite().sum(1) <= 1).all())
    others = case.functions or forced or not bool(kept.all())
    assert len(mine.scores) == len(theirs.scores) or others
    compare_steps(case, theirs, mine, kept)
    return "same"


def moves_tie(case: Case, mine: Any, tries: int = 30) -> bool:
    """Whether the reference, shaken, finds each row of `mine` through the same beams."""
    wanted = set(enumerate(map(tuple, mine.beam_indices.tolist())))
    for seed in range(tries):
        shaken = run_reference(case, logits_processor=LogitsProcessorList([Noise(seed)]))
        if shaken.sequences.tolist() == mine.sequences.tolist():
            wanted -= set(enumerate(map(tuple, shaken.beam_indices.tolist())))
    return not wanted


def compare_steps(case: Case, theirs: Any, mine: Any, kept: Tensor) -> None:
    """Scores and logits with which the tokens of the rows `kept` were chosen."""
    transitions = ours(case.model).compute_transition_scores
    indices = [getattr(found, "beam_indices", None) for found in (theirs, mine)]
    for name in ("scores", "logits"):
        expected, got = (
            transitions(found.sequences, getattr(found, name), moves)
            for found, moves in zip((theirs, mine), indices, strict=True)
        )
        width = min(got.shape[1], expected.shape[1])  # fill-ins may be longer than any row
        got, expected = got[:, :width], expected[:, :width]
        there = torch.arange(width) < mine.lengths[:, None]
        there &= kept[:, None]
        torch.testing.assert_close(got[there], expected[there], atol=1e-4, rtol=1e-4, msg=name)


def compare_draws(case: Case, theirs: Any, mine: Any, item: int) -> str:
    """The one step's warped scores and, without beams, the token that our noise chooses."""
    expected, got = theirs.scores[0], mine.scores[0]
    if not torch.equal(expected.isinf(), got.isinf()):
        # Which of equal tokens a filter cuts is undefined, and with noise none are equal.
        wanted = {
            row: tuple(x.isinf().tolist())
            for row, (x, y) in enumerate(zip(got, expected, strict=True))
            if not torch.equal(x.sort().values, y.sort().values)
        }
        for seed in range(30):
            shaken = run_reference(case, logits_processor=LogitsProcessorList([Noise(seed)]))
            for row, x in enumerate(shaken.scores[0]):
                if row in wanted and tuple(x.isinf().tolist()) == wanted[row]:
                    del wanted[row]
        assert not wanted, f"rows {list(wanted)} keep other tokens: {expected}\n{got}"
        return "tie"
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    if "num_beams" in case.options:
        return "same"
    for row, x in enumerate(expected):
        noisy = x + gumbel(
            len(x), seed=case.options["seed"], step=1, row=item * len(expected) + row
        )
        token = int(mine.sequences[row, -1])
        assert noisy[token] > noisy.max() - 1e-3, f"row {row}: {token}, not {int(noisy.argmax())}"
    return "same"


def run(seed: int, numbers: Iterator[int] | range, device: str = "cpu") -> dict[str, int]:
    """How many cases are the same, and how many tie; several forced tokens, whose scores are all 0,
    tie by themselves ("forced"). Raises AssertionError, with the case."""
    counts = {"same": 0, "tie": 0, "forced": 0}
    for number in numbers:
        case = Draw(seed, number).case()
        try:
            found = compare(case, run_ours(case, ours(case.model, device)))
        except Exception as error:
            again = f"python -m tests.fuzz.generate --seed {seed} --only {number}"
            raise AssertionError(f"{error!r}\n{again}\n{case}") from error
        forced = len(set(as_list(case.options.get("forced_eos_token_id")))) > 1
        counts["forced" if forced and found == "tie" else found] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.only is not None:
        print(Draw(args.seed, args.only).case())
        print(run(args.seed, range(args.only, args.only + 1), args.device))
        return
    counts: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for number in range(args.cases):
        try:
            counts.update(run(args.seed, range(number, number + 1), args.device))
        except AssertionError as error:
            counts["different"] += 1
            print(error, flush=True)
    seconds = time.perf_counter() - start
    print(dict(counts), f"{seconds:.0f} s on {args.device}, seed {args.seed}")
    sys.exit(counts["different"] > 0)


if __name__ == "__main__":
    main()
