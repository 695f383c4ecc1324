"""Jobs that take a range of GPUs in a simulation: drawn, given GPUs, and moved to machines of other sizes."""
