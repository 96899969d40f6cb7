"""All that is in results/: a page, README's section on speed and picture, tables for the terminal.

python -m benchmarks.report                  # tables
python -m benchmarks.report --html FILE      # a page that needs nothing but itself
python -m benchmarks.report --readme         # rewrites README's section between its markers
python -m benchmarks.report --picture        # rewrites docs/translate-light.svg and -dark.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import readme
from benchmarks.report.recorded import Results

ROOT = Path(__file__).parent.parent.parent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", metavar="DIR")
    parser.add_argument("--html", type=Path, metavar="FILE", help="where to write the page")
    parser.add_argument("--readme", action="store_true", help="rewrite README's section")
    parser.add_argument("--picture", action="store_true", help="rewrite README's picture in docs/")
    options = parser.parse_args(arguments)
    results = Results.read(options.results)
    if options.html:
        from benchmarks.report.page import page  # matplotlib

        options.html.write_text(page(results).html(), encoding="utf-8")
    if options.readme:
        path = ROOT / "README.md"
        path.write_text(readme.with_sections(path.read_text("utf-8"), results), encoding="utf-8")
    if options.picture:
        from benchmarks.report import picture  # matplotlib

        for theme in picture.THEMES:
            path = ROOT / f"docs/translate-{theme}.svg"
            path.write_text(picture.picture(picture.read_groups(options.results), theme), "utf-8")
    if not options.html and not options.readme and not options.picture:
        print(readme.speed(results))


if __name__ == "__main__":
    main()
