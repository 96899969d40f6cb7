"""select, all from the logits to the next step in one launch, against the CPU's kernels one by one;
and reset_slots."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from decoding import _C, reference
from decoding import _kernels as kernels
from decoding.reference import FILL_IN
from tests.conftest import Place, assert_same_bits, assert_within_torch, random

CPU: dict[str, Any] = {"isa": _C.isas()[0], "threads": 1}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
PREFIX = 2  # positions in every row's history before the first step


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@dataclass(frozen=True)
class Rules:
    max_new: int = 5
    min_new: int = 0
    pad: int = 1
    eos: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    forced_first: tuple[int, ...] = ()  # one at most
    forced_last: tuple[int, ...] = ()
    renormalize: bool = False
    seed: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    length_penalty: float = 1.0
    early_stopping: str = "no"

    def stopping(self) -> Any:
        return getattr(kernels.EarlyStopping, self.early_stopping)

    def given(self, random_first: Tensor) -> dict[str, Any]:
        """As select takes them; random_first: of each sentence, which has the rest in common."""
        of_each = {
            "seeds": self.seed,
            "max_news": self.max_new,
            "forced_firsts": self.forced_first[0] if self.forced_first else -1,
            "temperatures": self.temperature,
            "top_ks": self.top_k,
            "top_ps": self.top_p,
        }
        each = {name: [value] * len(random_first) for name, value in of_each.items()}
        random = {"random_firsts": random_first.tolist()}
        return {**self.__dict__, "early_stopping": self.stopping(), **each, **random}

    def apply(self, x: Tensor, step: int) -> Tensor:
        """Changes the logits; returns the rows' lse."""
        lse = kernels.scan_logits(x, **CPU)[2]
        x[:, list(self.banned + (self.eos if step <= self.min_new else ()))] = -math.inf
        forced = self.forced_last if step == self.max_new else ()
        forced = forced or (self.forced_first if step == 1 else ())
        if forced:
            x[:] = -math.inf
            x[:, list(forced)] = 0.0
            lse = lse.where(~lse.isfinite(), 0.0)
        if self.renormalize:
            left = kernels.scan_logits(x, **CPU)[2]
            lse = left.where(left.isfinite() & lse.isfinite(), lse)
        return lse


