"""A pool of hosts over months, with and without the defragmentation that the control loop has by its schedule."""
