"""The parts of an `OrderingClient` (`protocols/sequencer/client.py`): publishing, joining, holding back, delivering."""