def padded(x: Tensor) -> Tensor:
    """On the GPU, each row on 16 bytes; nobody may read behind its end."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % 8), value=math.nan).to("cuda", copy=True)


def ints(values: Any) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


@dataclass
class Search:
    """The same search twice: `kept` by the CPU's kernels, `ours` by select."""

    kind: str
    rules: Rules
    batch: int
    beams: int
    vocab: int
    dtype: torch.dtype = torch.float32
    kept: dict[str, Tensor] = field(init=False)
    ours: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        batch, beams, rules = self.batch, self.beams, self.rules
        slots, groups = batch * beams, -(-self.vocab // 128)
        self.m = max(2, 1 + len(rules.eos)) * beams if self.kind == "beam" else 1
        full = lambda *shape: torch.full(shape, -7, dtype=torch.int32)  # noqa: E731
        zeros = lambda *shape: torch.zeros(shape, dtype=torch.int32)  # noqa: E731
        items = torch.arange(batch, dtype=torch.int32) * 3 + 1
        self.kept = {
            "now": ints([1, PREFIX, batch]),
            "live": torch.arange(batch, dtype=torch.int32),
            "first": torch.arange(batch, dtype=torch.int32) * 10,
            "items": items,
            "sums": torch.tensor([0.0] + [FILL_IN] * (beams - 1)).repeat(batch),
            "tokens": full(rules.max_new, slots),
            "parents": full(rules.max_new, slots),
            "slots": full(2, slots, PREFIX + rules.max_new + 1),
            "length": zeros(slots),
            "finished": full(batch, beams, 5),
            "finished_count": zeros(batch),
            "done": zeros(batch),
            "fault": zeros(batch),
            "ids": full(slots),
            "at": full(slots),
            "random_row": (items[:, None] * beams + torch.arange(beams)).flatten().int(),
        }
        kernels.reset_cache_indirection(self.kept["slots"], beams=beams, prefix=PREFIX, **CPU)
        self.ours = {name: tensor.cuda() for name, tensor in self.kept.items()}
        self.ours |= {
            "seen": full(3).cuda(),
            "group_max": torch.full((slots, groups), math.nan).cuda(),
            "group_sum": torch.full((slots, groups), math.nan).cuda(),
            "lse": torch.full((slots,), math.nan).cuda(),
            "best": full(slots, self.m, 2).cuda(),
            "tickets": zeros(batch * (beams + 1) + 1).cuda(),
            "config": torch.zeros(65536 + 512 * batch + 4 * self.vocab, dtype=torch.uint8).cuda(),
            "stop_now": zeros(1).cuda(),
        }
        self.given = rules.given(items * beams)

    @property
    def live_count(self) -> int:
        return int(self.kept["now"][2])

    def select(self, logits: Tensor, rows: int | None = None) -> None:
        """rows: that belong to live sentences, by default all."""
        ours = padded(logits.to(self.dtype))
        ours[rows if rows is not None else len(ours) :] = math.nan
        kernels.select(
            ours, self.ours, self.given, self.kind, beams=self.beams, m=self.m, vocab=self.vocab
        )

    def step(self, logits: Tensor) -> None:
        """logits: [batch * beams, vocab]."""
        rows = self.live_count * self.beams
        theirs = logits.to(self.dtype).float().cpu()[:rows]
        self.select(logits, rows)
        lse = self.ours["lse"].cpu()[:rows]
        expected = self.rules.apply(theirs, int(self.kept["now"][0]))
        # What is not finite is the same kind of fault, NaN or inf.
        torch.testing.assert_close(
            lse.where(lse != math.inf, math.nan),
            expected.where(expected != math.inf, math.nan),
            rtol=1e-6, atol=2e-6, equal_nan=True,
        )  # fmt: skip
        before = self.kept["now"].clone()
        self.choose(theirs, lse)
        self.gather()
        self.compare(before)

    def choose(self, logits: Tensor, lse: Tensor) -> None:
        """By the CPU. lse: the GPU's, so that scores must be equal to the bit."""
        kept, rules = self.kept, self.rules
        step, position, count = kept["now"].tolist()
        live = kept["live"][:count].clone()
        if self.kind == "beam":
            best = kernels.merge_beams(
                *kernels.topk(logits, self.m, **CPU), lse, live, kept["sums"], m=self.m,
                vocab=self.vocab, **CPU,
            )  # fmt: skip
            kernels.beam_step(
                *best, lse, live, eos=list(rules.eos), state=kept,
                vocab=self.vocab, step=step, position=position, max_new=rules.max_new,
                length_penalty=rules.length_penalty, early_stopping=rules.stopping(), **CPU,
            )  # fmt: skip
            return
        if self.kind == "greedy":
            values, ids = (best[:, 0].clone() for best in kernels.topk(logits, 1, **CPU))
        else:
            words = kept["random_row"][: count * self.beams].clone()
            values, ids = kernels.sample(
                logits, words, seed=rules.seed, step=step, temperature=rules.temperature,
                top_k=rules.top_k, top_p=rules.top_p, **CPU,
            )  # fmt: skip
        kernels.update_rows(
            values, ids, lse, live, eos=list(rules.eos), state=kept, pad=rules.pad,
            fallback=0 if self.kind == "greedy" else -1, step=step, max_new=rules.max_new, **CPU,
        )  # fmt: skip

    def gather(self) -> None:
        kept, beams = self.kept, self.beams
        step, position, count = kept["now"].tolist()
        live = kept["live"][:count]
        live = live[kept["done"][live] == 0].clone()
        rows = len(live) * beams
        kept["ids"][:rows] = kept["tokens"][step - 1].view(-1, beams)[live].flatten()
        kept["at"][:rows] = (kept["first"][live] + step).repeat_interleave(beams)
        words = kept["items"][live][:, None] * beams + torch.arange(beams)
        kept["random_row"][:rows] = words.flatten().int()
        kept["live"][: len(live)] = live
        kept["now"].copy_(ints([step + 1, position + 1, len(live)]))

    def compare(self, before: Tensor) -> None:
        """before: `now` of this step, which is what the host sees until the search ends."""
        ours = {name: tensor.cpu() for name, tensor in self.ours.items()}
        for name, expected in self.kept.items():
            count = self.live_count * (1 if name == "live" else self.beams)
            # Behind what is live, old entries are left.
            part = slice(count if name in ("live", "ids", "at", "random_row") else None)
            if name == "slots":  # [2, slots, history]; nobody reads where the history of a sentence
                # that is done lies
                live = (self.kept["done"] == 0).repeat_interleave(self.beams)
                assert torch.equal(ours[name][:, live], expected[:, live])
                continue
            assert torch.equal(ours[name][part], expected[part]), name
        assert torch.equal(ours["seen"], before if self.live_count else ours["now"])
        assert not ours["tickets"].any()

    def run(self, style: str, seed: int = 0) -> None:
        """To the end, on logits that have nothing to do with the tokens."""
        generator = torch.Generator("cuda").manual_seed(seed)
        for _ in range(self.rules.max_new):
            self.step(made(style, self.batch * self.beams, self.vocab, generator))
            if self.live_count == 0:
                break
        assert self.live_count == 0 and bool(self.kept["done"].all())


def made(style: str, rows: int, vocab: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(rows, vocab, generator=generator, device="cuda")
    if style == "peaked":
        return x * 12 + 100
    if style == "ties":
        return (x * 2).round()
    if style == "flat":
        return x * 0
    if style == "holes":
        holes = torch.rand(x.shape, generator=generator, device="cuda") < 0.95
        holes[:, 0] = False
        return x.masked_fill(holes, -math.inf)
    assert style == "normal"
    return x * 3


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (1, 4), (3, 2), (8, 4), (3, 17)])
@pytest.mark.parametrize("vocab", [5, 127, 128, 129, 1000, 32000, 50257])
@pytest.mark.parametrize("style", ["normal", "ties"])
def test_beam_search(dtype: torch.dtype, batch: int, beams: int, vocab: int, style: str) -> None:
    Search("beam", Rules(max_new=4, eos=(2,)), batch, beams, vocab, dtype).run(style)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
