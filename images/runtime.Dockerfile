# The inference server. It carries a C compiler and Python's headers because Triton compiles its launchers when a kernel
# is first used. Layers from slow to fast: system, dependencies (torch), code.
ARG BASE=docker.io/library/python:3.12-slim

# What installs is a stage of its own and stays there. The secrets are optional: settings for package indexes, which
# belong to the machine that builds and to no layer.
FROM ${BASE} AS installer
COPY constraints.txt /build/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    && python3 -m venv /build/tools \
    && /build/tools/bin/pip install --quiet --no-cache-dir -c /build/constraints.txt uv

# Edits of pyproject.toml that change no requirement end here: the last stage sees the list alone.
FROM ${BASE} AS requirements
COPY pyproject.toml images/requirements.py /build/
RUN python3 /build/requirements.py /build/pyproject.toml runtime > /requirements.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-runtime" org.opencontainers.image.licenses="Apache-2.0"
# python:3.12-slim brings its headers; Debian's own python3 has them in python3-dev.
RUN python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
    || headers=python3-dev; \
    apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev $headers \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
ARG UV_CACHE_DIR=/root/.cache/uv
COPY constraints.txt /opt/octavo/
COPY --from=requirements /requirements.txt /opt/octavo/
# The installer is lent by the first stage for this one step. No byte code: it would add a tenth to what every node
# pulls, and the cache volume keeps what Python compiles.
RUN --mount=type=bind,from=installer,source=/build/tools,target=/build/tools \
    --mount=type=cache,target=/root/.cache/uv --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_LINK_MODE=copy \
    && python3 -m venv --without-pip /opt/octavo \
    && /build/tools/bin/uv pip install --quiet --python /opt/octavo/bin/python \
       -c /opt/octavo/constraints.txt -r /opt/octavo/requirements.txt \
    && mkdir /cache && chown 65532:65532 /cache
ENV PATH=/opt/octavo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/octavo/code PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX=/cache/python \
    HOME=/cache XDG_CACHE_HOME=/cache TRITON_CACHE_DIR=/cache/triton HF_HOME=/cache/huggingface
USER 65532:65532
ENTRYPOINT ["octavo"]
COPY images/octavo /opt/octavo/bin/octavo
COPY kernels/octavo_kernels /opt/octavo/code/octavo_kernels
COPY runtime/octavo_runtime /opt/octavo/code/octavo_runtime
