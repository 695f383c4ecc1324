"""The wire contract: every request and response, once. The service imports these models; so do the clients.

Times are aware UTC instants, durations say their unit, money is integer micro-dollars.
"""
