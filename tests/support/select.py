"""The same search twice: by the CPU's kernels one by one, and by select."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from decoding.reference import FILL_IN
from tests.support.active import active_sentences

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CPU: dict[str, Any] = {"isa": _C.isas()[0], "threads": 1}


PREFIX = 2  # positions in every row's history before the first step


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
    """The same search twice: `kept` by the CPU's kernels, `ours` by select. numbers: of the step at
    which each sentence begins, by default 1."""

    kind: str
    rules: Rules
    batch: int
    beams: int
    vocab: int
    dtype: torch.dtype = torch.float32
    numbers: tuple[int, ...] = ()
    kept: dict[str, Tensor] = field(init=False)
    ours: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        batch, beams, rules = self.batch, self.beams, self.rules
        slots, groups = batch * beams, -(-self.vocab // 128)
        self.m = max(2, 1 + len(rules.eos)) * beams if self.kind == "beam" else 1
        full = lambda *shape: torch.full(shape, -7, dtype=torch.int32)  # noqa: E731
        zeros = lambda *shape: torch.zeros(shape, dtype=torch.int32)  # noqa: E731
        random_first = (torch.arange(batch, dtype=torch.int32) * 3 + 1) * beams
        numbers = self.numbers or (1,) * batch
        positions = [PREFIX + number - 1 for number in numbers]
        self.kept = {
            "state": ints([1, batch]),
            "active": active_sentences(range(batch), numbers, positions),
            "prompt_lengths": torch.arange(batch, dtype=torch.int32) * 10,
            "random_first": random_first,
            "sums": torch.tensor([0.0] + [FILL_IN] * (beams - 1)).repeat(batch),
            "tokens": full(rules.max_new, slots),
            "parents": full(rules.max_new, slots),
            "cache_indirection": full(2, slots, PREFIX + rules.max_new + 1),
            "length": zeros(slots),
            "finished": full(batch, beams, 5),
            "finished_count": zeros(batch),
            "done": zeros(batch),
            "fault": zeros(batch),
            "ids": full(slots),
            "positions": full(slots),
            "random_row": (random_first[:, None] + torch.arange(beams)).flatten().int(),
        }
        kernels.reset_cache_indirection(
            self.kept["cache_indirection"], beams=beams, prefix=PREFIX, **CPU
        )
        self.ours = {name: tensor.cuda() for name, tensor in self.kept.items()}
        self.ours |= {
            "host_state": full(2).cuda(),
            "group_max": torch.full((slots, groups), math.nan).cuda(),
            "group_sum": torch.full((slots, groups), math.nan).cuda(),
            "lse": torch.full((slots,), math.nan).cuda(),
            "best": full(slots, self.m, 2).cuda(),
            "arrivals": zeros(batch * (beams + 1) + 1).cuda(),
            "config": torch.zeros(65536 + 512 * batch + 4 * self.vocab, dtype=torch.uint8).cuda(),
            "stop_now": zeros(batch).cuda(),
        }
        self.given = rules.given(random_first)

    @property
    def active_count(self) -> int:
        return int(self.kept["state"][1])

    @property
    def active(self) -> Tensor:
        """[active_count, 3], of this step."""
        return self.kept["active"][: self.active_count].clone()

    def select(self, logits: Tensor, rows: int | None = None) -> None:
        """rows: that belong to active sentences, by default all."""
        ours = padded(logits.to(self.dtype))
        ours[rows if rows is not None else len(ours) :] = math.nan
        kernels.select(
            ours, self.ours, self.given, self.kind, beams=self.beams, m=self.m, vocab=self.vocab
        )

    def step(self, logits: Tensor) -> None:
        """logits: [batch * beams, vocab]."""
        rows = self.active_count * self.beams
        theirs = logits.to(self.dtype).float().cpu()[:rows]
        self.select(logits, rows)
        lse = self.ours["lse"].cpu()[:rows]
        parts = zip(self.active[:, 1].tolist(), theirs.split(self.beams), strict=True)
        expected = torch.cat([self.rules.apply(part, number) for number, part in parts])
        # What is not finite is the same kind of fault, NaN or inf.
        torch.testing.assert_close(
            lse.where(lse != math.inf, math.nan),
            expected.where(expected != math.inf, math.nan),
            rtol=1e-6, atol=2e-6, equal_nan=True,
        )  # fmt: skip
        before = self.kept["state"].clone()
        self.choose(theirs, lse)
        self.gather()
        self.compare(before)

    def choose(self, logits: Tensor, lse: Tensor) -> None:
        """By the CPU. lse: the GPU's, so that scores must be equal to the bit."""
        kept, rules, active = self.kept, self.rules, self.active
        if self.kind == "beam":
            best = kernels.merge_beams(
                *kernels.topk(logits, self.m, **CPU), lse, active, kept["sums"], m=self.m,
                vocab=self.vocab, **CPU,
            )  # fmt: skip
            kernels.beam_step(
                *best, lse, active, eos=list(rules.eos), state=kept,
                vocab=self.vocab, max_new=rules.max_new, length_penalty=rules.length_penalty,
                early_stopping=rules.stopping(), **CPU,
            )  # fmt: skip
            return
        if self.kind == "greedy":
            values, ids = (best[:, 0].clone() for best in kernels.topk(logits, 1, **CPU))
        else:
            words = kept["random_row"][: len(active) * self.beams].clone()
            values, ids = kernels.sample(
                logits, words, seed=rules.seed, steps=active[:, 1].tolist(),
                temperature=rules.temperature, top_k=rules.top_k, top_p=rules.top_p, **CPU,
            )  # fmt: skip
        kernels.update_rows(
            values, ids, lse, active, eos=list(rules.eos), state=kept, pad=rules.pad,
            fallback=0 if self.kind == "greedy" else -1, max_new=rules.max_new, **CPU,
        )  # fmt: skip

    def gather(self) -> None:
        kept, beams = self.kept, self.beams
        active = self.active[kept["done"][self.active[:, 0]] == 0]
        rows, (ids, numbers, _) = len(active) * beams, active.long().T
        tokens = kept["tokens"].view(len(kept["tokens"]), -1, beams)
        kept["ids"][:rows] = tokens[numbers - 1, ids].flatten()
        kept["positions"][:rows] = (kept["prompt_lengths"][ids] + numbers).repeat_interleave(beams)
        words = kept["random_first"][ids][:, None] + torch.arange(beams)
        kept["random_row"][:rows] = words.flatten().int()
        kept["active"][: len(active)] = active + ints([0, 1, 1])
        kept["state"].copy_(ints([int(kept["state"][0]) + 1, len(active)]))

    def compare(self, before: Tensor) -> None:
        """before: `state` of this step, which is what the host sees until the search ends."""
        ours = {name: tensor.cpu() for name, tensor in self.ours.items()}
        for name, expected in self.kept.items():
            count = self.active_count * (1 if name == "active" else self.beams)
            # Behind what is active, old entries are left.
            part = slice(count if name in ("active", "ids", "positions", "random_row") else None)
            if (
                name == "cache_indirection"
            ):  # [2, slots, history]; nobody reads where the history of a sentence
                # that is done lies
                active = (self.kept["done"] == 0).repeat_interleave(self.beams)
                assert torch.equal(ours[name][:, active], expected[:, active])
                continue
            assert torch.equal(ours[name][part], expected[part]), name
        assert torch.equal(ours["host_state"], before if self.active_count else ours["state"])
        assert not ours["arrivals"].any()

    def run(self, style: str, seed: int = 0) -> None:
        """To the end, on logits that have nothing to do with the tokens."""
        generator = torch.Generator("cuda").manual_seed(seed)
        for _ in range(self.rules.max_new):
            self.step(made(style, self.batch * self.beams, self.vocab, generator))
            if self.active_count == 0:
                break
        assert self.active_count == 0 and bool(self.kept["done"].all())


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
