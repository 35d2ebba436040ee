"""A subscription from the machine's items to the reader's notifications."""
