"""Consumer groups: members share keys, or take turns; one coordinator says who holds what."""
