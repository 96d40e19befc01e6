"""Tests against a real vLLM server need an environment that has it: `make test-vllm`."""

import os

collect_ignore = [] if "GSPO_VLLM_PYTHON" in os.environ else ["vllm"]
