"""Measures models with lm-eval-harness: `pip install .[eval]`.

    import lm_eval
    from decoding.evaluation import EvaluatedModel

    lm_eval.simple_evaluate(model=EvaluatedModel("path/to/model"), tasks=["hellaswag"])

Answers are those of the harness's own adapter for transformers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from decoding.loading import load
from decoding.model import Model

Ids = list[int]
Scored = tuple[float, bool]  # the log-probability, and whether greedy search writes the same
Request = tuple[Any, Ids, Ids]  # what the harness's cache knows it by, context, continuation
AUTO = 64  # texts in one call, which the model divides by their lengths


@register_model("decoding")
class EvaluatedModel(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A decoder-only model as the harness asks it.

    pretrained: what load() takes, or a model that it has made; options: those of load().
    batch_size: texts in one call of the model, or "auto". max_length: tokens of the longest text;
    None: the model's positions. max_gen_toks: new tokens where a task names no number. Raises
    ValueError for a model with an encoder, and what load() raises.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        batch_size: int | str = "auto",
        max_length: int | None = None,
        max_gen_toks: int = 256,
        **options: Any,
    ) -> None:
        super().__init__()
        self.model = pretrained if isinstance(pretrained, Model) else load(pretrained, **options)
        if self.model.spec.encoder is not None:
            raise ValueError(
                "only models with a decoder alone can be measured: this one translates"
            )
        self.tokenizer = self.model.tokenizer
        self.batch_size = AUTO if batch_size == "auto" else int(batch_size)
        self.max_gen_toks = max_gen_toks
        self.max_length = max_length or self.model.spec.decoder.positions

    @property
    def eot_token_id(self) -> int:
        return self._required(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    def _required(self, number: int | None) -> int:
        if number is None:
            raise ValueError("the tokenizer has no eos_token: set one, model.tokenizer.eos_token")
        return number

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> Ids:
        """The ids of a text; one that begins with BOS gets no other."""
        begun = has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
        special = not begun if add_special_tokens is None else add_special_tokens
        ids: Ids = self.tokenizer.encode(string, add_special_tokens=special)
        return ids

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **_: Any
    ) -> list[Scored]:
        order = sorted(range(len(requests)), key=lambda i: -sum(map(len, requests[i][1:])))
        found: dict[int, Scored] = {}
        with tqdm(total=len(requests), disable=disable_tqdm, desc="loglikelihood") as bar:
            for chosen in batches(order, self.batch_size):
                pairs = [self._fitting(*requests[i][1:]) for i in chosen]
                for i, scored in zip(chosen, self._scored(pairs), strict=True):
                    found[i] = scored
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], scored)
                bar.update(len(chosen))
        return [found[i] for i in range(len(requests))]

    def _fitting(self, context: Ids, continuation: Ids) -> tuple[Ids, Ids]:
        """Without the beginning that is too long; the last token is never read."""
        if len(continuation) > self.max_length:
            raise ValueError(
                f"a continuation has {len(continuation)} tokens, and the model has "
                f"{self.max_length} positions"
            )
        kept = self.max_length + 1 - len(continuation)
        return context[-kept:], continuation

    def _scored(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[Scored]:
        rows = [context + continuation for context, continuation in pairs]
        labels = [[-100] * len(context) + continuation for context, continuation in pairs]
        scores = self.model.score(rows, labels)
        greedy = [
            likely[mask].tolist() == continuation
            for likely, mask, (_, continuation) in zip(
                scores.argmax, scores.mask, pairs, strict=True
            )
        ]
        return list(zip(scores.sums.tolist(), greedy, strict=True))

    def _generated(self, contexts: list[Ids], options: dict[str, Any]) -> list[Ids]:
        """The new tokens behind each context."""
        width = max(map(len, contexts))
        ids = [[0] * (width - len(context)) + context for context in contexts]
        mask = [[0] * (width - len(context)) + [1] * len(context) for context in contexts]
        output = self.model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            **options | {"return_dict_in_generate": True},
        )
        new = output.sequences[:, width:].tolist()
        return [row[:length] for row, length in zip(new, output.lengths.tolist(), strict=True)]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of each text; a long one is read in parts that do not overlap."""
        windows: list[Request] = []
        counts = []
        for request in requests:
            parts = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [make_disjoint_window(part) for part in parts]
            windows += [(None, *pair) for pair in pairs]
            counts.append(len(pairs))
        scored = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        found = []
        for request, count in zip(requests, counts, strict=True):
            found.append(sum(next(scored)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes behind each context, as far as the first stop sequence."""
        groups: dict[str, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            groups[repr(request.args[1])].append(i)
        found: dict[int, str] = {}
        with tqdm(total=len(requests), disable=disable_tqdm, desc="generate_until") as bar:
            for group in groups.values():
                for chosen in batches(group, self.batch_size):
                    contexts = [requests[i].args[0] for i in chosen]
                    texts = self._until(contexts, requests[chosen[0]].args[1])
                    for i, text in zip(chosen, texts, strict=True):
                        found[i] = text
                        self.cache_hook.add_partial("generate_until", requests[i].args, text)
                    bar.update(len(chosen))
        return [found[i] for i in range(len(requests))]

    def _until(self, contexts: Sequence[str], given: dict[str, Any]) -> list[str]:
        options = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        eos = self.tokenizer.decode(self.eot_token_id)
        until = [
            stop for stop in handle_stop_sequences(options.pop("until", None), eos=eos) if stop
        ]
        most = options.pop("max_gen_toks")
        if options.get("temperature") == 0.0:
            options |= {"temperature": None, "do_sample": False}
        if self.max_length <= most:
            raise ValueError(
                f"{most} new tokens leave no room for a context in {self.max_length} positions: "
                "pass max_gen_toks"
            )
        ids = [self.tok_encode(context)[most - self.max_length :] for context in contexts]
        # A stop sequence that begins in the context is none: such rows go on, and are cut below.
        inside = [begins_inside(context, until) for context in contexts]
        texts: dict[int, str] = {}
        for stops, rows in (
            (until, [i for i, begins in enumerate(inside) if not begins]),
            ([], [i for i, begins in enumerate(inside) if begins]),
        ):
            if rows:
                asked = {"max_new_tokens": most, "stop_strings": stops or None, **options}
                written = self._generated([ids[i] for i in rows], asked)
                for i, new in zip(rows, written, strict=True):
                    text = self.tokenizer.decode(new, skip_special_tokens=True)
                    texts[i] = postprocess_generated_text(text, until, None)
        return [texts[i] for i in range(len(contexts))]

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.directory).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        own = self.tokenizer.chat_template
        if isinstance(chat_template, str):
            return own[chat_template] if isinstance(own, dict) else chat_template
        return own if chat_template and isinstance(own, str) else ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A chat as the model reads it."""
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text


def batches(items: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def begins_inside(context: str, stops: Iterable[str]) -> bool:
    """Whether a text ends with what a stop sequence begins with."""
    return any(context.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))
