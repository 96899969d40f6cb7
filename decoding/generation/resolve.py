"""Decides which source of an option wins, and refuses options that do not go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.common.shapes import described
from decoding.common.warn import warn
from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.generation.option_names import suggestion
from decoding.generation.unsupported import ARGUMENTS, METADATA, TUNING, UNSUPPORTED

DEFAULTS = {name: option["default"] for name, option in OPTIONS.items()}


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
    config, warnings = settled(keywords, base, checkpoint)
    for warning in warnings:
        warn(warning)
    return config


def settled(
    keywords: Mapping[str, Any],
    base: GenerationConfig | Mapping[str, Any] | object | None,
    checkpoint: Mapping[str, Any],
) -> tuple[GenerationConfig, list[str]]:
    """As resolve(), which gives the warnings that are returned here."""
    given = as_mapping(base)
    check_names(keywords)
    check_names(given)
    caller = {**given, **keywords}
    values = dict(DEFAULTS)
    samples = caller["do_sample"] if "do_sample" in caller else checkpoint.get("do_sample")
    unread = {*TUNING} if samples else {*TUNING, *SAMPLING} - {"top_k"}  # contrastive search's, too
    for name, value in checkpoint.items():
        if value is None or name in caller or name in unread:
            continue
        values |= checked(name, value, " (from the checkpoint's generation_config.json)")
    for name, value in caller.items():
        values |= checked(name, value)
    config = GenerationConfig(**values)
    check_combinations(config)
    warnings = [*ignored(config, set_only(caller)).values()]
    if caller.get("do_sample") and "num_beams" not in caller and config.num_beams > 1:
        warnings.append(
            f"do_sample=True samples within the model's {config.num_beams} beams, which changes "
            "little: pass num_beams=1 (--num-beams 1) for plain sampling"
        )
    return config, warnings


def pinned(config: GenerationConfig) -> dict[str, Any]:
    """Options for calls with the options that `config` was made of, which then do not repeat its
    warning about beams."""
    return {"num_beams": config.num_beams} if config.do_sample else {}


def checked(name: str, value: Any, where: str = "") -> dict[str, Any]:
    """The option as a mapping; empty for a name that is none of ours, where it is off."""
    if name not in OPTIONS:
        check_supported(name, value, UNSUPPORTED, where)
        return {}
    option = OPTIONS[name]
    try:
        return {name: option["off"] if value is None else option["check"](name, value)}
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}{where}") from None


def check_supported(
    name: str, value: Any, missing: Mapping[str, tuple[Any, ...]], where: str
) -> None:
    off = missing.get(name)
    if off is None or value is None:
        return
    plain = isinstance(value, (bool, int, float, str, list, tuple))
    if not (plain and value in off):
        raise NotImplementedError(
            f"{name}={described(value)[:200]}{where} is not supported yet: "
            f"pass {name}=None to go without"
        )


def as_mapping(base: GenerationConfig | Mapping[str, Any] | object | None) -> dict[str, Any]:
    """The options that a generation_config argument sets."""
    if base is None:
        return {}
    if isinstance(base, GenerationConfig):
        return set_only(vars(base))
    if hasattr(base, "to_dict"):  # transformers' keeps a checkpoint's names that nobody knows
        known = {*OPTIONS, *UNSUPPORTED, *ARGUMENTS}
        base = {name: value for name, value in base.to_dict().items() if name in known}
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
        if name in ARGUMENTS:
            raise TypeError(f"{name} is an argument of generate() itself: pass it by its name")
        if name not in OPTIONS and name not in UNSUPPORTED:
            known = [*OPTIONS, *UNSUPPORTED, *ARGUMENTS]
            raise TypeError(f"generate() has no option {name!r}{suggestion(name, known)}")


def check_combinations(config: GenerationConfig) -> None:
    check_returned(config)
    if config.num_beam_groups > 1:
        check_groups(config)
    if config.force_words_ids:
        check_constrained(config)
    if config.diversity_rate > 0 and config.num_beams > 1 and config.do_sample:
        raise ValueError("diversity_rate and do_sample with beams do not go together: drop one")
    forced_first = config.forced_bos_token_id
    forced = forced_first if isinstance(forced_first, tuple) else (forced_first,)
    for name, tokens in (
        ("forced_bos_token_id", set(forced) - {None}),
        ("forced_eos_token_id", set(config.forced_eos_token_id)),
    ):
        if tokens and tokens <= set(config.suppress_tokens):
            raise ValueError(
                f"suppress_tokens bans {sorted(tokens)}, all that {name} allows: drop one of them"
            )


def check_returned(config: GenerationConfig) -> None:
    """That a search finds as many sequences as shall be returned."""
    beams, returned = config.num_beams, config.num_return_sequences
    if beams > 1 and returned > beams:
        raise ValueError(
            f"num_return_sequences={returned} must not be above num_beams={beams}: "
            "lower it, or search with more beams"
        )
    if beams > 1 and config.early_stopping is True and returned > round(beams * config.patience):
        raise ValueError(
            f"patience={config.patience} waits for {round(beams * config.patience)} finished rows, "
            f"and num_return_sequences={returned} wants more: raise it"
        )
    if beams == 1 and not config.do_sample and returned > 1:
        raise ValueError(
            f"num_return_sequences={returned}, but greedy search finds one sequence: "
            "pass num_beams or do_sample=True"
        )


def check_groups(config: GenerationConfig) -> None:
    """Group diverse beam search."""
    groups = f"num_beam_groups={config.num_beam_groups}"
    if config.num_beams % config.num_beam_groups:
        raise ValueError(f"{groups} must divide num_beams={config.num_beams}")
    if config.diversity_penalty == 0:
        raise ValueError(f"{groups} needs a diversity_penalty above 0, or all groups are the same")
    for name in ("do_sample", "diversity_rate", "coverage_penalty", "renormalize_logits"):
        if getattr(config, name):
            raise ValueError(f"{groups} does not go together with {name}: drop one of them")
    if config.length_normalization or config.patience != 1:
        raise ValueError(f"{groups} has neither patience nor length_normalization: drop them")


def check_constrained(config: GenerationConfig) -> None:
    """Lexically constrained beam search."""
    if config.num_beams == 1:
        raise ValueError("force_words_ids needs beam search: pass num_beams above 1")
    for name in ("do_sample", "diversity_rate", "coverage_penalty"):
        if getattr(config, name):
            raise ValueError(f"force_words_ids does not go together with {name}: drop one of them")
    if config.num_beam_groups > 1:
        raise ValueError("force_words_ids does not go together with num_beam_groups: drop one")
    words = {id for words in config.force_words_ids for word in words for id in word}
    if ends := words & set(config.eos_token_id):
        raise ValueError(
            f"force_words_ids holds the end token {min(ends)}, behind which no row goes on: "
            "take it out"
        )


SAMPLING = (*(name for name in OPTIONS if OPTIONS[name]["engine"] == "filter"), "seed")
BEAMS = (
    "length_penalty",
    "length_normalization",
    "early_stopping",
    "patience",
    "coverage_penalty",
    "diversity_rate",
)
RESULTS = ("output_scores", "output_sequences_scores", "output_logits", "output_attentions")


def ignored(config: GenerationConfig, caller: Mapping[str, Any]) -> dict[str, str]:
    """The options that the caller set and nothing reads, each with the reason."""
    sampling = tuple(name for name in SAMPLING if name != "top_k" or not config.contrastive)
    reasons = [
        (not config.do_sample, sampling, "do_sample=True"),
        (config.num_beams == 1, BEAMS, "num_beams above 1"),
        (config.num_beam_groups == 1, ("diversity_penalty",), "num_beam_groups above 1"),
        (config.early_stopping is not True, ("patience",), "early_stopping=True"),
        (not config.contrastive, ("penalty_alpha",), "greedy search and a top_k above 1"),
        (not config.return_dict_in_generate, RESULTS, "return_dict_in_generate=True"),
    ]
    found: dict[str, str] = {}
    for unread, names, needs in reasons:
        for name in names if unread else ():
            if name in caller and getattr(config, name) != DEFAULTS[name]:
                found.setdefault(name, f"{name}={caller[name]!r} has no effect without {needs}")
    for long, short in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if long in caller and getattr(config, short) is not None:
            found[long] = f"{short}={getattr(config, short)} wins over {long}={caller[long]}"
    return found
