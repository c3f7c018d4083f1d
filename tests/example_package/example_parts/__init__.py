"""Parts of an installed package: a module each, with a section, a record, and the Part of an entry point."""
