"""Jobs on several machines (ADR 0100): they begin together, and end together.

One run leads; the job is its, as that of any other job. Each further machine has a member, whose agent prepares what
the job needs, waits for all others, and is stopped with the run that leads. What a member's process writes counts
nowhere but in the job's logs."""
