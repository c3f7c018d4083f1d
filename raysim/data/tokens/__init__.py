"""Ways to make rows of numbers from texts; a source's `tokens` key chooses one."""
