"""Other ways to order, for comparison only: machines that experiments run in the same world. None is offered to users.

They assume what the experiments give them: subscriptions that stay, a broker that loses nothing, nodes that never die.
"""
