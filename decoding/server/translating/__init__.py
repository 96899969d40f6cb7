"""Translation, as clients of LibreTranslate and of DeepL ask for it."""
