"""What a job runs that answers for fine-tuned models: shipped with the agent, as the recipe's trainer is.

`serve.py` asks the service for requests and tells it the answers; `door.py` is how it speaks to the service;
`engine.py` holds one base model with any number of adapters, and writes text. Python 3.9, torch, transformers, peft.
"""
