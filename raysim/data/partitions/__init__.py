"""Divides one labelled set among clients; every example goes to exactly one client.

Each partition is a pure function that returns one sorted int64 index array per client; its section is beside it.
`partition.divide` chooses the function.
"""
