"""What runs one machine in a process: its host, its log, clock, journal and directories."""
