# The inference server. It carries a C compiler and Python's headers because Triton compiles its launchers when a kernel
# is first used. Layers from slow to fast: system, dependencies (torch), code.
ARG BASE=docker.io/library/python:3.12-slim

# Edits of pyproject.toml that change no requirement end here: the next stage sees the list alone.
FROM ${BASE} AS requirements
COPY pyproject.toml images/requirements.py /build/
RUN python3 /build/requirements.py /build/pyproject.toml runtime > /requirements.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-runtime" org.opencontainers.image.licenses="Apache-2.0"
# python:3.12-slim brings its headers; Debian's own python3 has them in python3-dev.
RUN python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
        || headers=python3-dev; \
    apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev $headers \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && mkdir /cache && chown 65532:65532 /cache
COPY constraints.txt /opt/octavo/
COPY --from=requirements /requirements.txt /opt/octavo/
ARG UV_CACHE_DIR=/root/.cache/uv
# The secrets are optional: settings for package indexes, which belong to the machine that builds and to no layer. The
# installer comes and goes within the step.
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy PYTHONDONTWRITEBYTECODE=1 \
    && python3 -m venv /tmp/installer \
    && /tmp/installer/bin/pip install --quiet --no-cache-dir -c /opt/octavo/constraints.txt uv \
    && python3 -m venv --without-pip /opt/octavo \
    && /tmp/installer/bin/uv pip install --quiet --python /opt/octavo/bin/python \
        -c /opt/octavo/constraints.txt -r /opt/octavo/requirements.txt \
    && rm -rf /tmp/installer
# Byte code of what every start imports: a pod is up 5 seconds sooner for 40 MB; that of everything would be 200 MB.
RUN /opt/octavo/bin/python -c "import jinja2, numpy, prometheus_client, safetensors.torch, starlette.applications, \
        tokenizers, torch, torch.distributed, transformers, uvicorn, uvloop"
# The CPU kernels, once per instruction set: a pod never waits for a compiler. They change less often than the rest.
COPY kernels/octavo_kernels/__init__.py /opt/octavo/code/octavo_kernels/
COPY kernels/octavo_kernels/cpu /opt/octavo/code/octavo_kernels/cpu
RUN PYTHONPATH=/opt/octavo/code PYTHONDONTWRITEBYTECODE=1 /opt/octavo/bin/python -m octavo_kernels.cpu.build
ENV PATH=/opt/octavo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/octavo/code PYTHONUNBUFFERED=1 \
    HOME=/cache XDG_CACHE_HOME=/cache TRITON_CACHE_DIR=/cache/triton HF_HOME=/cache/huggingface
USER 65532:65532
ENTRYPOINT ["octavo"]
COPY images/octavo /opt/octavo/bin/octavo
COPY kernels/octavo_kernels /opt/octavo/code/octavo_kernels
COPY runtime/octavo_runtime /opt/octavo/code/octavo_runtime
