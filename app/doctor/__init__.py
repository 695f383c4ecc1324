"""`allpass doctor`: whether this set-up could run a first real job, found out without renting anything."""
