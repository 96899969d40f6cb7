"""A caller's own functions between the parts of a step, in the words of Hugging Face.

They see the whole call: ids int64 [R, n], every row as the caller knows it, and float32 scores
[R, V]. While all sentences go on, the scores are the engine's own memory; afterwards
those of sentences that are done are 0, and the others are copied to and fro. Whatever such a
function raises passes through unchanged. Scores may be -inf, which bans a token; NaN is refused,
and so is +inf, but in greedy search, where it is the largest score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.common.arrays import is_tensor
from decoding.common.device import Device
from decoding.engine.observer import Step
from decoding.generation.batching import check_ids
from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.models.weights.dtypes import as_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from decoding.generation.functions.histories import Histories

    Processor = Callable[[Tensor, Tensor], Tensor]  # (ids, scores) -> scores
    # (ids, scores of all steps or None) -> bool [R], or one
    Criterion = Callable[[Tensor, Any], Any]
    PrefixFunction = Callable[[int, Tensor], Sequence[int]]  # (item, row of ids) -> allowed ids

PREFIX = "prefix_allowed_tokens_fn"

# Classes of transformers and the option that makes generate() add one: an object of such a class
# takes the place of the built-in one.
REPLACES = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "SequenceBiasLogitsProcessor": "sequence_bias",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty",
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "NoRepeatNGramLogitsProcessor": "no_repeat_ngram_size",
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size",
    "NoBadWordsLogitsProcessor": "bad_words_ids",
    "MinLengthLogitsProcessor": "min_length",
    "MinNewTokensLengthLogitsProcessor": "min_new_tokens",
    "PrefixConstrainedLogitsProcessor": PREFIX,
    "ForcedBOSTokenLogitsProcessor": "forced_bos_token_id",
    "ForcedEOSTokenLogitsProcessor": "forced_eos_token_id",
    "InfNanRemoveLogitsProcessor": "remove_invalid_values",
    "ExponentialDecayLengthPenalty": "exponential_decay_length_penalty",
    "SuppressTokensLogitsProcessor": "suppress_tokens",
    "SuppressTokensAtBeginLogitsProcessor": "begin_suppress_tokens",
}
ORDER = tuple(REPLACES.values())
LAST_BEFORE_MID = ORDER.index("remove_invalid_values")


class Hooks:
    """The functions of one call, in the order of Hugging Face's processors.

    logits_processor, prefix_allowed_tokens_fn: as in Model.generate. A processor of a built-in's
    class takes its place: up to remove_invalid_values they run before the built-in ones from forced
    tokens on, the others after all built-in ones and before the filters. criteria: those that are
    in no option's place (criteria.py).
    """

    def __init__(
        self,
        config: GenerationConfig,
        logits_processor: Sequence[Processor] | None = None,
        prefix_allowed_tokens_fn: PrefixFunction | None = None,
        criteria: Sequence[Criterion] = (),
    ) -> None:
        self.criteria = criteria
        if self.criteria:
            check_candidates_are_seen(config)
        self.replaced: set[str] = set()  # options whose built-in processor is left out
        self._greedy = not (config.do_sample or config.num_beams > 1 or config.contrastive)
        self._repairs = config.remove_invalid_values
        self.before_mid: list[Processor] = []
        self.before_post: list[Processor] = []
        processors = as_list("logits_processor", logits_processor)
        if not processors and prefix_allowed_tokens_fn is None:
            return
        placed: list[tuple[int, Processor]] = []
        on = switched_on(config)
        if prefix_allowed_tokens_fn is not None:
            check_callable("prefix_allowed_tokens_fn", prefix_allowed_tokens_fn)
            on.add(PREFIX)
            rows = config.top_k if config.contrastive else config.num_beams
            constraint = PrefixConstraint(prefix_allowed_tokens_fn, rows, config.num_beams)
            placed.append((ORDER.index(PREFIX), constraint))
        for processor in processors:
            option = built_in(processor)
            if option not in on - self.replaced:
                placed.append((len(ORDER), processor))
                continue
            assert option is not None
            self.replaced.add(option)
            place = ORDER.index(option)
            placed = [item for item in placed if item[0] != place] + [(place, processor)]
        if {"min_length", "min_new_tokens"} & on - self.replaced:  # one of them does for both
            self.replaced -= {"min_length", "min_new_tokens"}
        placed.sort(key=lambda item: item[0])  # stable: equal ones stay in the caller's order
        self.before_mid = [function for place, function in placed if place <= LAST_BEFORE_MID]
        self.before_post = [function for place, function in placed if place > LAST_BEFORE_MID]

    def __bool__(self) -> bool:
        return bool(self.before_mid or self.before_post or self.criteria)

    def without_replaced(self, config: GenerationConfig) -> GenerationConfig:
        """The options that the engine shall obey."""
        off = {name: OPTIONS[name]["default"] for name in self.replaced - {PREFIX}}
        return replace(config, **off) if off else config

    def process(self, processors: Sequence[Processor], histories: Histories, step: Step) -> None:
        """Lets `processors` edit the scores of the step's rows."""
        if not processors:
            return
        assert step.scores is not None
        own = as_tensor(step.scores)
        ids, rows = (
            as_tensor(array).to(own.device)
            for array in (histories.ids, histories.rows_of(step.active))
        )
        scores = own
        if len(own) != len(ids):
            scores = own.new_zeros(len(ids), own.shape[1])
            scores[rows] = own
        sound = self._sound(scores)  # others are the model's own, which the engine reports
        for processor in processors:
            if isinstance(processor, PrefixConstraint):
                scores = processor(ids, scores, rows)
            else:
                scores = checked(processor, processor(ids, scores), scores)
        if not (self._repairs and processors is self.before_mid):
            broken = (sound & ~self._sound(scores)).nonzero()
            if len(broken):
                raise_invalid(scores, int(broken[0]), histories, step)
        if len(own) != len(scores):
            scores = scores[rows]
        if scores.data_ptr() != own.data_ptr():
            own.copy_(scores)

    def _sound(self, scores: Tensor) -> Tensor:
        """bool [R]: whether a search can go on with the scores of each row."""
        largest = scores.amax(1)  # NaN where there is one
        return largest <= math.inf if self._greedy else largest < math.inf

    def ended(
        self, histories: Histories, step: Step, competing: bool, device: Device
    ) -> Tensor | None:
        """uint8, one for each of the step's candidates: 1 where a criterion ends the row. device:
        of the result, and of what criteria are given.

        Where rows compete every candidate is shown as a row of its own, as in Hugging Face.
        """
        if not self.criteria:
            return None
        import torch

        candidates = step.candidates().clip(0)
        beams = histories.rows_per_sentence if competing else 1
        places = step.active if competing else histories.rows_of(step.active)
        every = np.zeros((len(histories.ids) // beams, candidates.shape[1]), np.int64)
        every[places] = candidates
        rows = np.arange(len(every))[:, None] * beams + every // step.vocab
        new = (every % step.vocab).reshape(-1, 1)
        ids = as_tensor(np.concatenate([histories.ids[rows.reshape(-1)], new], 1)).to(str(device))
        done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        scores = step.step_scores()
        seen = None if scores is None else tuple(map(as_tensor, scores))
        for criterion in self.criteria:
            ended = torch.as_tensor(criterion(ids, seen), device=ids.device)
            done = done | ended.bool()
        return done.view(every.shape)[as_tensor(places)].to(torch.uint8).flatten()


class PrefixConstraint:
    """Bans what the caller's function does not allow to follow each row.

    Where all beams of a sentence are left with nothing, its allowed tokens get 0.
    """

    def __init__(self, allowed: PrefixFunction, rows: Any, beams: int) -> None:
        """rows: of each sentence; beams: of them that are alternatives, and not one row's."""
        self._allowed, self._rows, self._beams = allowed, rows, beams

    def __call__(self, ids: Tensor, scores: Tensor, rows: Tensor | None = None) -> Tensor:
        """rows: int64 [n], those to ask for; None: all."""
        import torch

        mask = torch.full_like(scores, -math.inf)
        for row in range(len(ids)) if rows is None else rows.tolist():
            allowed = list(self._allowed(row // self._rows, ids[row]))
            if not allowed:
                raise ValueError(
                    f"prefix_allowed_tokens_fn allows nothing in row {row}, {ids[row].tolist()}: "
                    "one id at least must be allowed"
                )
            check_ids("prefix_allowed_tokens_fn", allowed, scores.shape[1])
            mask[row, allowed] = 0
        found = scores + mask
        lost = found.view(-1, self._beams * scores.shape[1]).amax(1) == -math.inf
        return torch.where(lost.repeat_interleave(self._beams)[:, None], mask, found)


def as_list(name: str, functions: Any) -> list[Any]:
    """Each of them once, as in Hugging Face."""
    if functions is None:
        return []
    if not isinstance(functions, (list, tuple)):
        raise TypeError(f"{name} must be a list of functions, got {type(functions).__name__}")
    for function in functions:
        check_callable(name, function)
    return list({id(function): function for function in functions}.values())


def check_candidates_are_seen(config: GenerationConfig) -> None:
    """Raises ValueError for a search whose candidates are not known between the parts of a step."""
    for name, ours in (
        ("penalty_alpha", config.contrastive),  # a token is chosen in the next step only
        ("num_beam_groups", config.num_beam_groups > 1),  # groups choose one after the other
        ("force_words_ids", bool(config.force_words_ids)),
    ):
        if ours:
            raise ValueError(
                f"stopping_criteria and {name} do not go together: pass stop_strings, max_time or "
                "eos_token_id to end rows"
            )


def check_callable(name: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(f"{name} must be callable, got {function!r}")


def checked(processor: Processor, found: Any, scores: Tensor) -> Tensor:
    """`found`, which a processor returned, if it has the form of scores; raises TypeError."""
    if is_tensor(found) and found.shape == scores.shape:
        return found
    got = list(found.shape) if is_tensor(found) else type(found).__name__
    raise TypeError(
        f"{processor!r} of logits_processor must return scores of shape {list(scores.shape)}, "
        f"got {got}"
    )


def raise_invalid(scores: Tensor, row: int, histories: Histories, step: Step) -> None:
    what = "NaN" if scores[row].isnan().any() else "+inf"
    raise ValueError(
        f"logits_processor made {what} of a score for item {row // histories.rows_per_sentence} at "
        f"step {step.number}: scores must be numbers, or -inf where a token is banned"
    )


def built_in(processor: Processor) -> str | None:
    """The option whose processor in transformers is of exactly this class."""
    return REPLACES.get(transformers_class(processor) or "")


def transformers_class(function: object) -> str | None:
    """The name of its class, where that is transformers' own."""
    kind = type(function)
    return kind.__name__ if kind.__module__.startswith("transformers.") else None


def switched_on(config: GenerationConfig) -> set[str]:
    """The options of `ORDER` that have a processor in transformers."""
    on = {name for name in ORDER if name != PREFIX}
    on = {name for name in on if getattr(config, name) not in (None, OPTIONS[name]["default"])}
    if config.min_new_tokens:
        on.add("min_length")  # transformers sets both
    return on
