"""Local steps by autograd with nodes that are computed in C."""
