"""Content-based subscriptions over any topic-based service, ordered or not (paper 000, section 3.3)."""
