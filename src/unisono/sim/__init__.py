"""Driver 1: a deterministic world in which the machines run, fail and are judged. Enter by `unisono.sim.scenario`."""
