"""Timely and reliable: random linear coding over any broker, repaired by gossip (thesis chapter 5)."""
