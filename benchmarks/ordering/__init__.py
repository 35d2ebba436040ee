"""What `order.py` measures: a world, and clients in it."""
