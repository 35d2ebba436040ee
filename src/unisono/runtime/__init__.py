"""Driver 2: the same machines over real sockets, disks and clocks."""
