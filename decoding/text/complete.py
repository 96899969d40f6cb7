"""Texts that a decoder-only model goes on with: completions and answers in a chat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.engine.request import IGNORED
from decoding.generation.call import Started
from decoding.generation.config import GenerationConfig
from decoding.generation.request import drawn_seed
from decoding.generation.resolve import as_mapping, ignored, pinned, resolve
from decoding.models.spec import ModelSpec
from decoding.text.arguments import FUNCTIONS, WATCHES, refuse, resolve_n_best
from decoding.text.hypotheses import Hypothesis
from decoding.text.rows import Rows
from decoding.text.text_model import TextModel
from decoding.text.texts import as_texts, checked
from decoding.text.tokenizers import Tokenizer

DEFAULT_NEW = 256  # tokens, where neither the caller nor the checkpoint sets a length


# What else Tokenizer.apply_chat_template takes, and what this module decides.
NO_VARIABLES = {
    "conversation",
    "add_generation_prompt",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
}


@dataclass(frozen=True)
class Prompt:
    """What a model goes on with. name: how an error calls it.

    shown: ids whose text comes before that of the answer, which depends on it: a space between two
    words is the second's. options: its own, of those that may differ between rows of a call.
    """

    name: str
    ids: list[int]
    shown: Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mask(self) -> list[int]:
        """Nothing is padding: a text may have the pad token, too."""
        return [1] * len(self.ids)


def complete(model: TextModel, texts: Any, *, n_best: int | None = None, **options: Any) -> Any:
    """See Model.complete."""
    found = answers(model, read_texts(model, texts), n_best, options)
    return found[0] if isinstance(texts, str) else found


def chat(
    model: TextModel,
    messages: Any,
    template: Mapping[str, Any],
    *,
    n_best: int | None = None,
    **options: Any,
) -> Any:
    """See Model.chat. template: options of apply_chat_template."""
    prompts, alone = read_chats(model, messages, template)
    found = answers(model, prompts, n_best, options)
    return found[0] if alone else found


def read_texts(model: TextModel, texts: Any, names: Sequence[str] | None = None) -> list[Prompt]:
    """The prompts of texts. names: how errors call them. Raises ValueError for a model that does
    not complete texts."""
    check_decoder_only(model.spec, "complete")
    if names is None:
        given, alone = as_texts("texts", texts)
    else:
        given, alone = list(map(checked, names, texts)), False
    tokenizer, prompts = model.tokenizer, []
    found = [tokenizer.encode(texts)] if alone else tokenizer.encode_batch(given).lists()
    for i, ids in enumerate(found):
        name = names[i] if names else "the text" if alone else f"texts[{i}]"
        if not ids:  # the model's beginning of a text is something to go on with
            bos = model.generation_config.get("bos_token_id")
            if bos is None:
                raise ValueError(
                    f"{name} has no tokens, and the model no bos_token_id to begin with"
                )
            ids = [bos]
        prompts.append(Prompt(name, ids, ids))
    return prompts


def read_chats(
    model: TextModel, messages: Any, template: Mapping[str, Any]
) -> tuple[list[Prompt], bool]:
    """The prompts of one chat or several, and whether it is one."""
    check_decoder_only(model.spec, "chat")
    if wrong := template.keys() & NO_VARIABLES:
        raise ValueError(f"chat_template_kwargs must not set {min(wrong)}, which is no variable")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    several = isinstance(messages, (list, tuple)) and bool(messages)
    several = several and isinstance(messages[0], (list, tuple))
    goes_on = bool(template["continue_final_message"])
    ids = model.tokenizer.apply_chat_template(
        messages, add_generation_prompt=not goes_on, return_dict=False, **template
    )
    prompts = []
    for i, row in enumerate(ids if several else [ids]):
        name = f"chat {i}" if several else "the chat"
        prompts.append(Prompt(name, row, row if goes_on else ()))
    return prompts, not several


def check_decoder_only(spec: ModelSpec, method: str) -> None:
    if spec.encoder is not None:
        raise ValueError(
            f"{method}() goes on with texts, and this model rewrites them, as it has an encoder: "
            "use translate()"
        )


def answers(
    model: TextModel,
    prompts: Sequence[Prompt],
    n_best: int | None,
    options: Mapping[str, Any],
) -> list[Any]:
    """What the model writes behind each prompt: a str, with num_return_sequences above 1 a list of
    them, with n_best a list of Hypothesis, best first."""
    found = hypotheses(model, prompts, n_best, options)
    if n_best is not None:
        return found
    texts = [[one.text for one in own] for own in found]
    return texts if any(len(own) > 1 for own in texts) else [own[0] for own in texts]


def hypotheses(
    model: TextModel,
    prompts: Sequence[Prompt],
    n_best: int | None,
    options: Mapping[str, Any],
) -> list[list[Hypothesis]]:
    """Those of each prompt: n_best of them, best first, else num_return_sequences, whose scores are
    NaN but in beam search."""
    found = Answers(model, prompts, n_best, options)
    return found.hypotheses(found.output())


class Answers:
    """The hypotheses of prompts, begun. many: others follow before the output is asked for."""

    def __init__(
        self,
        model: TextModel,
        prompts: Sequence[Prompt],
        n_best: int | None,
        options: Mapping[str, Any],
        many: bool = False,
    ) -> None:
        self.model, self.prompts, self.n_best = model, prompts, n_best
        self._started: Started | None = None
        self.rows = 0
        if not prompts:
            return
        options, config = resolved(model, options, n_best)
        self._count, self._competes = config.num_return_sequences, config.num_beams > 1
        self._started = model.start(
            [prompt.ids for prompt in prompts],
            attention_mask=[prompt.mask for prompt in prompts],
            return_dict_in_generate=True,
            output_sequences_scores=self._competes,
            many=many,
            **options | own_options(config, prompts, new_tokens(model.spec, config, prompts)),
        )
        self.rows = len(prompts) * max(config.num_beams, self._count)

    def output(self) -> Any:
        """What generate() returns; None for no prompts."""
        return None if self._started is None else self._started.result()

    def cancel(self) -> None:
        if self._started is not None:
            self._started.cancel()

    def hypotheses(self, output: Any) -> list[list[Hypothesis]]:
        """Those of each prompt, of what output() gave."""
        if output is None:
            return []
        width = max(len(prompt.ids) for prompt in self.prompts)
        sequences, lengths = output.sequences[:, width:], output.lengths
        new = Rows.where(sequences, np.arange(sequences.shape[1]) < lengths[:, None])
        texts = self._texts(new)
        scores = [math.nan] * len(new)
        if self._competes:
            scores = output.sequences_scores.tolist()
        elif self.n_best is not None:
            behind = [prompt for prompt in self.prompts for _ in range(self._count)]
            scores = sums(self.model, behind, new.lists())
        found = [
            Hypothesis(text, score, tokens=tokens)
            for text, score, tokens in zip(texts, scores, lengths.tolist(), strict=True)
        ]
        groups = [found[i : i + self._count] for i in range(0, len(found), self._count)]
        if self.n_best is None:
            return groups
        return [sorted(group, key=lambda one: one.score, reverse=True) for group in groups]

    def _texts(self, new: Rows) -> list[str]:
        """`text_behind` of each row, all at once."""
        tokenizer, count = self.model.tokenizer, self._count
        shown = Rows.of([prompt.shown for prompt in self.prompts])
        before = tokenizer.decode_batch(shown, skip_special_tokens=True)
        repeated = shown.select(np.repeat(np.arange(len(shown)), count))
        whole = tokenizer.decode_batch(repeated.followed_by(new), skip_special_tokens=True)
        alone = tokenizer.decode_batch(new, skip_special_tokens=True)
        return [
            text[len(own) :] if length and text.startswith(own) else rest
            for text, rest, own, length in zip(
                whole,
                alone,
                (text for text in before for _ in range(count)),
                repeated.lengths.tolist(),
                strict=True,
            )
        ]


def resolved(
    model: TextModel, options: Mapping[str, Any], n_best: int | None = None
) -> tuple[dict[str, Any], GenerationConfig]:
    """The options for generate() without lengths, which `new_tokens` makes of the configuration
    that is returned, too."""
    refuse("text generation", options, "shortlist")
    if n_best is not None and n_best < 1:
        raise ValueError(f"n_best must be at least 1, got {n_best}")
    if n_best is not None and "num_return_sequences" in options:
        raise TypeError("n_best sets num_return_sequences: pass one of them")
    given = {**as_mapping(options.get("generation_config")), **options}
    given.pop("generation_config", None)
    if n_best is not None:
        given["num_return_sequences"] = n_best
    plain = {name: value for name, value in given.items() if name not in (*FUNCTIONS, *WATCHES)}
    if n_best is None:
        config = resolve(plain, None, model.generation_config)
    else:
        config = resolve_n_best(plain, model.generation_config)
    for name in ignored(config, plain):  # warned of here, and not again by generate()
        del given[name]
    # A length of the checkpoint's is off, too, as each row's own number takes its place.
    return given | pinned(config) | {"max_length": None}, config


def own_options(
    config: GenerationConfig, prompts: Sequence[Prompt], new: int | list[int]
) -> dict[str, Any]:
    """max_new_tokens, and the other options that prompts have of their own, of each row. new: where
    a prompt has none."""
    found: dict[str, Any] = {"max_new_tokens": new}
    for name in {name for prompt in prompts for name in prompt.options}:
        usual = found.get(name, getattr(config, name))
        if name == "seed" and usual is None:
            usual = [drawn_seed() for _ in prompts]
        each = usual if isinstance(usual, (list, tuple)) else [usual] * len(prompts)
        rows = zip(prompts, each, strict=True)
        found[name] = [prompt.options.get(name, value) for prompt, value in rows]
    return found


def new_tokens(
    spec: ModelSpec, config: GenerationConfig, prompts: Sequence[Prompt]
) -> int | list[int]:
    """max_new_tokens of each prompt. Raises ValueError for a prompt that leaves no room.

    max_length counts each prompt's own tokens, and not, as in generate(), the longest's.
    """
    positions = spec.decoder.positions - config.contrastive  # which reads the last token, too
    for prompt in prompts:
        tokens = len(prompt.ids)
        if tokens > positions:
            raise ValueError(
                f"{prompt.name} has {tokens} tokens, and the model has {positions} positions: "
                "shorten it"
            )
        own = prompt.options.get("max_new_tokens")
        if own is not None and tokens + own - 1 > positions:  # the last is never read
            raise ValueError(
                f"{prompt.name}: max_new_tokens={own} behind {tokens} tokens need "
                f"{tokens + own - 1} positions, the model has {positions}"
            )
        if config.max_new_tokens is None and tokens >= (config.max_length or positions + 1):
            raise ValueError(
                f"{prompt.name} has {tokens} tokens, and max_length={config.max_length} counts "
                "them: raise it, or pass max_new_tokens"
            )
    if config.max_new_tokens is not None:
        asked = config.max_new_tokens
        return asked if isinstance(asked, int) else list(asked)
    if config.max_length is not None:
        return [config.max_length - len(prompt.ids) for prompt in prompts]
    return [min(DEFAULT_NEW, positions - len(prompt.ids) + 1) for prompt in prompts]


def text_behind(
    tokenizer: Tokenizer, shown: Sequence[int], new: Sequence[int], before: str | None = None
) -> str:
    """The text that ids add to that of the ids before them. before: that text, if it is known."""
    if shown:
        if before is None:
            before = tokenizer.decode_row(list(shown))
        whole = tokenizer.decode_row([*shown, *new])
        if whole.startswith(before):
            return whole[len(before) :]
    return tokenizer.decode_row(list(new))


def sums(model: TextModel, prompts: Sequence[Prompt], new: Sequence[Sequence[int]]) -> list[float]:
    """Of each row the sum of the log-probabilities that the model gives to its new tokens.

    It reads the tokens again: that costs less than all its logits would in memory.
    """
    rows = [[*prompt.ids, *ids] for prompt, ids in zip(prompts, new, strict=True)]
    labels = [
        [IGNORED] * len(prompt.ids) + list(ids) for prompt, ids in zip(prompts, new, strict=True)
    ]
    found: list[float] = model.score_arrays(rows, labels).sums.tolist()
    return found
