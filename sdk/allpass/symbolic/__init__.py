"""What a training step allocates, found by running it on tensors that have shapes and no contents.

The real module of the installed transformers is built and trained for a step of its optimizer under torch's fake
tensors: every operator runs on sizes and types alone, so neither weights, nor a GPU, nor the memory of one is needed.
Each storage is watched from its making to its release; the peak of their sum is comparable with
`torch.cuda.max_memory_allocated()`, less the workspaces of cuBLAS.

Not seen: the CUDA context, what the caching allocator cannot use, NCCL's buffers, and sharded layouts.

`ask.run_cases` is the door: it runs in a process of its own, with the Python whose libraries count, and keeps what it
found. Only `run` and what it imports need torch; the rest is the standard library, on Python 3.9.
"""
