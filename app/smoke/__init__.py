"""`allpass smoke`: one small real job at one company, below a ceiling in dollars, and what it showed."""
