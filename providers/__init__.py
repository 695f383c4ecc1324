"""Adapters to rental companies. Each folder speaks one company's protocol; none knows the service beyond its ports."""
