"""An HTTP server that reads bodies and drops them; enough of S3's words for a multipart upload. Prints its port."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading

_BUFFER_BYTES = 1024 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BEGUN = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
_DONE = b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _serve(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with connection:
        while head := _head(connection):
            header, body = head
            if b"100-continue" in header.lower():
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            found = _LENGTH.search(header)
            left = (int(found.group(1)) if found else 0) - len(body)
            while left > 0:
                count = connection.recv_into(buffer[: min(left, _BUFFER_BYTES)])
                if count == 0:
                    return
                left -= count
            connection.sendall(_answer(header))


def _head(connection: socket.socket) -> tuple[bytes, bytes] | None:
    """The request's head, and what came of its body with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    header, _, body = data.partition(b"\r\n\r\n")
    return header, body


def _answer(header: bytes) -> bytes:
    line = header.split(b"\r\n", 1)[0]
    text = b"" if not line.startswith(b"POST") else (_BEGUN if b"?uploads" in line else _DONE)
    return b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: %d\r\n\r\n%s' % (len(text), text)


if __name__ == "__main__":
    main()
