"""The overlay in processes: a broker as a role of a node, and the session of a client of one broker."""
