"""Other simulators' semantics, reproduced to the job, so that results can be compared with theirs."""
