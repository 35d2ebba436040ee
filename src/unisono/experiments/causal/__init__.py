"""Figures of causal order with deadlines: delivery, groups and mobility."""
