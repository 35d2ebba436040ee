"""NATS and JetStream."""
