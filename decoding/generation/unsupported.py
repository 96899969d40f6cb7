"""The options of Hugging Face transformers 5.23 that generate() does not have, as data.

Each name with the values that mean "off" beside None: with any other, generate() refuses.
"""

from __future__ import annotations

from typing import Any

# Where transformers keeps keys and values, which changes no token; Gemma 2 is published with one.
CACHES = (
    "dynamic",
    "static",
    "sliding_window",
    "hybrid",
    "hybrid_chunked",
    "offloaded",
    "offloaded_static",
    "offloaded_hybrid",
    "offloaded_hybrid_chunked",
)

# What tunes speculation, and changes nothing without: a checkpoint may have any value.
TUNING = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "target_lookbehind",
    "max_matching_ngram_size",
)

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # processors
    "watermarking_config": (),
    "token_healing": (False,),
    # search
    "constraints": (),  # force_words_ids says the same
    "dola_layers": (),
    "custom_generate": (),
    "trust_remote_code": (False,),
    # results
    "output_hidden_states": (False,),
    # speculation
    "assistant_model": (),
    "is_assistant": (False,),
    "num_assistant_tokens": (20,),
    "num_assistant_tokens_schedule": ("constant",),
    "assistant_confidence_threshold": (0.4,),
    "assistant_lookbehind": (10,),
    "target_lookbehind": (10,),
    "prompt_lookup_num_tokens": (),
    "max_matching_ngram_size": (),
    "assistant_early_exit": (),
    "assistant_ensemble_weight": (),
    "assistant_tokenizer": (),
    "speculation_type": (),
    "use_mtp": (False,),
    # caches and compilation
    "cache_implementation": CACHES,
    "cache_config": (),
    "max_cache_len": (),
    "past_key_values": (),
    "low_memory": (False,),
    "prefill_chunk_size": (),
    "compile_config": (),
    "disable_compile": (False, True),
    "continuous_batching_config": (),
    "synced_gpus": (False,),
    # model inputs
    "inputs_embeds": (),
    "encoder_outputs": (),
    "decoder_attention_mask": (),
    "position_ids": (),
    "token_type_ids": (),
    "negative_prompt_ids": (),
    "negative_prompt_attention_mask": (),
}


# Named arguments of generate(): offered when a name is misspelt.
ARGUMENTS = (
    "input_ids",
    "inputs",
    "attention_mask",
    "decoder_input_ids",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "streamer",
    "tokenizer",
    "shortlist",
    "cancel",
    "progress",
)

# Fields of a transformers GenerationConfig that are no options.
METADATA = (
    "transformers_version",
    "_from_model_config",
    "_commit_hash",
    "_original_object_hash",
)
