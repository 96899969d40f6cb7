"""Text in, text out: tokenizers, translation, alignment, sentence embeddings."""
