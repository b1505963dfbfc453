"""Where a producer starts or resumes: its own log, or a place in the binlogs."""
