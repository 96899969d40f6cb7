"""The options of generate(): their names, defaults and ranges, and which source of them wins."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from decoding.unsupported import ARGUMENTS, METADATA, UNSUPPORTED

Check = Callable[[str, Any], Any]  # (name, value) -> the value in its own type, or an error


def whole(least: int | None = None, most: int | None = None) -> Check:
    """A whole number, from `least` to `most`."""

    def check(name: str, value: Any) -> int:
        value = scalar(name, value, "a whole number")
        if not (math.isfinite(value) and value == int(value)):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        if (least is not None and value < least) or (most is not None and value > most):
            top = "" if most is None else f" and at most {most}"
            raise ValueError(f"{name} must be at least {least}{top}, got {value!r}")
        return int(value)

    return check


def number(above: float = -math.inf, most: float = math.inf) -> Check:
    """A finite number greater than `above`, at most `most`."""

    def check(name: str, value: Any) -> float:
        value = scalar(name, value, "a number")
        if not (math.isfinite(value) and above < value <= most):
            low = "" if above == -math.inf else f" greater than {above:g}"
            high = "" if most == math.inf else f"{' and' if low else ''} at most {most:g}"
            raise ValueError(f"{name} must be a finite number{low}{high}, got {value!r}")
        return float(value)

    return check


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def stopping(name: str, value: Any) -> bool | str:
    if not isinstance(value, bool) and value != "never":
        raise ValueError(f'{name} must be True, False or "never", got {value!r}')
    return value if isinstance(value, bool) else "never"


def ids(name: str, value: Any) -> tuple[int, ...]:
    """One id or several; always a tuple."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(whole()(name, item) for item in items)


def words(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name} must be a list of lists of ids, not empty; got {value!r}")
    for word in value:
        if not isinstance(word, (list, tuple)) or not word:
            raise ValueError(f"{name} must hold lists of ids, none of them empty; got {word!r}")
        if len(word) > 1:
            raise NotImplementedError(
                f"{name} with words of several tokens is not supported yet: {list(word)}"
            )
    return tuple(ids(name, word) for word in value)


def scalar(name: str, value: Any, kind: str) -> Any:
    if hasattr(value, "tolist"):  # numpy and torch numbers
        value = value.tolist()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {kind}, got {value!r}")
    return value


def option(check: Check, default: Any = None, off: Any = ...) -> Any:
    """A field of GenerationConfig. None in it means: not set.

    default: where nobody sets it; off: what the keyword None stands for, unless it is the default.
    """
    return field(
        default=None,
        metadata={"check": check, "default": default, "off": default if off is ... else off},
    )


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """What generate() shall do, with the names and the meaning of Hugging Face transformers.

    A value of None means "not set": the checkpoint's own generation_config.json decides, then the
    default written here. `resolve` returns one in which everything is set. Where an id may be given
    as a number, a list of them is meant: eos_token_id=2 is eos_token_id=[2].
    """

    # lengths; with P the width of the prompt, padding included (1 for an encoder-decoder)
    max_length: int | None = option(whole(1))  # P + tokens generated; nobody set one: P + 20
    max_new_tokens: int | None = option(whole(1))  # wins over max_length
    min_length: int = option(whole(0), 0)  # P + tokens before an EOS may come
    min_new_tokens: int | None = option(whole(0))  # wins over min_length

    # search
    num_beams: int = option(whole(1), 1)
    do_sample: bool = option(flag, False)
    num_return_sequences: int = option(whole(1), 1)
    length_penalty: float = option(number(), 1.0)  # a in S / G^a; beams only
    early_stopping: bool | str = option(stopping, False)  # or "never"; beams only
    temperature: float = option(number(above=0), 1.0)  # this and what follows: sampling only
    top_k: int = option(whole(0), 50, off=0)
    top_p: float = option(number(above=0, most=1), 1.0)
    seed: int | None = option(whole(0, 2**64 - 1))  # ours; None: drawn from torch's generator

    # tokens
    eos_token_id: Sequence[int] = option(ids, ())  # an id below 0 never comes
    pad_token_id: int | None = option(whole())  # None: the first EOS stands in
    bos_token_id: int | None = option(whole())
    decoder_start_token_id: Sequence[int] = option(ids, ())  # one, or one per row; none: bos
    forced_bos_token_id: int | None = option(whole())  # first token where P is 1
    forced_eos_token_id: Sequence[int] = option(ids, ())  # token at max_length
    bad_words_ids: Sequence[Sequence[int]] = option(words, ())  # of one token each
    renormalize_logits: bool = option(flag, False)  # after bans; published Marian files have it

    # results
    return_dict_in_generate: bool = option(flag, False)
    output_scores: bool = option(flag, False)  # of every step, and of sequences with beams
    output_sequences_scores: bool = option(flag, False)  # ours: the latter alone, which is cheap
    use_cache: bool = option(flag, True)  # accepted; the engine always has its cache


