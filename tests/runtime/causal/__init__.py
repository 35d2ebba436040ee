"""A causal mesh as real nodes and sessions on sockets."""
