"""All that is in results/: a page, docs/performance.md, README's picture, tables for the terminal.

python -m benchmarks.report                  # tables
python -m benchmarks.report --html FILE      # a page that needs nothing but itself
python -m benchmarks.report --performance    # writes docs/performance.md between its markers
python -m benchmarks.report --picture        # writes docs/translate-light.svg and -dark.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import performance
from benchmarks.report.recorded import Results

ROOT = Path(__file__).parent.parent.parent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", metavar="DIR")
    parser.add_argument("--html", type=Path, metavar="FILE", help="where to write the page")
    parser.add_argument("--performance", action="store_true", help="write docs/performance.md")
    parser.add_argument("--picture", action="store_true", help="write README's picture in docs/")
    options = parser.parse_args(arguments)
    results = Results.read(options.results)
    if options.html:
        from benchmarks.report.page import page  # matplotlib

        options.html.write_text(page(results).html(), encoding="utf-8")
    if options.performance:
        path = ROOT / "docs/performance.md"
        text = performance.with_sections(path.read_text("utf-8"), results)
        path.write_text(text, encoding="utf-8")
    if options.picture:
        from benchmarks.report import picture  # matplotlib

        for theme in picture.THEMES:
            path = ROOT / f"docs/translate-{theme}.svg"
            path.write_text(picture.picture(picture.read_groups(options.results), theme), "utf-8")
    if not options.html and not options.performance and not options.picture:
        print(performance.speed(results))


if __name__ == "__main__":
    main()
