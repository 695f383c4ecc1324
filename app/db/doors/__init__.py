"""What clients of another API have sent, and the jobs that came of it; the names that models have there.

Owns `door_files`, `door_uploads`, `door_parts`, `tunings` and `model_names`, and writes them. A tuning points to its
job and is never read by what decides about jobs.
"""
