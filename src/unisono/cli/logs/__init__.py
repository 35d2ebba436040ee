"""Commands that read logs: journals, deliveries of any system, JSON lines."""
