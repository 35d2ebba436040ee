"""Publishing: what is under way per topic, its outcomes, publishers with a name."""
