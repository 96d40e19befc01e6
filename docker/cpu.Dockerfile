# gspo on CPUs. Written but not built yet: where gspo is developed there is no Docker.
#   docker build -f docker/cpu.Dockerfile -t gspo:cpu .
#   docker run --rm -v gspo:/work gspo:cpu demo
FROM python:3.11-slim

# The sandbox's first driver, and a compiler for C++ programs.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap g++ && rm -rf /var/lib/apt/lists/*

WORKDIR /gspo
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir -c constraints.txt torch --extra-index-url https://download.pytorch.org/whl/cpu
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[demo,tasks,lora,agents]'

# Runs and models stay in the volume.
RUN useradd --create-home gspo && install -d -o gspo /work
USER gspo
ENV HOME=/work
WORKDIR /work
ENTRYPOINT ["gspo"]
CMD ["--help"]
