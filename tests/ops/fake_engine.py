"""Behaves like ``vllm serve`` as far as a supervisor sees it. For tests only; standard library only.

usage: fake_engine.py MODEL --host H --port P ...      (other arguments are accepted and ignored)

What it does at its n-th start is the n-th word of FAKE_PLAN_<PORT> or FAKE_PLAN (the last word for all later ones):
  serve       prints boot lines, then answers /health until it is told to stop
  crash       serves, and ends with status 3 after a moment
  refuse      prints vLLM's kind of error and ends with status 1
  stubborn    serves, ignores SIGTERM, and so does a child in a session of its own
Starts are counted in FAKE_FOLDER, which also gets the pids.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

BOOT = """INFO 11-30 02:03:06 [api_utils.py:347]  version 0.32.0
(APIServer pid=1) INFO 11-30 02:03:06 [model.py:733] Resolved architecture: FakeForCausalLM
(EngineCore pid=2) INFO 11-30 02:03:30 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'
(EngineCore pid=2) INFO 11-30 02:03:45 [cpu_model_runner.py:68] Starting to load model x...
(EngineCore pid=2) INFO 11-30 02:03:53 [core.py:402] init engine (profile, create kv cache, warmup model) took 3.10 s
INFO:     Application startup complete."""


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    port = int(sys.argv[sys.argv.index("--port") + 1])
    folder = pathlib.Path(os.environ["FAKE_FOLDER"])
    starts = folder / f"starts-{port}"
    with starts.open("a") as file:
        file.write(f"{os.getpid()} {time.monotonic():.3f}\n")
    plan = (os.environ.get(f"FAKE_PLAN_{port}") or os.environ.get("FAKE_PLAN", "serve")).split()
    deed = plan[min(len(starts.read_text().splitlines()), len(plan)) - 1]
    if deed == "refuse":
        print(
            "(EngineCore pid=2) ERROR 11-30 02:03:30 [core.py:1] ValueError: no memory for the cache blocks", flush=True
        )
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
        sys.exit(1)
    if deed == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
        (folder / f"child-{port}").write_text(str(child.pid))
    print(BOOT, flush=True)
    server = HTTPServer(("127.0.0.1", port), Health)
    if deed == "crash":
        threading.Timer(0.3, os._exit, [3]).start()
    server.serve_forever(poll_interval=0.05)


main()
