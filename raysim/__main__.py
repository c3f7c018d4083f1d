"""`python -m raysim` is `raysim`: for nodes that are sent its code, and have no command installed."""

from raysim.cli import main

main()
