"""What people touch: one command, one list (`unisono --help`). Exit 0/1/2 = holds / violated / could not run."""
