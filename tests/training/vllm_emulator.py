"""vLLM's OpenAI server as far as a serving job needs it, over its real wire format: a program for `command`.

Written after vLLM's documentation and answers (0.8 to 0.11): /v1/models with max_model_len, /v1/load_lora_adapter and
/v1/unload_lora_adapter (200 with a text, 400 with an error object), /v1/completions as server-sent events with usage in
every chunk, a last chunk with the usage alone, and [DONE]. Nothing of it computes: a text is the model's name and the
prompt's tokens, one token a chunk. `VLLM_PLAYS`: a file with faults, as JSON, read whenever they may matter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_SMALL = (
    "ValueError: To serve at least one request with the models's max seq len (131072), 16.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (2.00 GiB). Based on the available memory, the estimated "
    "maximum model length is 128. Try increasing `gpu_memory_utilization`"
)
parser = argparse.ArgumentParser()
for name in ("host", "model", "served-model-name", "generation-config"):
    parser.add_argument(f"--{name}")
for name in ("port", "max-num-seqs", "max-loras", "max-cpu-loras", "max-lora-rank", "max-model-len"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--enable-lora", action="store_true")
asked = parser.parse_args()
plays_file = Path(os.environ["VLLM_PLAYS"])
seen_file = plays_file.with_suffix(".seen")
adapters: dict[str, str] = {}
lock = threading.Lock()


def plays() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(plays_file.read_text())
    return told


def saw(what: str, **told: Any) -> None:
    with lock, seen_file.open("a") as file:
        file.write(json.dumps({"what": what, **told}) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *told: Any) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.knows_key():
            model = {"id": asked.served_model_name, "object": "model", "owned_by": "vllm", "root": asked.model}
            self.answer(200, {"object": "list", "data": [{**model, "max_model_len": asked.max_model_len or 256}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.knows_key():
            return
        if self.path == "/v1/load_lora_adapter":
            self.load(body)
        elif self.path == "/v1/unload_lora_adapter":
            adapters.pop(body["lora_name"], None)
            saw("unload", name=body["lora_name"])
            self.answer(200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully.")
        elif self.path == "/v1/completions":
            self.complete(body)

    def load(self, body: dict[str, Any]) -> None:
        name, path = body["lora_name"], Path(body["lora_path"])
        config = json.loads((path / "adapter_config.json").read_text())
        if config["r"] > (asked.max_lora_rank or 16):
            why = f"LoRA rank {config['r']} is greater than max_lora_rank {asked.max_lora_rank}."
            self.error(400, why)
        elif name in adapters:
            self.error(400, f"The lora adapter '{name}' has already been loaded.")
        else:
            adapters[name] = str(path)
            saw("load", name=name)
            self.answer(200, f"Success: LoRA adapter '{name}' added successfully.")

    def complete(self, body: dict[str, Any]) -> None:
        model = body["model"]
        if model != asked.served_model_name and model not in adapters:
            return self.error(404, f"The model `{model}` does not exist.", "NotFoundError")
        if len(body["prompt"]) + body["max_tokens"] > (asked.max_model_len or 256):
            return self.error(400, "This model's maximum context length is 256 tokens.")
        saw("complete", model=model, temperature=body["temperature"], max_tokens=body["max_tokens"])
        words = [model.rpartition("/")[2], *map(str, body["prompt"])][: body["max_tokens"]]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.stream(body, words)
        except OSError:
            saw("aborted", model=model)
            self.close_connection = True

    def stream(self, body: dict[str, Any], words: list[str]) -> None:
        told = plays()
        for count, word in enumerate(words, 1):
            if told.get("dies_at") == count:
                if told.get("once"):
                    plays_file.write_text("{}")
                print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
                os.kill(os.getpid(), 9)
            if told.get("fails_at") == count:
                self.event({"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError"}})
                break
            time.sleep(told.get("token_s", 0))
            is_last = count == len(words)
            reason = ("length" if count == body["max_tokens"] else "stop") if is_last else None
            choice = {"index": 0, "text": f"{word} ", "logprobs": None, "finish_reason": reason, "stop_reason": None}
            usage = {"usage": self.usage(body, count)} if not told.get("without_usage") else {}
            self.event(
                {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice], **usage}
            )
        else:
            self.event(
                {"id": "cmpl-1", "object": "text_completion", "choices": [], "usage": self.usage(body, len(words))}
            )
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def usage(self, body: dict[str, Any], count: int) -> dict[str, int]:
        prompt = len(body["prompt"])
        return {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}

    def event(self, told: dict[str, Any]) -> None:
        self.chunk(b"data: %b\n\n" % json.dumps(told).encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def knows_key(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}":
            return True
        self.answer(401, {"error": "Unauthorized"})
        return False

    def error(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        self.answer(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    def answer(self, status: int, told: dict[str, Any] | str) -> None:
        content = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    saw("start", runtime_lora=os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"), at_once=asked.max_num_seqs)
    told = plays()
    if "start_fails" in told:
        print(told["start_fails"], flush=True)
        sys.exit(1)
    if told.get("is_small") and asked.max_model_len is None:
        print(_SMALL, flush=True)
        sys.exit(1)
    while plays().get("start_hangs"):
        time.sleep(0.02)
    server = ThreadingHTTPServer((asked.host, asked.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
