"""Section 5 of the Allpass paper, simulated: its claims beside what comes out here."""
