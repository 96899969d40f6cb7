"""What serves requests, behind one interface (base.py), and the clients that send them."""

from __future__ import annotations

from benchmarks.online.base import Provider
from benchmarks.online.batcher import Batcher
from benchmarks.online.ctranslate2 import CTranslate2
from benchmarks.online.huggingface import HuggingFace
from benchmarks.online.libretranslate import LibreTranslateHttp
from benchmarks.online.ours import Ours, OursStatic
from benchmarks.online.servers import CTranslate2Http, HuggingFaceHttp, OursHttp

__all__ = ["PROVIDERS", "Batcher", "Provider"]

PROVIDERS: dict[str, type[Provider]] = {
    provider.name: provider
    for provider in (
        HuggingFace,
        HuggingFaceHttp,
        CTranslate2,
        CTranslate2Http,
        LibreTranslateHttp,
        OursStatic,
        OursHttp,
        Ours,
    )
}
