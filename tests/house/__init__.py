"""The house itself: installation, the command line, the guards."""
