"""Contains the data sources: one file per source, with its section and the code that reads or generates it."""