OPTIONS = {f.name: f.metadata for f in fields(GenerationConfig)}


def resolve(
    keywords: Mapping[str, Any],
    base: GenerationConfig | Mapping[str, Any] | object | None,
    checkpoint: Mapping[str, Any],
) -> GenerationConfig:
    """Every option's value: the keyword's, else `base`'s, the checkpoint's, or the default.

    keywords: of generate(); None switches an option off. base: the `generation_config` argument,
    ours, a dict or a transformers GenerationConfig. checkpoint: its generation_config.json.

    Raises TypeError for a name that nobody knows and for values of a wrong type, ValueError for
    values out of range or contradictory, NotImplementedError for options that are not there yet.
    Warns about options that have no effect.
    """
    given = as_mapping(base)
    check_names(keywords)
    check_names(given)
    caller = {**given, **keywords}
    values = {name: meta["default"] for name, meta in OPTIONS.items()}
    for name, value in checkpoint.items():
        if value is None or name in caller:
            continue
        if name in OPTIONS:
            values[name] = OPTIONS[name]["check"](name, value)
        else:
            check_supported(name, value, " (from the checkpoint's generation_config.json)")
    for name, value in caller.items():
        if name not in OPTIONS:
            check_supported(name, value)
        elif value is None:
            values[name] = OPTIONS[name]["off"]
        else:
            values[name] = OPTIONS[name]["check"](name, value)
    config = GenerationConfig(**values)
    check_combinations(config)
    warn_ignored(config, set_only(caller))
    return config


def as_mapping(base: GenerationConfig | Mapping[str, Any] | object | None) -> dict[str, Any]:
    """What a generation_config argument sets."""
    if base is None:
        return {}
    if isinstance(base, GenerationConfig):
        return set_only(vars(base))
    if hasattr(base, "to_dict"):
        base = base.to_dict()
    if isinstance(base, Mapping):
        return {name: v for name, v in set_only(base).items() if name not in METADATA}
    raise TypeError(
        "generation_config must be a decoding.GenerationConfig, a dict or a transformers "
        f"GenerationConfig, got {type(base).__name__}"
    )


def set_only(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def check_names(values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in OPTIONS and name not in UNSUPPORTED:
            known = [*OPTIONS, *UNSUPPORTED, *ARGUMENTS]
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise TypeError(f"generate() has no option {name!r}; did you mean {near!r}?")


def check_supported(name: str, value: Any, where: str = "") -> None:
    off = UNSUPPORTED.get(name)
    if off is None or value is None:
        return
    plain = isinstance(value, (bool, int, float, str, list))
    if not (plain and value in off):
        raise NotImplementedError(
            f"{name}={value!r}{where} is not supported yet: pass {name}=None to go without"
        )


def check_combinations(config: GenerationConfig) -> None:
    beams, returned = config.num_beams, config.num_return_sequences
    if beams > 1 and config.do_sample:
        raise NotImplementedError(
            f"num_beams={beams} with do_sample=True is not supported yet: "
            "pass do_sample=False, or num_beams=1"
        )
    if beams > 1 and returned > beams:
        raise ValueError(
            f"num_return_sequences={returned} must not be above num_beams={beams}: "
            "lower it, or search with more beams"
        )
    if beams == 1 and not config.do_sample and returned > 1:
        raise ValueError(
            f"num_return_sequences={returned}, but greedy search finds one sequence: "
            "pass num_beams or do_sample=True"
        )


def warn_ignored(config: GenerationConfig, caller: Mapping[str, Any]) -> None:
    """Warns about what the caller set and nothing reads."""
    sampling = ("temperature", "top_k", "top_p", "seed")
    scores = ("output_scores", "output_sequences_scores")
    reasons = [
        (not config.do_sample, sampling, "do_sample=True"),
        (config.num_beams == 1, ("length_penalty", "early_stopping"), "num_beams above 1"),
        (not config.return_dict_in_generate, scores, "return_dict_in_generate=True"),
    ]
    for ignored, names, needs in reasons:
        for name in names:
            if ignored and name in caller and getattr(config, name) != OPTIONS[name]["default"]:
                warnings.warn(
                    f"{name}={caller[name]!r} has no effect without {needs}",
                    UserWarning,
                    stacklevel=5,
                )
    for long, short in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if long in caller and getattr(config, short) is not None:
            warnings.warn(
                f"{short}={getattr(config, short)} wins over {long}={caller[long]}",
                UserWarning,
                stacklevel=5,
            )