@pytest.mark.parametrize("vocab", [1000, 128112])
def test_many_rows(dtype: torch.dtype, kind: str, vocab: int) -> None:
    batch = 300 if vocab == 1000 else 32
    Search(kind, Rules(max_new=3, eos=(2, 7)), batch, 4, vocab, dtype).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["greedy", "sampling"])
def test_many_rows_of_a_sentence(kind: str) -> None:
    """As many sequences are returned: more than shared memory could keep books of."""
    Search(kind, Rules(max_new=3, eos=(2, 7)), 2, 5000, 40).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
def test_a_large_vocabulary(kind: str) -> None:
    """Its books take more shared memory than a kernel has unasked."""
    Search(kind, Rules(max_new=3, eos=(2, 7)), 2, 4, 256_000, torch.float16).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("early_stopping", ["no", "yes", "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 0.6, -1.0, 2.0])
@pytest.mark.parametrize("style", ["normal", "ties", "holes"])
def test_when_sentences_stop(early_stopping: str, length_penalty: float, style: str) -> None:
    rules = Rules(
        max_new=12, eos=(0, 3, 7), length_penalty=length_penalty, early_stopping=early_stopping
    )
    Search("beam", rules, 40, 3, 12).run(style)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(banned=(0, 5, 128, 499), eos=(3,)),
        Rules(eos=(2, 9), min_new=3),
        Rules(forced_first=(400,), eos=(4,)),
        Rules(forced_first=(499,), forced_last=(8, 130), eos=(4,), banned=(3,)),
        Rules(max_new=1, forced_first=(5,), forced_last=(6,), eos=(6,)),
        Rules(banned=(1, 7), eos=(2,), min_new=2, renormalize=True),
        Rules(forced_first=(6,), renormalize=True),
        Rules(banned=tuple(range(500))),
        Rules(banned=tuple(range(498)), eos=(498,), renormalize=True),
    ],
)
def test_rules(dtype: torch.dtype, kind: str, rules: Rules) -> None:
    Search(kind, rules, 5, 3, 500, dtype).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "warpers"),
    [
        ("beam", {}),
        ("greedy", {}),
        ("sampling", {}),
        ("sampling", {"top_k": 5}),
        ("sampling", {"top_p": 0.9}),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_rows(dtype: torch.dtype, kind: str, value: float, warpers: dict[str, Any]) -> None:
    """One number in a row, or all of them; others go on as they would have."""
    search = Search(kind, Rules(max_new=4, **warpers), 6, 2, 3000, dtype)
    for number in range(1, 5):
        logits = random(12, 3000, seed=number)
        if number == 2:
            logits[3, 2999] = logits[8] = value
        search.step(logits)
    assert search.live_count == 0
    assert bool(search.kept["fault"].any()) == (value != -math.inf or kind != "greedy")


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [300, 5000, 32000])
@pytest.mark.parametrize("style", ["flat", "ties", "peaked", "normal"])
def test_many_candidates(vocab: int, style: str) -> None:
    """More beams and more ends than a queue holds at first, ties by the thousand."""
    rules = Rules(max_new=3, eos=(2, 3, 4, 5))
    Search("beam", rules, 2, 32, vocab).run(style)
    Search("beam", Rules(max_new=3, eos=(9,)), 2, 4, vocab, torch.float16).run(style)
    Search("greedy", Rules(max_new=3, eos=(9,)), 2, 1, vocab).run(style)


