"""What each rank of a test would import, and have transformers make, by itself. The server that forks ranks does it once."""

import pytest  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401
import transformers.models.qwen3.modeling_qwen3
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import gspo.assembly.rank
import gspo.backends.hf.sharded  # noqa: F401

get_checkpoint_conversion_mapping("qwen3_moe")  # a thousand patterns
