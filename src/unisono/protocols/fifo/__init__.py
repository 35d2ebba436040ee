"""FIFO order per publisher and topic, over any broker: the smallest complete protocol of the house."""
