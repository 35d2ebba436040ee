"""Words: what every other room speaks of. Nothing here knows a protocol, a driver or a file."""
