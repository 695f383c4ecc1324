"""What owners ask of providers: a check, an image built ahead, prices of their own.

Written down here, carried out by `app.control`, which holds the credentials.
"""
