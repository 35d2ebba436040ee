"""The parts of a `TopicManager` (`protocols/sequencer/node.py`): numbering, registering, moving, completing."""
