"""A broker of our own inside a node, for deployments without one."""
