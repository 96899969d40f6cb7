"""Records the answers of this tree, or compares them with the record.

python -m tests.golden --record [--device cuda]
python -m tests.golden --check [--device cuda]
"""

from __future__ import annotations

import argparse
import sys

from tests.golden import record


def main() -> int:
    """0: no answer differs; 1: some do; 2: there is no record for this machine."""
    parser = argparse.ArgumentParser(prog="tests.golden", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="write the files of this machine")
    what.add_argument("--check", action="store_true", help="print what differs from the files")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    if arguments.record:
        record.record(arguments.device)
        return 0
    places = record.recorded_places(arguments.device)
    if not places:
        print(f"there is no record for {record.place_of(arguments.device)}")
        return 2
    found = [line for place in places for line in record.differences(place)]
    print("\n".join([*found, f"{len(found)} answers differ from those of {', '.join(places)}"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
