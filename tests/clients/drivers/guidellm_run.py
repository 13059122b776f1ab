"""GuideLLM: a benchmark of three streamed chat completions. It does not show messages of errors."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import common

TOKENIZER = Path(__file__).parents[3] / "models/demo"
REPORT = Path.home() / "report.json"
REQUESTS, OUTPUT_TOKENS = 3, 8


def run() -> subprocess.CompletedProcess[str]:
    """Run a benchmark that writes `REPORT`."""
    arguments = {
        "backend": f"kind=openai_http,target={common.URL},model={common.MODEL}",
        "profile": "kind=synchronous",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "data": f"kind=synthetic_text,prompt_tokens=16,output_tokens={OUTPUT_TOKENS}",
        "tokenizer": f"kind=huggingface_auto,model={TOKENIZER}",
        "output": f"kind=json,path={REPORT}",
    }
    command = ["guidellm", "run", "--disable-progress"]
    command += [part for name, value in arguments.items() for part in (f"--{name}", value)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def stream() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    [benchmark] = json.loads(REPORT.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), requests["errored"]) == (REQUESTS, [])
    assert {request["output_metrics"]["text_tokens"] for request in requests["successful"]} == {OUTPUT_TOKENS}


common.run_features(stream)
