"""Unconscious eventual consistency: a coalition of sequencers, gossip, and rollback; made conscious by cuts."""
