"""`python -m raysim` is `raysim`: for nodes that are sent its code, and have no command installed."""

import sys
from pathlib import Path

from raysim.cli import main

# Python adds the folder where it is called, and the command `raysim` does not: a file tuning.py there would hide the
# package. Where raysim itself lies in that folder, it stays.
if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parent.parent:
    del sys.path[0]

main()
