"""`python -m decoding` is the program `decoding`."""

import sys

from decoding.cli.main import main

sys.exit(main())
