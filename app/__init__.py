"""The Allpass service: decides where fine-tuning jobs run, moves them, and accounts for every cent."""
