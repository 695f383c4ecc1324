"""One exam for all providers: whatever passes `suite` may be rented from. Needs pytest; nothing else imports it."""
