# What a rented machine boots: Python, and what most jobs need. The agent is not in here: the machine fetches it when it
# starts, verified by its hash, so that this image need not change with the service.
#
#   allpass images build registry.example.com/team/node:1 --package torch==2.13.0 --package transformers
#   docker build -f docker/node.Dockerfile -t registry.example.com/team/node:1 --platform linux/amd64 docker

ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}

# What is here already need not be installed at the start of every job that asks for it.
ARG PACKAGES=""
# Where builds for another CUDA version, or for CPUs, are found; empty: where pip looks by itself
ARG PACKAGES_INDEX=""
# uv builds environments of jobs several times faster than pip
RUN python3 -m pip install --no-cache-dir uv \
 && if [ -n "$PACKAGES" ]; then \
        python3 -m pip install --no-cache-dir ${PACKAGES_INDEX:+--index-url "$PACKAGES_INDEX"} $PACKAGES; \
    fi

RUN groupadd --gid 10002 agent \
 && useradd --uid 10002 --gid 10002 --create-home --shell /usr/sbin/nologin agent \
 && install --directory --mode 0711 /var/lib/allpass

ENV PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The agent is root so that code of users is not: each run gets an unprivileged user of its own, which can read neither
# the agent's memory nor other runs' files. Where a host allows no root, `--build-arg AGENT_USER=agent`: then code of users
# runs as that user as well, in folders of its own.
ARG AGENT_USER=root
USER ${AGENT_USER}

# No ENTRYPOINT: providers give the bootstrap script as the command.
CMD ["python3", "--version"]
