"""The archive role: hears everything, keeps it, hands it out; consumer groups live beside it."""
