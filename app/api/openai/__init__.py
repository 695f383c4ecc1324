"""The API of OpenAI's fine-tuning, as its own client speaks it, over the same jobs as `/v1`.

A script that was written for it works here with two strings changed: the address (`/openai/v1`) and the key. The other
side's documentation describes the routes; `docs/guides/openai.md` says what differs and what is refused.
"""
