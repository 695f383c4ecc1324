"""The engine of `engine.py`, where vLLM writes: the same calls, over vLLM's HTTP interface.

Prompts are made into tokens here, as for the other engine, and sent as tokens: what a model reads does not depend on
who writes. vLLM batches by itself; its adapters are loaded while it runs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workers.serving.texts import WrittenPiece, encoded, room_for
from workers.serving.vllm_server import EngineEnded, VllmServer

MOST_ADAPTERS = 16
_AT_ONCE_ON_GPU = 4  # adapters in one batch
_HIGHEST_RANK = 64
_MOST_STARTS = 3  # in a row, without a text in between
_SILENT_S = 600.0
_WAIT_S = 0.1
_MOST_TRIES = 3
_END_S = 1.0  # in which a process whose connection broke is gone, if it ends


class ServedText:
    """A text that vLLM writes. `connection`: closed where nobody wants it any more, which vLLM notices."""

    def __init__(self, adapter: str | None, body: dict[str, Any]) -> None:
        self.adapter = adapter
        self.body = body
        self.tokens = 0
        self.has_text = False
        self.tries = 0
        self.generation = 0  # of the process that writes it
        self.is_dropped = False
        self.connection: http.client.HTTPConnection | None = None


class BrokenText(Exception):
    """Its connection ended before it did."""


class VllmEngine:
    """`server` is started. Each text is read by a thread; only `step` hands out what they read."""

    device = "vLLM"

    def __init__(self, server: VllmServer, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._server = server
        self._folder = Path(tempfile.mkdtemp(prefix="adapters-"))
        self._loaded: list[str] = []  # the one that was used last is the last
        self._texts: set[ServedText] = set()
        self._read: queue.SimpleQueue[tuple[ServedText, WrittenPiece | Exception]] = queue.SimpleQueue()
        self._starts = 0
        self._generation = 0

    @property
    def writing(self) -> int:
        return len(self._texts)

    @property
    def most_tokens(self) -> int:
        return self._server.most_tokens

    def has(self, adapter: str) -> bool:
        return adapter in self._loaded

    def load(self, adapter: str, folder: Path) -> None:
        """vLLM reads the files again when it has put an adapter aside: they are kept for as long as it has it. Raises
        RuntimeError for one that it refuses."""
        place = self._folder / adapter
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        self._register(adapter)
        used = {text.adapter for text in self._texts}
        idle = [name for name in self._loaded[:-1] if name not in used]
        if len(self._loaded) > MOST_ADAPTERS and idle:
            self._unload(idle[0])

    def encode(self, request: dict[str, Any]) -> list[int]:
        return encoded(self.tokenizer, request)

    def takes(self, prompt_tokens: int) -> bool:
        """vLLM lets wait what it has no room for."""
        return True

    def begin(self, prompt: Sequence[int], adapter: str | None, options: dict[str, Any]) -> ServedText:
        """Raises PromptTooLong."""
        room = room_for(len(prompt), self._server.most_tokens)
        temperature, top_p = options.get("temperature"), options.get("top_p")
        body = {
            "prompt": list(prompt),
            "max_tokens": min(options.get("max_tokens") or room, room),
            "temperature": 1.0 if temperature is None else temperature,
            "top_p": 1.0 if top_p is None else top_p,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **{name: options[name] for name in ("stop", "seed") if options.get(name) is not None},
        }
        if adapter is not None:
            self._loaded.remove(adapter)
            self._loaded.append(adapter)
            body["model"] = adapter
        text = ServedText(adapter, body)
        self._texts.add(text)
        self._send(text)
        return text

    def drop(self, text: ServedText) -> None:
        text.is_dropped = True
        self._texts.discard(text)
        connection = text.connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def step(self) -> list[tuple[ServedText, WrittenPiece | Exception]]:
        """What was written meanwhile, waited for a moment. Raises EngineEnded where vLLM ends again and again."""
        told = []
        for text, piece in self._arrived():
            if text.is_dropped or text not in self._texts:
                continue
            if isinstance(piece, BrokenText):
                told += self._mend(text, piece)
                continue
            if isinstance(piece, WrittenPiece):
                self._starts = 0
                text.has_text = text.has_text or bool(piece.text)
            if isinstance(piece, Exception) or piece.reason is not None:
                self._texts.discard(text)
            told.append((text, piece))
        return told

    def close(self) -> None:
        for text in list(self._texts):
            self.drop(text)
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _arrived(self) -> Iterator[tuple[ServedText, WrittenPiece | Exception]]:
        try:
            yield self._read.get(timeout=_WAIT_S)
            while True:
                yield self._read.get_nowait()
        except queue.Empty:
            return

    def _mend(self, text: ServedText, broken: BrokenText) -> list[tuple[ServedText, WrittenPiece | Exception]]:
        """A text of which nothing was told is asked for again, of a new vLLM where the one before has ended; of one
        that was half told, the rest is lost."""
        if text.generation == self._generation and self._server.ended_within(_END_S):
            self._begin_again()
        if text.has_text:
            self._texts.discard(text)
            return [(text, RuntimeError(f"the rest of the answer was lost: {broken}; ask again"))]
        if text.tries >= _MOST_TRIES or (text.adapter is not None and not self.has(text.adapter)):
            self._texts.discard(text)
            return [(text, RuntimeError(str(broken)))]
        self._send(text)
        return []

    def _begin_again(self) -> None:
        """A new vLLM, with the adapters that the one before had. Raises EngineEnded."""
        why = self._server.why()
        self._starts += 1
        if self._starts >= _MOST_STARTS:
            raise EngineEnded(f"{why}; it has ended {self._starts} times in a row")
        print(f"serving: {why}: it is begun again", flush=True)
        self._server.start()
        self._generation += 1
        names, self._loaded = self._loaded, []
        for name in names:
            with contextlib.suppress(OSError, RuntimeError):
                self._register(name)

    def _register(self, adapter: str) -> None:
        place = self._folder / adapter
        status, told = self._ask("/v1/load_lora_adapter", {"lora_name": adapter, "lora_path": str(place)})
        if status != http.client.OK and "already been loaded" not in _message(told):
            shutil.rmtree(place, ignore_errors=True)
            raise RuntimeError(f"vLLM does not take this adapter: {_message(told)[:300]}")
        self._loaded.append(adapter)

    def _unload(self, adapter: str) -> None:
        self._loaded.remove(adapter)
        self._ask("/v1/unload_lora_adapter", {"lora_name": adapter})
        shutil.rmtree(self._folder / adapter, ignore_errors=True)

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        try:
            return self._server.ask("POST", path, body)
        except http.client.HTTPException as error:
            raise OSError(f"vLLM did not answer: {error!r}") from None

    def _send(self, text: ServedText) -> None:
        text.tries += 1
        text.generation = self._generation
        threading.Thread(target=self._follow, args=(text,), daemon=True).start()

    def _follow(self, text: ServedText) -> None:
        """In a thread: all of one text."""
        text.connection = connection = self._server.connection(_SILENT_S)
        try:
            body = {"model": self._server.base, **text.body}
            connection.request("POST", "/v1/completions", json.dumps(body), self._server.headers)
            with connection.getresponse() as answer:
                self._hear(text, answer)
        except BrokenText as error:
            self._read.put((text, error))
        except (OSError, http.client.HTTPException) as error:
            self._read.put((text, BrokenText(f"the connection to vLLM broke ({type(error).__name__})")))
        finally:
            connection.close()

    def _hear(self, text: ServedText, answer: http.client.HTTPResponse) -> None:
        """Raises BrokenText for one that ends before its end."""
        if answer.status == http.client.OK:
            for piece in _pieces(answer, text):
                self._read.put((text, piece))
                if isinstance(piece, Exception) or piece.reason is not None:
                    return
            raise BrokenText("vLLM ended it without a word")
        refusal = f"vLLM answered {answer.status}: {_message(_loaded(answer.read()))[:500]}"
        is_wrong = answer.status in (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY)
        self._read.put((text, ValueError(refusal) if is_wrong else RuntimeError(refusal)))


def arguments(at_once: int) -> list[str]:
    """Of vLLM's command line: what the model itself proposes for sampling is not ours to follow."""
    told = {
        "--max-num-seqs": at_once,
        "--max-loras": _AT_ONCE_ON_GPU,
        "--max-cpu-loras": MOST_ADAPTERS,
        "--max-lora-rank": _HIGHEST_RANK,
        "--generation-config": "vllm",
    }
    return ["--enable-lora", *(word for name, value in told.items() for word in (name, str(value)))]


