"""Tests against a real vLLM server need an environment that has it: `make test-vllm`."""

import os

# Tiny models run faster on one thread, above all beside others; what the tests start inherits it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

collect_ignore = [] if "GSPO_VLLM_PYTHON" in os.environ else ["backends/vllm/engine"]
