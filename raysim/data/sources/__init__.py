"""Where data comes from: one file per source, its section beside what reads or generates it."""
