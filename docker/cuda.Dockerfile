# gspo on NVIDIA GPUs, with vLLM. Written but not built yet: where gspo is developed there is no Docker.
#   docker build -f docker/cuda.Dockerfile -t gspo:cuda .
#   docker run --rm --gpus all --ipc host -v "$PWD:/work" gspo:cuda train run.toml
FROM python:3.11-slim

# bubblewrap is for the sandbox. Triton compiles with g++. CUDA's libraries come with torch; the driver is the host's.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap g++ && rm -rf /var/lib/apt/lists/*

# vLLM pins other versions than gspo, so it has an environment of its own: sampler.python = "/vllm/bin/python".
RUN python -m venv /vllm && /vllm/bin/pip install --no-cache-dir vllm==0.32.0

WORKDIR /gspo
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[demo,tasks,lora,quantized,agents,vllm]'

ENV HOME=/work
WORKDIR /work
ENTRYPOINT ["gspo"]
CMD ["--help"]
