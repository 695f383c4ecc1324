"""Fine-tuning jobs of an OpenAI account: fetched into a folder, repeated on Allpass, and both runs compared.

Everything that the other side tells is checked before it is used: it may be any server.
"""
