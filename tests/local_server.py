"""An HTTP server on this machine that lives as long as a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


@contextmanager
def serving(http: ThreadingHTTPServer) -> Iterator[None]:
    """Answer requests in a thread, and let go of the port at the end."""
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield
    http.shutdown()
    http.server_close()
    thread.join()