@pytest.mark.gpu
def test_the_best_lie_close_together() -> None:
    """Tokens sorted by their logits: the first groups hold everything that counts."""
    search = Search("beam", Rules(max_new=3, eos=(2,)), 2, 16, 32000)
    for seed in range(3):
        search.step(random(32, 32000, seed=seed).sort(-1, descending=True).values)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
def test_replayed_when_all_is_done(kind: str) -> None:
    search = Search(kind, Rules(max_new=2), 3, 2, 1000)
    search.run("normal")
    before = {name: tensor.clone() for name, tensor in search.ours.items()}
    search.ours["seen"].zero_()
    search.select(torch.full((6, 1000), math.nan))
    for name, tensor in before.items():
        if tensor.dtype == torch.int32:
            assert torch.equal(search.ours[name], tensor), name


def log_sum_exp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1, 7, 129, 4097, 32000, 50257, 128112])
def test_log_sum_exp(dtype: torch.dtype, vocab: int) -> None:
    """Right, and the same bits however many rows there are, which decides how a row is split."""
    x = (random(40, vocab) * 3).to(dtype)

    def lse(rows: Tensor) -> Tensor:
        search = Search("greedy", Rules(), len(rows), 1, vocab, dtype)
        search.select(rows)
        return search.ours["lse"].cpu()

    together = lse(x)
    assert_within_torch(log_sum_exp, together, x.float())
    for row in (0, 1, 17):
        assert_same_bits(lse(x[row : row + 1]), together[row : row + 1])
    assert_same_bits(lse(x.flip(0)).flip(0), together)


WARPERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"temperature": 1e-6},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 600, "temperature": 1.5},
    {"top_k": 3000, "top_p": 0.95},
    {"top_p": 0.2},
    {"top_p": 0.9},
    {"top_p": 0.99, "temperature": 3.0},
    {"top_k": 20, "top_p": 0.7, "temperature": 0.8},
]


def drawn(logits: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """One draw of every row, by select and by the CPU."""
    rows, vocab = logits.shape
    rules = Rules(max_new=9, **options)
    search = Search("sampling", rules, rows, 1, vocab, logits.dtype)
    words = search.kept["random_row"]
    search.select(logits)
    theirs = kernels.sample(
        logits.float(), words, seed=rules.seed, step=1, temperature=rules.temperature,
        top_k=rules.top_k, top_p=rules.top_p, **CPU,
    )[1]  # fmt: skip
    return search.ours["tokens"][0].cpu(), theirs


@pytest.mark.gpu
@pytest.mark.parametrize("warpers", WARPERS, ids=str)
@pytest.mark.parametrize(("rows", "vocab"), [(1000, 129), (300, 5001), (20, 50257)])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 5.0])
def test_draws_equal_the_cpus(
    dtype: torch.dtype, warpers: dict[str, Any], rows: int, vocab: int, sharpness: float
) -> None:
    """All of them, but where two tokens' scores, or a prefix's mass and top_p, round apart."""
    ours, theirs = drawn((random(rows, vocab) * sharpness).to(dtype), **warpers)
    assert int((ours != theirs).sum()) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("warpers", WARPERS, ids=str)
def test_distribution(warpers: dict[str, Any]) -> None:
    vocab, count = 40, 6000
    logits = random(1, vocab) * 1.5
    ids, _ = drawn(logits.repeat(count, 1), **warpers)
    found = ids.long().bincount(minlength=vocab)
    expected = reference.filtered(logits[0], **warpers).softmax(-1) * count
    assert not found[expected == 0].any()
    common = expected > 5
    observed = [*found[common].tolist(), int(found[~common].sum())]
    wanted = [*expected[common].tolist(), float(expected[~common].sum())]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    if len(wanted) > 1:
        assert chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1000, 32000])
def test_a_nucleus_that_ends_among_ties(dtype: torch.dtype, vocab: int) -> None:
    """Far below the peak; of equals, those with low ids belong to it."""
    logits = torch.full((1, vocab), -9.0)
    logits[0, -1] = math.log(vocab) - 9.0  # half of the mass
    ids, _ = drawn(logits.repeat(300, 1).to(dtype), top_p=0.75)
    others = ids[ids != vocab - 1]
    assert 0 < len(others) < 300
    assert vocab * 0.4 < int(others.max()) < vocab * 0.51 + 2


@pytest.mark.gpu
def test_draws_do_not_depend_on_the_batch() -> None:
    x, top_p = random(40, 5001) * 2, 0.9
    together = drawn(x, top_p=top_p)[0]
    search = Search("sampling", Rules(max_new=9, top_p=top_p), 1, 1, 5001)
    for row in (0, 7, 39):
        alone = replace(search)
        alone.ours["random_row"].fill_(3 * row + 1)
        alone.select(x[row : row + 1])
        assert int(alone.ours["tokens"][0, 0]) == together[row]


@pytest.mark.parametrize(("rows", "beams", "history"), [(1, 1, 1), (6, 3, 40), (12, 4, 300)])
def test_reset_slots(place: Place, rows: int, beams: int, history: int) -> None:
    for prefix in (0, 1, history):
        slots = torch.full((2, rows, history), -7, dtype=torch.int32, device=place.device)
        kernels.reset_cache_indirection(slots, beams=beams, prefix=prefix, isa=place.isa, threads=2)
        own = torch.arange(rows)[:, None].repeat(1, history)
        own[:, :prefix] = own[:, :prefix] // beams * beams
        assert torch.equal(slots.cpu(), own.int().expand(2, -1, -1))
