"""Plans: from who subscribes to what, and how much is published where, to groups, homes and the shape of the tree."""
