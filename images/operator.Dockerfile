# The controller: Python, its few libraries, our code. No torch, no compiler, no package installer.
ARG BASE=docker.io/library/python:3.12-slim

# What installs is a stage of its own and stays there. The secrets are optional: settings for package indexes, which
# belong to the machine that builds and to no layer.
FROM ${BASE} AS installer
COPY constraints.txt /build/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    && python3 -m venv /build/tools \
    && /build/tools/bin/pip install --quiet --no-cache-dir -c /build/constraints.txt uv

# Edits of pyproject.toml that change no requirement end here: the next stage sees the list alone.
FROM ${BASE} AS requirements
COPY pyproject.toml images/requirements.py /build/
RUN python3 /build/requirements.py /build/pyproject.toml operator > /requirements.txt

FROM installer AS dependencies
ARG UV_CACHE_DIR=/root/.cache/uv
COPY --from=requirements /requirements.txt /build/
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_LINK_MODE=copy \
    && python3 -m venv --without-pip /opt/octavo \
    && /build/tools/bin/uv pip install --quiet --compile-bytecode --python /opt/octavo/bin/python \
       -c /build/constraints.txt -r /build/requirements.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-operator" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/octavo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/octavo/code PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["octavo-operator"]
COPY --from=dependencies /opt/octavo /opt/octavo
COPY images/octavo-operator /opt/octavo/bin/octavo-operator
COPY runtime/octavo_runtime/__init__.py /opt/octavo/code/octavo_runtime/
COPY runtime/octavo_runtime/contract /opt/octavo/code/octavo_runtime/contract
COPY operator/octavo_operator /opt/octavo/code/octavo_operator
COPY crds /opt/octavo/code/octavo_operator/crds
