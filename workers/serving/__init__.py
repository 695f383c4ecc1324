"""What a job runs that answers for fine-tuned models: shipped with the agent, as the recipe's trainer is.

`serve.py` asks the service for requests and tells it the answers; `door.py` is how it speaks to the service;
`writer.py` hands requests to an engine and answers to the `desk.py`, whose threads ask and tell. `engine.py` holds one
base model with any number of adapters, and writes many texts at once (`lanes.py`); `vllm_engine.py` has vLLM do it,
whose process is in `vllm_server.py`. torch, transformers, peft.
"""