def _pieces(lines: Any, text: ServedText) -> Iterator[WrittenPiece | Exception]:
    """Of a stream of events. The last piece waits for the event with the usage, which comes after it."""
    last: WrittenPiece | None = None
    for line in lines:
        data = line[len(b"data:") :].strip() if line.startswith(b"data:") else b""
        if not data:
            continue
        event = None if data == b"[DONE]" else _loaded(data)
        if event is not None and (not isinstance(event, dict) or "error" in event):
            yield RuntimeError(f"vLLM failed: {_message(event)[:500]}")
            return
        told = event or {}
        text.tokens = int((told.get("usage") or {}).get("completion_tokens") or text.tokens)
        if last is not None and (event is None or told.get("usage")):
            yield last._replace(tokens=text.tokens)
            return
        for choice in told.get("choices") or ():
            reason = choice.get("finish_reason")
            piece = WrittenPiece(str(choice.get("text") or ""), text.tokens, reason)
            if reason is None:
                yield piece
            elif reason in ("stop", "length"):
                last = piece
            else:
                yield RuntimeError(f"vLLM ended the answer: {str(reason)[:100]}")
                return


def _loaded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")


def _message(told: Any) -> str:
    """Of an error, as newer or older versions say it."""
    if isinstance(told, dict):
        inner = told.get("error", told)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    return str(told)
