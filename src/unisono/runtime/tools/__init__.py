"""Tools for development: a delaying proxy, an emulated deployment, a nats-server of one's own."""
