"""Ways to divide one labelled set among clients; every example goes to exactly one client.

Each is a pure function returning one sorted int64 index array per client, beside the record that configures it.
`partition.divide` chooses among them.
"""
