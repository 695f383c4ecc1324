"""The live loop: observe, decide, enact; the workers that call providers; the chores around them.

Any number of processes may run this. One of them leads and decides; all of them carry operations out.
"""
